"""The settings of a run, checked once before any client works."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.accounts import SPENDS
from fairbloom.protocol.attacks import share_in
from fairbloom.protocol.conditions import find_fault
from fairbloom.protocol.parameters import OptionError, Parameter, parameters_of
from fairbloom.protocol.rules import check_rule
from fairbloom.protocol.scores import FURTHER
from fairbloom.protocol.settings import (
    SETTINGS,
    Given,
    Mark,
    RunSettings,
    SettingsError,
    Value,
    key_of,
    marked,
    split_names,
    usual_fraction,
)
from fairbloom.rounds.compatibility import CLIENT_MOMENTUM, OTHER_STEPS, PLAIN_SGD, WEIGHT_DECAY
from fairbloom.rounds.options import OPTIONS
from fairbloom.strategies import METHODS, FairStrategy, canonical, find_method
from fairbloom.strategies.named import build, method_parameters, owner_of, title
from fairbloom.strategies.torchjd import TORCHJD
from fairbloom.system.files import expand_home
from fairbloom.tasks import TASKS, find_task
from fairbloom.tasks.optimizers import arguments_of, check_optimizer, optimizer_in
from fairbloom.text import text_if

# The value, in a run config, of a parameter that has no default and is not set: Flower requires
# every key to be there.
UNSET = ""

# What settings need of each other, by their names in Python.
CONDITIONS = {each.argument: each.conditions for each in SETTINGS.values()}

# The share of clients that is one client, as shares are rounded up to whole clients.
ONE_CLIENT = 1e-12


def parameters(*, task: str = "", methods: Iterable[str] = ()) -> Mapping[str, Parameter]:
    """Return the parameters of all methods and tasks, user-defined ones too, by key."""
    infos = [*TASKS.values()]
    if task:
        infos.append(find_task(task))
    named = [find_method(name) for name in methods if not name.startswith(TORCHJD)]
    classes = {method.__name__.lower(): method for method in (*METHODS.values(), *named)}
    of_methods = (
        parameter for name, method in classes.items() for parameter in parameters_of(name, method)
    )
    of_tasks = (parameter for info in infos for parameter in info.settings)
    return {parameter.key: parameter for parameter in (*of_methods, *of_tasks)}


# The settings -------------------------------------------------------------------------------------


class Settings(RunSettings):
    """The settings of one run, all known and compatible.

    `parameters` has those of its task and method only.
    """

    @classmethod
    def of(cls, config: RunSettings | Mapping[str, Any]) -> "Settings":
        """Return the settings of a flat run config.

        Raise FairbloomError for unknown keys and bad or missing values.
        """
        run = RunSettings.of(config)
        method = canonical(run.method)
        known = parameters(task=run.task, methods=[method])
        for key, value in run.parameters.items():
            if key not in known:
                chosen = {owner_of(method), run.task}
                nearest_first = sorted(known, key=lambda each: each.partition(".")[0] not in chosen)
                there = [*SETTINGS, *nearest_first]
                same = next(
                    (f"did you mean {each}?" for each in there if each.endswith(f".{key}")), ""
                )
                hint = same or did_you_mean(key, there).strip() or "fairbloom settings lists them"
                raise SettingsError(f"unknown setting {key} = {value!r}; {hint}")
        unset = {
            key
            for key, each in known.items()
            if each.default is None and run.parameters.get(key) == UNSET
        }
        given = {key: value for key, value in run.given().items() if key not in unset}
        info = find_task(run.task)
        setup = info.setup(run)
        for key in given if setup.data_dir and not info.reads else ():
            owner = key.partition(".")[0]
            if owner in TASKS and TASKS[owner].reads:
                raise SettingsError(
                    f"data-dir = {setup.data_dir!r} is for {key}, which is of task {owner}: add"
                    f" --task {owner}"
                )
        info.check(setup)
        info.check_parameters(given)
        info.check_schema(setup, given, run.schema_)
        resolved = {
            "method": method,
            "model": setup.model,
            "partition": setup.partition,
            # A task with clients of its own leaves `clients` at 0; a deployed run may still wait
            # for this many.
            "clients": setup.clients or run.clients,
            "optimizer": optimizer_in(run),
            "schema": setup.schema_,
        }
        # Clients must measure it.
        if run.score in FURTHER and run.score not in split_names(run.scores):
            resolved["scores"] = ",".join([*split_names(run.scores), run.score])
        settings = cls.model_validate({**given, **resolved})
        settings.check_conditions()
        settings.check_texts()
        settings.check_training()
        return settings

    def check_conditions(self) -> None:
        """Raise SettingsError for a setting that does not fit the others, or has no effect."""
        values = {**vars(self), "training_clients": split_names(self.training_clients)}
        changed = {
            each.argument: value
            for each in SETTINGS.values()
            if (value := self.value_of(each)) != each.default
        }
        fault = find_fault(CONDITIONS, changed, values)
        if fault is not None:
            raise SettingsError(fault.written(key_of))

    def check_texts(self) -> None:
        """Raise SettingsError for a text that is neither a word nor a number that is allowed."""
        is_number = re.fullmatch("[1-9][0-9]{0,14}", self.privacy__spend)
        if self.privacy__spend not in SPENDS and not is_number:
            raise SettingsError(
                f"privacy.spend = {self.privacy__spend!r}: write all, lowest, or a number of"
                " units, as in 100"
            )
        share = share_in(self.attackers)
        if share is not None and not 0 < share < 1:
            raise SettingsError(
                f"attackers = {self.attackers!r}: a share must be above 0 and below 1"
            )

    def check_training(self) -> None:
        """Raise FairbloomError if clients cannot train so, or the method forbids it."""
        check_optimizer(self)
        method = self.strategy()
        if PLAIN_SGD in method.requires and (beyond := self.beyond_plain_sgd()):
            method.check_fit(OTHER_STEPS, beyond.key, repr(beyond.value))
        if CLIENT_MOMENTUM in method.all_needs and "momentum" not in arguments_of(
            optimizer_in(self)
        ):
            method.check_fit(OTHER_STEPS, "optimizer", self.optimizer)
        if self.weight_decay:
            method.check_fit(WEIGHT_DECAY, "weight-decay", self.weight_decay)
        terms = method.terms(1)
        if self.held_out_clients and (method.serves == "personal" or terms.keeps_arrays):
            raise SettingsError(
                f"held-out-clients = {self.held_out_clients:g}: {title(self.method)} trains no"
                " whole common model, which clients that are not in training need: leave it out, or"
                " take another method, without personal-parameters"
            )
        by_method = terms.dynamic_alpha is not None or (
            terms.control_variates and not self.control_variates
        )
        try:
            check_rule(self, terms)
        except FairbloomError as error:
            blamed = text_if(by_method, f"method = {self.method!r}: ")
            raise SettingsError(f"{blamed}{error}") from error

    def check_deployed(self) -> None:
        """Raise SettingsError if deployed clients cannot run with these settings."""
        for parameter in SETTINGS.values():
            given = Given(parameter.key, self.value_of(parameter))
            only = parameter.only_in_process
            if only is not None and given.value != parameter.default:
                remedy = text_if(only.remedy, f", {only.remedy}")
                raise SettingsError(
                    f"{given}: {only.why}: leave it out with deployed clients{remedy}, or use"
                    " fairbloom run"
                )

    def check_schema(self) -> None:
        """Raise SettingsError if the task needs a schema on real nodes, and it is missing."""
        if find_task(self.task).infer and not self.schema_:
            raise SettingsError(
                f"task {self.task} needs a schema on real nodes, as no server sees their files:"
                " fairbloom data DIR --write-schema FILE infers one from files like theirs; name"
                " it by --schema FILE"
            )

    def strategy(self, **options: Any) -> FairStrategy:
        """Return the method with its parameters and the common options; `options` add to them."""
        given = self._method_parameters()
        # Options at their defaults are left out: a method may refuse an option that it sets itself.
        common: dict[str, Any] = {
            name: value
            for name, option in OPTIONS.items()
            if option.key in SETTINGS
            and (value := getattr(self, name)) != SETTINGS[option.key].default
        }
        if not self.test_share:
            common["fraction_evaluate"] = 0.0
        unset = {"weighting": self.weighting, "server_optimizer_lr": self.server_optimizer_lr}
        common |= {
            **{name: value for name, value in unset.items() if value},
            "fraction_train": self.fraction_train,
            "min_available_nodes": max(1, self.min_clients),
            "enrolled_sizes": self.enrolled_sizes,
            "training_clients": split_names(self.training_clients),
        }
        try:
            known = method_parameters(self.method)
            own = {known[key].argument: value for key, value in given.items()}
            return build(self.method, common | options | own)
        except ValueError as error:  # a constructor refused a parameter
            words = str(error)
            if isinstance(error, OptionError):
                words = error.fault.written(key_of)
            values = ", ".join(f"{key} = {value!r}" for key, value in given.items())
            if values:
                words += f" ({values})"
            raise SettingsError(words) from error

    @property
    def fraction_train(self) -> float:
        """The share of clients that the method draws.

        It is one client if data are pooled, and all clients while the fraction is undecided.
        """
        if self.pooled:
            return ONE_CLIENT
        return self.fraction or 1.0

    def decide_fraction(self, online: Collection[str], recorded: Mapping[str, Any]) -> Self:
        """Return the settings with a fraction: if unset, 1 for at most nine `online` clients.

        A continued run keeps the fraction of its `recorded` settings.
        """
        if self.fraction or self.pooled:
            return self
        training = set(split_names(self.training_clients)).intersection(online) or online
        return self.model_copy(
            update={"fraction": recorded.get("fraction") or usual_fraction(len(training))}
        )

    def run_config(self) -> dict[str, Value]:
        """Return the flat run config, with the parameters of the chosen task and method."""
        fields = {
            key: value for key, value in super().run_config().items() if key not in self.parameters
        }
        return (
            fields
            | find_task(self.task).check_parameters(self.parameters)
            | self._method_parameters()
        )

    def _method_parameters(self) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for key, parameter in method_parameters(self.method).items():
            value = self.parameters.get(key, parameter.default)
            if value is None:
                raise SettingsError(
                    f"method = {self.method!r} needs {key} ({parameter.range}:"
                    f" {parameter.description.rstrip('.')}), which has no default: give it by --set"
                    f" {key}=…"
                )
            values[key] = parameter.checked(value)
        return values


def check_used(
    given: Mapping[str, Value], methods: Collection[str], task: str, *, deployed: bool = False
) -> None:
    """Raise SettingsError if a given setting has no effect with this task and these methods.

    If clients come with the data, only `deployed` runs use `clients`: they wait for that many.
    """
    info = find_task(task)
    none_to_choose = {
        "model": not info.models and not info.is_user_defined,
        "partition": not info.partitions and not info.is_user_defined,
        "clients": bool(info.reads) and not deployed,
        "verify-data": not info.files,
        "test-share": bool(info.held_out) or given.get(f"{info.name}.test") == "official",
    }
    partition = info.setup(RunSettings.of(given)).partition
    named = ", ".join(map(repr, methods))
    owners = {info.name, *map(owner_of, methods)}
    of_others = {
        key: owner for key in given if "." in key and (owner := key.partition(".")[0]) not in owners
    }
    idle: list[tuple[str, str]] = []
    if given.get("pooled"):
        of_one = " with pooled = true, as one client a round trains: leave it out"
        idle += [(key, of_one) for key in ("fraction", "training-clients", "prior")]
    if not deployed:
        of_all = " in one process, where every client answers: leave it out"
        idle += [(key, of_all) for key in marked(Mark.DEPLOYED)]
    for kind, known, chosen in (("task", TASKS, repr(task)), ("method", METHODS, named)):
        idle += [
            (key, f" with {kind} = {chosen}: leave it out, or set {kind}={owner}")
            for key, owner in of_others.items()
            if owner in known
        ]
    idle += [
        (key, f" with task = {task!r}, which leaves no choice: leave it out")
        for key, is_idle in none_to_choose.items()
        if is_idle
    ]
    if info.partitions:
        idle += [
            (key, f" with partition = {partition!r}: leave it out, or set partition={wanted[0]}")
            for key, each in SETTINGS.items()
            if (wanted := each.partitions) and partition not in wanted
        ]
    for key, why in idle:
        if key in given:
            raise SettingsError(f"{key} has no effect{why}")


def check_pace(settings: Settings) -> None:
    """Raise SettingsError if a parameter of the method changes nothing in the run's rounds."""
    if idle := settings.strategy().find_idle(settings.num_rounds):
        raise SettingsError(f"{settings.method}.{idle}")


