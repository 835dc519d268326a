"""The ServerApp: a run from settings to run folder, with any engine."""

import math
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch.nn import Module

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.accounts import (
    SPENDS,
)
from fairbloom.protocol.names import (
    ARRAYS,
    ASK,
    CLIENT,
    CLIENTS_FOLDER,
    CONFIG as MESSAGE_CONFIG,
    DISPARITY,
    DISPARITY_HARD,
    LOSS_BEFORE,
    OFF,
    PERSONAL,
    PROTOCOL as PROTOCOL_KEY,
    RELEASE,
    RELEASE_LIMIT,
    TAKE,
    TRAIN_LOSS,
)
from fairbloom.protocol.schedule import learning_rate_in
from fairbloom.protocol.scores import put_first
from fairbloom.protocol.settings import (
    split_names,
)
from fairbloom.protocol.terms import Terms
from fairbloom.protocol.version import PROTOCOL
from fairbloom.rounds.arrays import Model, forms_of
from fairbloom.rounds.courier import courier_of
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.quorum import Quorum
from fairbloom.rounds.records import record_of
from fairbloom.rounds.round import StopRun
from fairbloom.rounds.screening import BrokenModelError
from fairbloom.rounds.sums import Summing
from fairbloom.tasks import find_task
from fairbloom.tasks.models import (
    arrays_of,
)
from fairbloom.tasks.models.weights import (
    describe_rows,
    digest_weights,
)
from fairbloom.tasks.optimizers import usual_learning_rate
from fairbloom.tasks.score import has_two_classes
from fairbloom.text import text_if

from .checkpoint import list_checkpoints
from .log_lines import summarize_row
from .plan import (
    ClientsOf,
    Engine,
    Place,
    Plan,
    adapt_method,
    check_federation,
    check_plan,
    choose_run_folder,
    decide_federation,
    decide_plan,
    price_of_round,
)
from .polling import PollingGrid
from .progress import announce
from .run_folder.csv_rows import Validation
from .run_folder.errors import explain_other_state, name_app_option
from .run_folder.files import (
    BEST,
    CHECKPOINTS,
    COUNTS,
    EXAMPLES,
    KNOWN,
    MODEL,
    PRIVACY,
    ROUNDS,
    log_finished,
    record_known,
    write_initial_files,
)
from .run_folder.group_rows import Grouped
from .run_folder.lock import locked_folder
from .run_folder.recorded import OnRound, RecordedRound, ignore
from .run_folder.recorder import RunRecorder
from .run_folder.run_tables import Records
from .run_folder.stopping import NEVER, EarlyStopping
from .run_folder.values import RunStart
from .settings import Settings
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
    courier = courier_of(grid)
    with name_app_option("out", at_once=courier.simulated):
        settings = Settings.of(context.run_config)
        settings.check_deployed()
        if not courier.simulated:
            settings.check_schema()
        folder = choose_run_folder(settings)
        if not courier.simulated and not list_checkpoints(CHECKPOINTS.path_in(folder)):
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
            on_wait=courier.note_wait,
            enrolled=drop_revoked,
        )
        patient = PollingGrid(courier, min_replies=settings.min_replies, quorum=quorum)

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

        courier.save(0)

        def save(recorded: RecordedRound) -> None:
            courier.save(recorded.number)

        federate(settings, wait_for_them, save, deployed=True)
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
    number = int(entry.read_about(folder).get("round", last))
    terms = Terms(server_round=number)
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


