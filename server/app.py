"""The ServerApp: a run from settings to run folder, with any engine."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch.nn import Module

from fairbloom.errors import FairbloomError, ReportableError, join_names
from fairbloom.flower import is_simulated
from fairbloom.logs import log
from fairbloom.protocol.accounts import (
    LOSS_UNITS,
    SPENDS,
    STEP_UNITS,
    AccountStatus,
    largest_loss,
)
from fairbloom.protocol.names import (
    ACCURACY,
    ARRAYS,
    ASK,
    CLIENT,
    CLIENTS_FOLDER,
    CONFIG as MESSAGE_CONFIG,
    DISPARITY,
    DISPARITY_HARD,
    LOSS,
    LOSS_BEFORE,
    OFF,
    PERSONAL,
    PROTOCOL as PROTOCOL_KEY,
    RECORDED_SCHEMA,
    RELEASE,
    RELEASE_LIMIT,
    TAKE,
    TRAIN_LOSS,
)
from fairbloom.protocol.parameters import split_pairs
from fairbloom.protocol.patterns import split_words
from fairbloom.protocol.private import (
    EXAMPLE,
    SIMULATED,
    SIMULATED_NOISE,
    check_settings,
    check_terms,
)
from fairbloom.protocol.scores import put_first
from fairbloom.protocol.settings import (
    SETTINGS,
    Mark,
    SettingsError,
    digest,
    marked,
    split_names,
)
from fairbloom.protocol.terms import Terms
from fairbloom.protocol.version import PROTOCOL
from fairbloom.rounds.arrays import Model, forms_of
from fairbloom.rounds.clients import ModelMakers
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.quorum import Quorum
from fairbloom.rounds.records import record_of
from fairbloom.rounds.round import StopRun
from fairbloom.rounds.screening import BrokenModelError
from fairbloom.strategies import FairStrategy
from fairbloom.tables.groups import find_two_groups
from fairbloom.tasks import Task, digests, find_task, load_task
from fairbloom.tasks.models import (
    arrays_of,
    check_arrays,
    float_buffers,
    frozen_parameters,
    personal_arrays,
    shared_parameters,
)
from fairbloom.tasks.models.made import Made, form_of_task, make_checked
from fairbloom.tasks.models.personal import PARTS
from fairbloom.tasks.models.weights import (
    check_rows,
    describe_rows,
    digest_weights,
    load_initial_weights,
)
from fairbloom.tasks.optimizers import usual_learning_rate
from fairbloom.tasks.score import check_measured, decide_score, has_two_classes, log_positive
from fairbloom.text import join_first, text_if

from .checkpoint import list_checkpoints
from .log_lines import summarize_row
from .polling import PollingGrid
from .progress import announce
from .run_folder.checks import check_folder, check_same_data
from .run_folder.csv_rows import Validation
from .run_folder.errors import RunFolderError, explain_other_state, name_app_option
from .run_folder.files import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    COUNTS,
    EXAMPLES,
    KNOWN,
    MADE,
    MODEL,
    PRIVACY,
    ROUNDS,
    SCHEMA,
    is_finished,
    log_finished,
    record_known,
    write_initial_files,
)
from .run_folder.group_rows import Grouped
from .run_folder.lock import locked_folder
from .run_folder.recorded import OnRound, RecordedRound, ignore
from .run_folder.recorder import RunRecorder
from .run_folder.stopping import EarlyStopping
from .run_folder.values import RunStart
from .settings import Settings, default_config, find_grown, resolve
from .waiting import MOST_TIMES, ask_sizes, check_sizes, drop_revoked, wait_for_clients

# What becomes of a released model on a device, by the rule of its owner that it has followed.
ANSWERS = {
    TAKE: "has taken it",
    ASK: "keeps it until its owner takes it (fairbloom client release take)",
    OFF: "takes no model: its owner's limits.release is off",
}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the run config's method, with the nodes of this federation as clients."""
    with name_app_option("out", at_once=is_simulated(grid)):
        settings = Settings.of(context.run_config)
        settings.check_deployed()
        if not is_simulated(grid):
            settings.check_schema()
        folder = choose_run_folder(settings)
        if not is_simulated(grid) and not list_checkpoints(CHECKPOINTS.path_in(folder)):
            weights = settings.initial_weights
            found = digest_weights(weights) if weights else ""
            if settings.weights_digest != found:
                raise FairbloomError(
                    f"weights-digest = {settings.weights_digest!r}: owners of devices accept the"
                    f" weights of initial-weights by their digest: set weights-digest = {found!r}"
                )
        announce(folder)
        quorum = Quorum(
            settings.wait_for_clients,
            split_names(settings.training_clients),
            KNOWN.read(folder).known,
            grid=grid,
            enrolled=drop_revoked,
        )
        patient = PollingGrid(grid, min_replies=settings.min_replies, quorum=quorum)

        def wait_for_them(method: Method) -> FlowerClients:
            clients = FlowerClients(
                method, patient, settings.round_timeout, quorum, protocol=PROTOCOL
            )
            wait_for_clients(
                clients,
                quorum,
                expected=settings.clients,
                began=KNOWN.read(folder).began,
                min_clients=settings.min_clients,
            )
            method.adapt(min_available_nodes=quorum.fewest)
            # Only real devices report their own counts, and have privacy accounts. A continued run
            # does not ask: a device keeps one reply, and this one would take a round's place.
            if os.environ.get(CLIENTS_FOLDER) and not ROUNDS.read(folder):
                # These first counts bound the counts of later replies.
                sizes = ask_sizes(clients, quorum)
                check_sizes(sizes, method.enrolled_sizes)
                method.enter(method.run_state.screened(sizes))
            return clients

        # A grid may keep the replies of a round until it is saved.
        save: Callable[[int], None] = getattr(grid, "save", lambda last: None)
        save(0)
        federate(settings, wait_for_them, lambda recorded: save(recorded.number), deployed=True)
        if settings.release:
            release_model(folder, settings, patient)