def find_grown(there: Mapping[str, object], config: Mapping[str, object]) -> set[str]:
    """Return the keys of raised settings among those that may be raised when a run continues.

    Early stopping that is switched off counts as raised: the run gets at least as long. Rounds over
    which privacy accounts are spent, or share their noise, cannot be raised: the first ones would
    have had less.
    """
    spends_all = SPENDS.get(str(there.get("privacy.spend", "")), 1.0)
    if spends_all or there.get("privacy.honest", 1) != 1:
        return set()

    def reach(settings: Mapping[str, object], key: str) -> float | None:
        value = settings.get(key)
        if key == "early-stopping" and value == 0:
            return math.inf
        return value if isinstance(value, int) else None

    pairs = {key: (reach(there, key), reach(config, key)) for key in marked(Mark.EXTENDABLE)}
    return {
        key
        for key, (before, now) in pairs.items()
        if before is not None and now is not None and now > before
    }


def default_config() -> dict[str, Value]:
    """Return every run-config key with its default, including those of all methods and tasks.

    The value of a parameter without a default is UNSET.
    """
    return RunSettings.of({}).model_dump(by_alias=True) | {
        key: UNSET if each.default is None else each.default for key, each in parameters().items()
    }


def resolve(folder: str) -> str:
    """Return the absolute path of a folder without symbolic links; "" for no folder."""
    return text_if(folder, str(expand_home(folder).resolve()))