def federate(
    settings: Settings,
    clients_of: ClientsOf,
    on_round: OnRound = ignore,
    *,
    deployed: bool = False,
    engine: Engine | None = None,
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
    place = Place.of(settings, deployed=deployed)
    if place.has_whole_run(settings):
        if not settings.release:  # else there is something to do: its model goes out
            log_finished(place.path)
        return place.path
    federation = decide_federation(place, settings, clients_of, engine)
    check_federation(federation)
    plan = decide_plan(federation)
    federation.clients.announce(plan.made.encode().decode())
    check_plan(plan)
    with locked_folder(place.path, wait=deployed), closing(open_recorder(plan)) as recorder:
        if recorder.finished:  # the process that was waited for has finished the run
            log_finished(place.path)
            return place.path
        write_initial_files(place.path, start_of(plan))
        adapt_method(plan)
        rounds = build_rounds(plan)
        model = run_rounds(plan, recorder, rounds, on_round)
        # The run is over once it has its final model: what belongs to a finished run comes before.
        if settings.held_out_clients and settings.test_share:
            score_held_out(plan.method, model)
        recorder.finish(model)
        note_examples(plan)
    return place.path


def open_recorder(plan: Plan) -> RunRecorder:
    """Return the recorder of the run in its folder, which is laid out if it is new."""
    settings, task, score, place = plan.settings, plan.task, plan.score, plan.place
    has_accounts = bool(plan.federation.accounts)
    noisy = place.deployed and has_accounts
    validation = None
    stopping = NEVER
    if settings.validation_share:
        validation = Validation.of(score, measure=plan.measure)
    if settings.early_stopping:
        by = Validation.of(score, plan.method.serves, plan.measure)
        stopping = EarlyStopping(settings.early_stopping, by)
    records = Records(
        config=settings.run_config(),
        about={"rows": describe_rows(settings, task.schema, place.data)},
        scores=[replace(each, noisy=noisy) for each in put_first(task.scores, score)],
        in_process=not place.deployed,
        validation=validation,
        best_by=plan.measure,
        stopping=stopping,
        groups=Grouped.of(task),
        two_classes=has_two_classes(task),
        accounts=has_accounts,
    )
    return RunRecorder(place.path, plan.method, records, keep=plan.federation.clients.keep)


def start_of(plan: Plan) -> RunStart:
    """Return what the folder of a new run records of its task, its data and its code."""
    is_own = find_task(plan.settings.task).is_user_defined
    place = plan.place
    choice = plan.federation.choice
    return RunStart(plan.task, place.data, choice, place.deployed, is_own, plan.made)


def build_rounds(plan: Plan) -> Rounds:
    """Return the rounds of the run, with its clients."""
    settings, task, federation = plan.settings, plan.task, plan.federation
    known: Collection[str] = ()
    # clients.csv does not name clients without tests
    if plan.place.deployed or not settings.test_share:
        known = record_known(plan.place.path, federation.clients.online(1)).known
    spend = float(SPENDS.get(settings.privacy__spend, settings.privacy__spend))
    summing = None
    if settings.privacy__honest > 1:
        summing = Summing(
            honest=settings.privacy__honest,
            weight_cap=settings.weight_cap,
            num_rounds=settings.num_rounds,
            spend=spend,
            learning_rate=partial(learning_rate_in, settings),
            accounts=federation.accounts,
        )
    return Rounds(
        plan.method,
        federation.clients,
        settings.num_rounds,
        known,
        enrolled=drop_revoked,
        # Only real devices report their own counts.
        first_limit=MOST_TIMES if os.environ.get(CLIENTS_FOLDER) else math.inf,
        scores=(*task.group_scores, *task.scores),
        spend=spend,
        units=price_of_round(settings, plan.method),
        accounts=federation.accounts.items(),
        summing=summing,
    )


def note_examples(plan: Plan) -> None:
    """Write down who is tested on training examples, and the parts of files in this process."""
    task, place = plan.task, plan.place
    found: dict[str, object] = {}
    if tested_on_training := sorted(task.tested_on_training()):
        found["tested-on-training"] = tested_on_training
    if find_task(plan.settings.task).reads and not place.deployed:
        classes = task.classes or 0
        found[COUNTS] = {name: task.splits(name).count(classes) for name in task.clients}
    if found:
        EXAMPLES.write(place.path, {**EXAMPLES.read(place.path), **found})


def run_rounds(plan: Plan, recorder: RunRecorder, rounds: Rounds, on_round: OnRound) -> Model:
    """Run the remaining rounds; return the final model."""
    log.info("run folder: %s", recorder.path)
    settings, method, score = plan.settings, plan.method, recorder.records.score
    model = _resume(recorder, plan.module)
    if not method.run_state.finished_rounds:
        rounds.note_first_accounts()
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
            if not recorder.records.in_process:
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
        PRIVACY.write(recorder.path, {"simulated": recorder.records.in_process, "clients": clients})


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