def release_model(folder: Path, settings: Settings, grid: Grid) -> None:
    """Send the last or the best model of a finished run to all clients of the federation.

    Log by name what becomes of it. Raise FairbloomError if the run has no such model.
    """
    entry = {"last": MODEL, "best": BEST}[settings.release]
    if settings.strategy().serves == PERSONAL or not entry.exists_in(folder):
        raise FairbloomError(
            f"release = {settings.release}: the run in {folder} has no such model for all clients:"
            " release last, or a run of a method with a common model"
        )
    last = max(int(row["round"]) for row in ROUNDS.read(folder))
    terms = Terms(server_round=int(entry.read_about(folder).get("round", last)))
    about = {"run": folder.name, "method": settings.method, "day": str(datetime.now(UTC).date())}
    config = ConfigRecord({PROTOCOL_KEY: PROTOCOL, **terms.to_config(), **about})
    content = RecordDict({ARRAYS: record_of(entry.read(folder)), MESSAGE_CONFIG: config})
    names = {node.node_id: node.name or str(node.node_id) for node in grid.get_nodes()}
    enrolled = Path(os.environ.get(CLIENTS_FOLDER, folder / "none")).glob("*.toml")
    found = dict.fromkeys(drop_revoked(file.stem for file in enrolled), "is away")
    messages = [Message(content, node_id, RELEASE) for node_id in names]
    for reply in grid.send_and_receive(messages, timeout=settings.round_timeout):
        words = f"does not take it: {reply.error.reason}" if reply.has_error() else ""
        found[names[reply.metadata.src_node_id]] = words or ANSWERS.get(
            str(reply.content.config_records[CLIENT][RELEASE_LIMIT]), "answers nothing"
        )
    for name, words in sorted(found.items()):
        log.info("%s %s", name, words)
    log.info("the same command sends the model again, to those that lack it")


def declare_arrays(method: FairStrategy, module: Module, output: str) -> None:
    """Tell a method which arrays of a model are buffers, shared, or never sent in updates.

    `output` is the task's.
    """
    own = personal_arrays(module, method.personal_parameters, output)
    method.adapt(
        buffers=tuple(name for name in float_buffers(module) if name not in own),
        shared=shared_parameters(module),
        frozen=(*frozen_parameters(module), *own),
    )


