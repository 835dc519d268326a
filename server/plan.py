"""What a run is before its first round: its folder, clients and method, and what they learn.

`server.app.federate` decides and checks it in this order, what costs little first: a run that is
refused has loaded no data.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from torch.nn import Module

from fairbloom.errors import ReportableError, join_names
from fairbloom.logs import log
from fairbloom.protocol.accounts import LOSS_UNITS, STEP_UNITS, AccountStatus, largest_loss
from fairbloom.protocol.names import ACCURACY, LOSS, LOSS_BEFORE, RECORDED_SCHEMA
from fairbloom.protocol.parameters import split_pairs
from fairbloom.protocol.patterns import split_words
from fairbloom.protocol.private import (
    EXAMPLE,
    SIMULATED,
    SIMULATED_NOISE,
    check_settings,
    check_terms,
)
from fairbloom.protocol.scores import Score
from fairbloom.protocol.settings import SETTINGS, Mark, SettingsError, digest, marked
from fairbloom.protocol.sums import FEWEST_PARTNERS, check_asked, check_work
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import ModelMakers
from fairbloom.rounds.method import Method
from fairbloom.strategies import FairStrategy
from fairbloom.tables.groups import find_two_groups
from fairbloom.tasks import Task, digests, find_task, load_task
from fairbloom.tasks.models import (
    check_arrays,
    float_buffers,
    frozen_parameters,
    personal_arrays,
    shared_parameters,
)
from fairbloom.tasks.models.made import Made, form_of_task, make_checked
from fairbloom.tasks.models.personal import PARTS
from fairbloom.tasks.models.weights import check_rows, load_initial_weights
from fairbloom.tasks.score import check_measured, decide_score, log_positive
from fairbloom.text import join_first

from .checkpoint import list_checkpoints
from .run_folder.checks import check_folder, check_same_data
from .run_folder.errors import RunFolderError
from .run_folder.files import CHECKPOINTS, CONFIG, MADE, PRIVACY, SCHEMA, is_finished
from .settings import Settings, default_config, find_grown, resolve

# Returns, for a method, the clients that train and evaluate.
ClientsOf = Callable[[Method], ModelMakers]

# Returns, for a method, other clients once the fraction of the run is known, and how they are
# computed, in plain values for the record of the run.
Engine = Callable[[Method], tuple[ModelMakers, Mapping[str, object]]]


@dataclass(frozen=True)
class Place:
    """Where a run is recorded, and what its data are.

    `data` has digests of the files, by name; with `deployed` clients it is empty.
    """

    path: Path
    data: Mapping[str, str]
    deployed: bool

    @classmethod
    def of(cls, settings: Settings, *, deployed: bool) -> Self:
        """Return the place of a run with these settings, which are refused if it holds another."""
        place = cls(choose_run_folder(settings), {} if deployed else digests(settings), deployed)
        check_folder(place.path, settings.run_config())
        check_same_data(place.path, place.data)
        return place

    def has_whole_run(self, settings: Settings) -> bool:
        """Return whether the run of these settings is finished, and is not extended."""
        if not is_finished(self.path):
            return False
        return not find_grown(CONFIG.read(self.path).settings, settings.run_config())


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Who takes part in a run.

    Attributes
    ----------
    settings
        With the fraction of the run.
    choice
        How the clients are computed, in plain values; empty for deployed clients.
    accounts
        The privacy accounts of the clients that have one, as the run began with them.
    is_known
        Whether an earlier process has begun the run with these accounts.
    """

    place: Place
    settings: Settings
    method: FairStrategy
    clients: ModelMakers
    choice: Mapping[str, object]
    accounts: Mapping[str, AccountStatus]
    is_known: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A federation, and what it learns.

    The `settings` have the score, `module` the initial weights of a new run, and `made` how it is
    made.
    """

    federation: Federation
    settings: Settings
    task: Task
    score: Score
    module: Module
    made: Made

    @property
    def place(self) -> Place:
        """Where the run is recorded."""
        return self.federation.place

    @property
    def method(self) -> FairStrategy:
        """The method, which is adapted to model and clients."""
        return self.federation.method

    @property
    def measure(self) -> str:
        """The measure over clients that chooses the best model."""
        return self.settings.best_model.replace("-", "_")


def decide_federation(
    place: Place, settings: Settings, clients_of: ClientsOf, engine: Engine | None
) -> Federation:
    """Return who takes part: the method has the fraction of the run, and the engine its clients."""
    method = settings.strategy()
    clients = clients_of(method)
    settings = settings.decide_fraction(clients.online(1), CONFIG.read(place.path).settings)
    method.adapt(fraction_train=settings.fraction_train)
    choice: Mapping[str, object] = {}
    if engine is not None:
        clients, choice = engine(method)
    # A first round that is asked again is asked in the same words: by what was known then.
    known = PRIVACY.read(place.path).get("clients", {}) if place.deployed else {}
    accounts = {name: AccountStatus(**each) for name, each in known.items()}
    return Federation(
        place=place,
        settings=settings,
        method=method,
        clients=clients,
        choice=choice,
        accounts=accounts or clients.accounts,
        is_known=bool(known),
    )


def check_federation(federation: Federation) -> None:
    """Raise SettingsError for what privacy accounts refuse, and log for whom they do not last."""
    settings, method, accounts = federation.settings, federation.method, federation.accounts
    check_accounts(settings, method, accounts)
    if settings.privacy__honest > 1:
        check_partners(settings, method, federation.clients.online(1), accounts)
    is_new = federation.place.deployed and not federation.is_known
    compare_budgets(settings, method, accounts, refuses=is_new)


def decide_plan(federation: Federation) -> Plan:
    """Return what the federation learns: load the task, choose the score and make the model."""
    place = federation.place
    settings = federation.settings
    task = load_task(keep_schema(settings, place.path))
    if settings.initial_weights:
        check_rows(settings, task.schema, None if place.deployed else place.data)
    recorded = str(CONFIG.read(place.path).settings.get("score", ""))
    score = decide_score(settings, task, recorded, deployed=place.deployed)
    settings = settings.model_copy(update={"score": score.name})
    module, made = make_model(settings, task, place.path, federation.clients)
    return Plan(
        federation=federation,
        settings=settings,
        task=task,
        score=score,
        module=module,
        made=made,
    )


def check_plan(plan: Plan) -> None:
    """Raise FairbloomError if the task lacks what the method measures; log its positive class."""
    method, task = plan.method, plan.task
    if method.compares_groups:
        find_two_groups(task.groupings, task.classes)
    check_measured(plan.settings, method.needs, task)
    comparing = [plan.settings.method] if method.compares_groups else []
    log_positive(task, comparing, plan.settings.schema_)


def adapt_method(plan: Plan) -> None:
    """Tell the method which arrays the model has, and the largest loss; log what clients keep."""
    method, module, task = plan.method, plan.module, plan.task
    check_arrays(module)
    declare_arrays(method, module, task.output)
    if plan.federation.accounts:
        method.adapt(largest_loss=largest_loss(task.classes or 2))
    log_kept_parts(method, module, task.output)


def declare_arrays(method: FairStrategy, module: Module, output: str) -> None:
    """Tell a method which arrays of a model are buffers, shared, or never sent in updates.

    `output` is the task's.
    """
    own = personal_arrays(module, method.personal_parameters, output)
    common = [name for name in float_buffers(module) if name not in own]
    method.adapt(
        buffers=tuple(common),
        shared=shared_parameters(module),
        frozen=(*frozen_parameters(module), *own),
    )


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
    if began_with is not None:
        explained = made.explain_difference(began_with, f"the run in {path}")
        if explained:
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
        _check_tests(settings)
        check_settings(settings)
        measured = tuple(sorted(method.needs))
        asked = replace(method.terms(1), measure=measured)
        check_terms(asked)
        if settings.privacy__honest > 1:
            _check_shared(settings, method, asked)
    except ReportableError as error:
        raise SettingsError(f"{error}; the clients with an account: {names}") from error


def _check_shared(settings: Settings, method: FairStrategy, asked: Terms) -> None:
    """Raise ReportableError for what clients that share their noise refuse."""
    if not method.sums:
        raise ReportableError(
            f"method = {settings.method!r} weighs by more than rows and losses, and with shared"
            " noise the server sees no update: set method = term, which weighs by losses, or fedavg"
        )
    if settings.fraction_train != 1.0:
        raise ReportableError(
            f"fraction = {settings.fraction_train}: with shared noise, every client is in each"
            " round: set fraction = 1"
        )
    check_work(settings)
    check_asked(asked)


def check_partners(
    settings: Settings,
    method: FairStrategy,
    names: Sequence[str],
    accounts: Mapping[str, AccountStatus],
) -> None:
    """Raise SettingsError unless these clients of a federation can share their noise."""
    partners = method.training_clients or names
    if without := sorted(set(partners).difference(accounts)):
        raise SettingsError(
            f"privacy.honest = {settings.privacy__honest}: all clients that train share their"
            f" noise, and {join_names(without)} has no privacy account: open one, or leave it out"
            " by training-clients"
        )
    fewest = max(FEWEST_PARTNERS, settings.privacy__honest)
    if len(partners) < fewest:
        raise SettingsError(
            f"privacy.honest = {settings.privacy__honest}: {len(partners)} clients train, and at"
            f" least {fewest} must share their noise: lower it, or leave it out"
        )


def _check_tests(settings: Settings) -> None:
    """Raise ReportableError for tests that no privacy account reports."""
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


def price_of_round(settings: Settings, method: FairStrategy) -> int:
    """Return the least units that a round costs a client's privacy account."""
    if settings.privacy__honest > 1:  # one step, at the price that the strictest owner sets
        least = 1
        if LOSS_BEFORE in method.needs:
            least += LOSS_UNITS
        return least
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
    Accounts that do not pay for one round are named only.
    """
    price = price_of_round(settings, method)
    asked = math.ceil(settings.num_rounds * settings.fraction_train)
    training = method.training_clients or accounts
    rounds = {name: int(accounts[name].units) // price for name in accounts if name in training}
    empty = sorted(name for name in rounds if not rounds[name])
    if empty:  # no number of rounds suits them, and whoever claims so must not end the run of all
        log.warning(
            "%s cannot train: the privacy account has too few units left for one round, of at"
            " least %d units",
            join_first(empty, 5),
            price,
        )
    if short := sorted(name for name in rounds if 0 < rounds[name] < asked):
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