def federate(
    settings: Settings,
    clients_of: Callable[[Method], ModelMakers],
    on_round: OnRound = ignore,
    *,
    deployed: bool = False,
    engine: Callable[[Method], tuple[ModelMakers, Mapping[str, object]]] | None = None,
    score_held_out: Callable[[Method, Model], None] = lambda method, model: None,
) -> Path:
    """Run the settings' run, or continue it if it is unfinished; return the run folder.

    Parameters
    ----------
    clients_of
        Returns the clients that train and evaluate for a method.
    on_round
        Called with each recorded round. An exception ends the run, which can be continued;
        StopRun finishes it.
    deployed
        Whether the clients are other machines. Then clients with unusable data are left out instead
        of failing the run; another process that writes the folder is waited for, up to a minute,
        because a lost process may not have noticed that its run was handed on; and rounds do not
        share checkpoints.
    engine
        Returns, for a method, other clients to train and evaluate with, once the fraction of the
        run is known, and how they are computed, in plain values for the record of the run.
    score_held_out
        Records the scores of the clients that are not in training under the final model.
    """
    path = choose_run_folder(settings)
    data: Mapping[str, str] = {} if deployed else digests(settings)
    wanted = settings.run_config()
    check_folder(path, wanted)
    check_same_data(path, data)
    if is_finished(path) and not find_grown(CONFIG.read(path).settings, wanted):
        if not settings.release:  # else there is something to do: its model goes out
            log_finished(path)
        return path
    method = settings.strategy()
    clients = clients_of(method)
    settings = settings.decide_fraction(clients.online(1), CONFIG.read(path).settings)
    method.adapt(fraction_train=settings.fraction_train)
    choice: Mapping[str, object] = {}
    if engine is not None:
        clients, choice = engine(method)
    # A first round that is asked again is asked in the same words: by what was known then.
    known = PRIVACY.read(path).get("clients", {}) if deployed else {}
    accounts = {name: AccountStatus(**each) for name, each in known.items()} or clients.accounts
    check_accounts(settings, method, accounts)
    compare_budgets(settings, method, accounts, refuses=deployed and not known)
    task = load_task(keep_schema(settings, path))
    if settings.initial_weights:
        check_rows(settings, task.schema, None if deployed else data)
    score = decide_score(
        settings, task, str(CONFIG.read(path).settings.get("score", "")), deployed=deployed
    )
    settings = settings.model_copy(update={"score": score.name})
    module, made = make_model(settings, task, path, clients)
    clients.announce(made.encode().decode())
    if method.compares_groups:
        find_two_groups(task.groupings, task.classes)
    check_measured(settings, method.needs, task)
    log_positive(task, [settings.method] * method.compares_groups, settings.schema_)
    measure = settings.best_model.replace("-", "_")
    with locked_folder(path, wait=deployed), ExitStack() as ending:
        recorder = RunRecorder(
            path,
            settings.run_config(),
            method,
            [
                replace(each, noisy=deployed and bool(accounts))
                for each in put_first(task.scores, score)
            ],
            in_process=not deployed,
            about={"rows": describe_rows(settings, task.schema, data)},
            keep=clients.keep,
            validation=(
                Validation.of(score, measure=measure) if settings.validation_share else None
            ),
            best_by=measure,
            grouped=Grouped.of(task),
            two_classes=has_two_classes(task),
            accounts=bool(accounts),
            stopping=(
                EarlyStopping(settings.early_stopping, Validation.of(score, method.serves, measure))
                if settings.early_stopping
                else None
            ),
        )
        ending.enter_context(closing(recorder))
        if recorder.finished:  # the process that was waited for has finished the run
            log_finished(path)
            return path
        write_initial_files(
            path,
            RunStart(task, data, choice, deployed, find_task(settings.task).is_user_defined, made),
        )
        check_arrays(module)
        declare_arrays(method, module, task.output)
        if accounts:
            method.adapt(largest_loss=largest_loss(task.classes or 2))
        log_kept_parts(method, module, task.output)
        # clients.csv does not name clients without tests
        rounds = Rounds(
            method,
            clients,
            settings.num_rounds,
            (
                record_known(path, clients.online(1)).known
                if deployed or not settings.test_share
                else ()
            ),
            enrolled=drop_revoked,
            # Only real devices report their own counts.
            first_limit=MOST_TIMES if os.environ.get(CLIENTS_FOLDER) else math.inf,
            scores=(*task.group_scores, *task.scores),
            spend=float(SPENDS.get(settings.privacy__spend, settings.privacy__spend)),
            units=price_of_round(settings, method),
            accounts=accounts.items(),
        )
        model = _run_rounds(settings, module, recorder, rounds, on_round)
        # The run is over once it has its final model: what belongs to a finished run comes before.
        if settings.held_out_clients and settings.test_share:
            score_held_out(method, model)
        recorder.finish(model)
        found: dict[str, object] = {}
        if tested_on_training := sorted(task.tested_on_training()):
            found["tested-on-training"] = tested_on_training
        if find_task(settings.task).reads and not deployed:
            found[COUNTS] = {
                name: task.splits(name).count(task.classes or 0) for name in task.clients
            }
        if found:
            EXAMPLES.write(path, {**EXAMPLES.read(path), **found})
    return path


def make_model(
    settings: Settings, task: Task, path: Path, clients: ModelMakers
) -> tuple[Module, Made]:
    """Return the task's model, with the initial weights if the run in a folder has not begun.

    Also return how it is made. Raise FairbloomError if it differs each time it is made, or from
    that with which the run began.
    """
    form = form_of_task(task) or clients.form
    module = make_checked(task, form)
    made = Made.of(module, form, task.output)
    began_with = MADE.read(path)
    if began_with is not None and (
        explained := made.explain_difference(began_with, f"the run in {path}")
    ):
        raise RunFolderError(f"{explained}, and begin again in another folder (--out)")
    if settings.initial_weights and not list_checkpoints(CHECKPOINTS.path_in(path)):
        load_initial_weights(module, settings.initial_weights)
    return module, made


def log_kept_parts(method: FairStrategy, module: Module, output: str) -> None:
    """Log which parameters each client keeps, if a word such as `head` names them."""
    words = method.personal_parameters
    if not PARTS.keys().isdisjoint(split_words(words)):
        log.warning(
            "personal-parameters = %r: each client keeps %s",
            words,
            join_first(personal_arrays(module, words, output)),
        )


def check_accounts(
    settings: Settings, method: FairStrategy, accounts: Mapping[str, AccountStatus]
) -> None:
    """Raise SettingsError for what clients with a privacy account would refuse in each round."""
    if settings.privacy__mode == SIMULATED:
        given = settings.privacy__epsilon
        if "=" in given and (unknown := sorted(split_pairs(given, EXAMPLE).keys() - accounts)):
            raise SettingsError(
                f"privacy.epsilon has {join_names(unknown)}: the run has no such client"
            )
        log.warning(SIMULATED_NOISE)
    if not accounts:
        return
    names = join_names(sorted(accounts))
    try:
        if not settings.test_share:
            raise ReportableError(
                "test-share = 0: a privacy account has fixed the split of its rows, and its steps:"
                " leave test-share out, and use the model of the run"
            )
        if settings.early_stopping or settings.best_model != SETTINGS["best-model"].default:
            raise ReportableError(
                "early-stopping and best-model need scores of more than the last round, and privacy"
                " accounts have few tests: leave them out"
            )
        if settings.score not in ("", ACCURACY, LOSS):
            raise ReportableError(
                f"score = {settings.score!r}: privacy accounts report only accuracy and loss: set"
                " score = accuracy"
            )
        check_settings(settings)
        check_terms(replace(method.terms(1), measure=tuple(sorted(method.needs))))
    except ReportableError as error:
        raise SettingsError(f"{error}; the clients with an account: {names}") from error


def price_of_round(settings: Settings, method: FairStrategy) -> int:
    """Return the least units that a round costs a client's privacy account."""
    terms = method.terms(1)
    steps = 1 if terms.full_batch_step else terms.local_steps or settings.local_epochs
    price = STEP_UNITS * steps
    if LOSS_BEFORE in method.needs:
        price += LOSS_UNITS
    return price


def compare_budgets(
    settings: Settings,
    method: FairStrategy,
    accounts: Mapping[str, AccountStatus],
    *,
    refuses: bool,
) -> None:
    """Log for which clients' accounts the run is too long, and who will have no score.

    With `refuses`, raise SettingsError for a run that is too long, unless its settings accept that.
    """
    price = price_of_round(settings, method)
    asked = math.ceil(settings.num_rounds * settings.fraction_train)
    training = method.training_clients or accounts
    rounds = {name: int(accounts[name].units) // price for name in accounts if name in training}
    if short := sorted(name for name in rounds if rounds[name] < asked):
        words = (
            f"the run has about {asked} rounds for each client, of at least {price} units of a"
            f" privacy account, and these accounts do not last: {join_first(short, 5)}; that of"
            f" {short[0]} lasts for {rounds[short[0]]}"
        )
        if refuses and not settings.privacy__spend:
            raise SettingsError(
                f"{words}. Lower num-rounds, or accept that they are left out later: privacy.spend"
                " = lowest, by fairbloom deploy submit --spend lowest"
            )
        log.warning("%s; they are left out then", words)
    if unscored := sorted(name for name in accounts if not accounts[name].reports):
        log.warning(
            "%s will have no score: no test report of the privacy account is left",
            join_first(unscored, 5),
        )


def _run_rounds(
    settings: Settings, module: Module, recorder: RunRecorder, rounds: Rounds, on_round: OnRound
) -> Model:
    """Run the remaining rounds; return the final model."""
    log.info("run folder: %s", recorder.path)
    method = recorder.method
    score = recorder.score
    model = _resume(recorder, module)
    if not method.run_state.finished_rounds:
        method.enter(method.run_state.charged(rounds.accounts, {}))
    write_accounts(recorder, rounds)
    method.summary()
    if (usual := usual_learning_rate(settings)) is not None:
        log.warning(
            "learning-rate %g suits SGD; %s usually needs less, for example %g",
            settings.learning_rate,
            settings.optimizer,
            usual,
        )

    def measure(number: int) -> list[str]:
        # These metrics are only recorded. A loss costs a pass over the data, so that only evaluated
        # rounds ask for losses, if they are not known from the round before.
        if not rounds.evaluates(number):
            return []
        metrics = {
            LOSS_BEFORE: not recorder.knows_losses(rounds.clients.online(1)),
            DISPARITY_HARD: DISPARITY in method.needs,
        }
        return [metric for metric, is_needed in metrics.items() if is_needed]

    with suggest_shorter_steps(settings, rounds):
        started = time.perf_counter()
        remaining = rounds.run(model, measure=measure, measure_after=[TRAIN_LOSS])
        if recorder.stopped:  # the process was lost between the last round and the final model
            remaining = iter(())
        for finished in remaining:
            if not recorder.in_process:
                record_known(recorder.path, rounds.known)
            row = recorder.record(finished, seconds=time.perf_counter() - started)
            write_accounts(recorder, rounds)
            try:
                on_round(RecordedRound.of(finished, row, score, method.serves))
            except StopRun as stop:
                recorder.stopped = stop.reason
            last = finished.number == settings.num_rounds or bool(recorder.stopped)
            # Rounds that share a checkpoint share the log line of the last one.
            if last or recorder.saved == finished.number:
                log.info(
                    "round %d is finished%s",
                    finished.number,
                    summarize_row(row, score, method.serves),
                )
            model = finished.arrays
            if recorder.stopped:
                break
            started = time.perf_counter()
        recorder.stopped = recorder.stopped or rounds.stopped
    return rounds.mean_model(model)


def write_accounts(recorder: RunRecorder, rounds: Rounds) -> None:
    """Write down the last status of each client's privacy account, if there are any."""
    if rounds.accounts:
        clients = {name: status._asdict() for name, status in sorted(rounds.accounts.items())}
        PRIVACY.write(recorder.path, {"simulated": recorder.in_process, "clients": clients})


def _resume(recorder: RunRecorder, module: Module) -> Model:
    """Return the model that the next round begins with; restore the state of a continued method."""
    fresh = arrays_of(module.state_dict())
    with explain_other_state(CHECKPOINTS.path_in(recorder.path)):
        continued = recorder.resume()
        if continued is None:
            return fresh
        model, state = continued
        if forms_of(model) != forms_of(fresh):
            raise ValueError("its model has other arrays than the task's")
        recorder.method.load_state_dict(state)
    return model


@contextmanager
def suggest_shorter_steps(settings: Settings, rounds: Rounds) -> Iterator[None]:
    """Add the settings that keep clients' steps short to the error of a diverged run."""
    try:
        yield
    except (NothingLearnedError, BrokenModelError) as error:
        if isinstance(error, NothingLearnedError) and not rounds.diverged:
            raise
        clip = text_if(not settings.gradient_clip, " and, if that is not enough, gradient-clip = 1")
        raise type(error)(
            f"{error}. As a rule, numbers that are not finite come from steps that are too long:"
            f" begin a new run with a learning-rate below {settings.learning_rate:g}{clip}"
        ) from error


def keep_schema(settings: Settings, folder: Path) -> Settings:
    """Return the settings with the schema that the run in a folder began with, if none is given.

    So a run that continues keeps what was inferred when it began, the positive class for example.
    """
    if settings.schema_ or not find_task(settings.task).infer:
        return settings
    # Not as the setting, by which clients know their states.
    return settings.model_copy(update={RECORDED_SCHEMA: SCHEMA.read(folder)})


def choose_run_folder(settings: Settings) -> Path:
    """Return the absolute run folder: `out`, or a folder under runs/ named after the settings."""
    if settings.out:
        return Path(settings.out).absolute()
    config = {**settings.run_config(), "data-dir": resolve(settings.data_dir)}
    free = marked(Mark.FREE, Mark.LIMIT, Mark.EXTENDABLE)
    # Without defaults: a setting that is new in a later version does not change a run's name.
    usual = default_config()
    letters = digest({k: v for k, v in config.items() if k not in free and v != usual.get(k)})
    # Not every file system allows a colon in a name.
    named = f"{settings.task}-{settings.method}".replace(":", ".")
    return Path("runs", f"{named}-seed{settings.seed}-{letters}").absolute()
