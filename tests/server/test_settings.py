"""The settings of a run: accepted ones, refused ones, and the errors."""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Unpack

import pytest
from hypothesis import given, strategies as st

from docs.run_config import PROJECT, block, replace_block
from fairbloom.errors import FairbloomError
from fairbloom.protocol.conditions import Condition, IdleIf, NotWith
from fairbloom.protocol.settings import (
    SETTINGS,
    Mark,
    RunSettings,
    Value,
    key_of,
    marked,
    parse_assignments,
    parsed,
)
from fairbloom.rounds.options import CONDITIONS as OF_OPTIONS
from fairbloom.rounds.ranges import Choices, NonNegative, Range
from fairbloom.rounds.sampling import share
from fairbloom.rounds.server_optimizer import ServerOptimizer
from fairbloom.server.settings import (
    CONDITIONS,
    Settings,
    SettingsError,
    check_used,
    default_config,
    parameters,
)
from fairbloom.strategies import METHODS, FedAvg, Options
from fairbloom.tasks import TASKS, TaskInfo, load_task

NAMES = st.lists(st.text("a1é ,=.'\"\\", min_size=1), min_size=2, unique=True)


@given(names=NAMES)
def test_clients_with_any_name_can_be_named(names: list[str]) -> None:
    quoted = [json.dumps(name, ensure_ascii=False) for name in names]
    pairs = " ".join(f"{name}=2" for name in quoted)
    words = [f"training-clients={', '.join(quoted)}", f"prior={pairs}", f"enrolled-sizes={pairs}"]
    method = Settings.of(parse_assignments(words)).strategy()
    assert method.training_clients == (*names,)
    assert method.enrolled_sizes == method.prior_weights == dict.fromkeys(names, 2)


@pytest.mark.parametrize(
    ("listed", "names"),
    {
        "'a,b'": ("a,b",),
        "O'Brien, D'Arcy": ("O'Brien", "D'Arcy"),
        ' "a", "b" c, , "d': ("a", '"b" c', '"d'),
        "x=1": ("x=1",),
        "St. Mary": ("St. Mary",),
        '"St. Mary"': ("St. Mary",),
    }.items(),
)
def test_a_name_is_quoted_as_in_toml(listed: str, names: tuple[str, ...]) -> None:
    assert parse_assignments(['scores="f1,brier"']) == {"scores": "f1,brier"}
    config = parse_assignments([f"training-clients={listed}", "out='a,b'"])
    assert config["out"] == "a,b"
    assert Settings.of(config).strategy().training_clients == names


def typed(*keys: str) -> dict[str, Value]:
    """Return settings that somebody has typed, whatever their values."""
    return {
        key: default_config().get(key) or {"model": "x", "partition": "x"}.get(key, 1)
        for key in keys
    }


# Names that nothing has, first, and what was meant.
NEAREST: list[tuple[dict[str, Any], str]] = [
    ({"learning-rte": 0.1}, "learning-rate"),
    ({"local_epochs": 2}, "local-epochs"),
    ({"fedfv.alhpa": 0.2}, "fedfv.alpha"),
    ({"rotated-clients": 3}, "digits.rotated-clients"),
    ({"alpha": 0.2}, "feddyn.alpha"),
    ({"alpha": 0.2, "method": "fedfv"}, "fedfv.alpha"),
    ({"target": "y", "task": "csv"}, "csv.target"),
    ({"xyzzy": 1}, "fairbloom settings"),
    ({"method": "fedfvv"}, "FedFV"),
    ({"task": "digit"}, "digits"),
    ({"data-dir": "/data", "csv.target": "y"}, "add --task csv"),
    ({"data-dir": "/data", "adult.group": "sex"}, "leave data-dir out"),
    ({"engine": "lop"}, "loop"),
    ({"model": "resnet"}, "there are logistic, "),
    ({"partition": "shard"}, "shards, classes, dirichlet, sizes, iid"),
    ({"server-optimizer": "adamw"}, "adam"),
]

# Settings that do not go together; the first is the one that is named.
TOGETHER: list[dict[str, Any]] = [
    {"data-dir": "/data"},
    {"server-optimizer": "adam"},
    {"server-optimizer-lr": 0.1},
    {"server-optimizer-beta2": 0.5, "server-optimizer": "avgm"},
    {"server-optimizer": "avgm", "method": "fedfa"},
    {"weighting": "uniform", "method": "fedfv"},
    {"weighting": "examples", "method": "qfedavg"},
    {"control-variates": True, "method": "fedfv"},
    {"momentum": 0.9, "method": "scaffold"},
    {"proximal-mu": 0.5, "method": "fedprox"},
    {"privacy.mode": "simulated"},
    {"privacy.epsilon": "3"},
    {"privacy.delta": 0.1},
    {"privacy.steps": 5},
    {"privacy.tests": 2},
    {"personal-steps": "head-first"},
    {"head-epochs": 2, "personal-parameters": "head"},
    {"weighting": "uniform", "draw": "examples"},
    {"early-stopping": 5},
    {"optimizer": "adamm"},
    {"nesterov": True},
    {"schedule": "step"},
    {"warmup": 9, "num-rounds": 9},
    {"early-stopping": 5, "validation-share": 0.2, "evaluate-every": 0},
    {"best-model": "worst-10", "evaluate-every": 0},
    *(
        {"enrolled-sizes": words}
        for words in ("site-a", "site-a=0", "a=5 b=-1", "=5", "a=1.5", "a=²", "a=5 b=6 a=7")
    ),
]


MARKS = {mark for each in (CONDITIONS, OF_OPTIONS) for marks in each.values() for mark in marks}


def refuse(config: dict[str, Any]) -> str:
    """Return the error of these settings, which names the first of them in one line."""
    with pytest.raises(FairbloomError) as refusal:
        Settings.of({"method": "fedavg"} | config).strategy()
    words = str(refusal.value)
    assert next(iter(config)).replace("-", "_") in words.replace("-", "_")
    assert "\n" not in words
    return words


@pytest.mark.parametrize("mark", sorted(MARKS, key=repr))
def test_a_condition_names_a_setting_and_its_values(mark: Condition) -> None:
    """One with a misspelt name or value would never apply."""
    (other,) = [each for each in SETTINGS.values() if each.argument == mark.other]
    match mark:
        case IdleIf():
            assert other.checked(mark.value) == mark.value
        case NotWith():
            assert [other.checked(each) for each in mark.values] == [*mark.values]
        case _:
            assert other.kind is int or other.argument == "training_clients"


@pytest.mark.parametrize(("config", "meant"), NEAREST)
def test_an_unknown_name_is_refused_with_what_was_meant(config: dict[str, Any], meant: str) -> None:
    key, value = next(iter(config.items()))
    words = refuse(config)
    assert f"{key} = {value!r}" in words
    assert meant in words


@pytest.mark.parametrize(("key", "setting"), {**SETTINGS, **parameters()}.items())
def test_a_value_out_of_its_range_is_refused_with_key_and_value(key: Any, setting: Any) -> None:
    owner = key.partition(".")[0] if "." in key else ""
    chosen = {"method": owner} if owner in METHODS else {"task": owner} if owner else {}
    for value in (-1, -1e-9, 1.5, math.nan, True):
        try:
            setting.checked(value)
        except SettingsError:
            assert f"{key} = {value!r}" in refuse({key: value} | chosen)


@pytest.mark.parametrize("config", TOGETHER)
def test_settings_that_do_not_go_together_are_refused_by_name(config: dict[str, Any]) -> None:
    refuse(config)


def test_the_highest_seed_that_is_taken_works() -> None:
    load_task(Settings.of({"seed": 2**63 - 1}).run_config()).model()


@given(
    config=st.fixed_dictionaries(
        {},
        optional={
            "clients": st.integers(6, 40),
            "digits.rotated-clients": st.integers(0, 6),
            "partition": st.sampled_from(("shards", "dirichlet", "iid")),
            "model": st.sampled_from(("logistic", "mlp", "cnn")),
            "method": st.sampled_from(tuple(METHODS)),
            "fraction": st.floats(0.001, 1.0),
            "learning-rate": st.floats(1e-6, 10.0) | st.integers(1, 3),
            "fedfv.alpha": st.floats(0.0, 1.0) | st.integers(0, 1),
            "qfedavg.q": st.floats(0.0, 9.0),
            "out": st.text(max_size=20),
        },
    )
)
def test_a_run_config_gives_the_settings_that_it_came_from(config: dict[str, Value]) -> None:
    first = Settings.of(config).run_config()
    assert Settings.of(first).run_config() == first
    owners = {"digits", first["method"]}
    assert {
        key: value
        for key, value in config.items()
        if "." not in key or key.partition(".")[0] in owners
    }.items() <= first.items()


@pytest.mark.parametrize("method", METHODS)
def test_a_run_config_is_flat_and_of_the_types_that_flower_takes(method: str) -> None:
    config = Settings.of({"method": method}).run_config()
    assert all(isinstance(value, bool | int | float | str) for value in config.values())
    assert {key.partition(".")[0] for key in config if "." in key} <= {method, "digits", "privacy"}


def test_the_default_config_has_all_parameters_and_is_accepted() -> None:
    defaults = default_config()
    assert Settings.of(defaults).run_config() == Settings.of({}).run_config()
    assert parameters().keys() <= defaults.keys()
    assert {parameter.owner for parameter in parameters().values()} <= {*METHODS, *TASKS}
    for method in METHODS:
        Settings.of({**defaults, "method": method})


def test_no_method_task_or_setting_shares_its_name_with_another() -> None:
    names = [*METHODS, *TASKS, *map(key_of, RunSettings.model_fields)]
    assert len(names) == len(set(names))


def flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def test_the_run_config_of_the_flower_app_is_the_default_config() -> None:
    written = dict(flattened(tomllib.loads(PROJECT.read_text())["tool"]["flwr"]["app"]["config"]))
    assert written == default_config()
    assert {key: type(value) for key, value in written.items()} == {
        k: type(v) for k, v in default_config().items()
    }


def test_pyprojects_run_config_is_what_make_settings_writes() -> None:
    project = PROJECT.read_text()
    assert replace_block(project) == project
    assert replace_block(project.replace(block(), 'task = "another" # line\n')) == project


def test_every_setting_is_described_in_one_short_line(subtests: pytest.Subtests) -> None:
    assert [*SETTINGS] == [*map(key_of, RunSettings.model_fields)]
    for key, setting in SETTINGS.items():
        with subtests.test(key=key, setting=setting):
            assert setting.description[:1].isupper(), key
            assert 20 < len(setting.description) <= 100, key
    assert [key for key, parameter in parameters().items() if not parameter.description] == []


# Parameters of methods ----------------------------------------------------------------------------


class Mine(FedAvg):
    """A newcomer's method.

    Parameters
    ----------
    strength
        How strong it is.
    rounds : int
        How long it is
        remembered.
    kind, loud
        How it looks and sounds.
    """

    def __init__(
        self,
        *,
        strength: NonNegative,
        rounds: Annotated[int, Range("[1, inf)")] = 3,
        kind: Annotated[str, Choices("plain", "bent", "torn")] = "plain",
        loud: bool,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        if kind == "torn" and not loud:
            raise ValueError("kind = 'torn' must be loud")
        self.given = (strength, rounds, kind, loud)


class Plain(FedAvg):
    def __init__(self, times: "int" = 2, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.times = times


@pytest.fixture
def newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "mine", Mine)
    monkeypatch.setitem(METHODS, "plain", Plain)


GIVEN: dict[str, Value] = {"method": "mine", "mine.strength": 2, "mine.loud": False}


@pytest.mark.usefixtures("newcomers")
def test_a_parameter_is_read_from_signature_and_docstring() -> None:
    found = parameters()["mine.rounds"]
    assert (found.kind, found.default, found.owner, found.argument) == (int, 3, "mine", "rounds")
    assert (found.range, found.description) == ("int at least 1", "How long it is remembered.")
    assert parameters()["mine.strength"].default is None
    assert (parameters()["plain.times"].kind, parameters()["plain.times"].range) == (int, "int")


@pytest.mark.parametrize("config", [{"mine.loud": True}, default_config()])
@pytest.mark.usefixtures("newcomers")
def test_a_parameter_without_a_default_is_required(config: dict[str, Any]) -> None:
    assert (default_config()["mine.strength"], default_config()["mine.loud"]) == ("", "")
    Settings.of(default_config())  # it troubles no other method
    with pytest.raises(SettingsError, match=r"needs mine\.strength \(float at least 0"):
        Settings.of({**config, "method": "mine"})
    assert (
        Settings.of({**default_config(), **GIVEN}).run_config() == Settings.of(GIVEN).run_config()
    )
    assert 'mine.strength = "" # float at least 0: How strong it is\n' in block()


@pytest.mark.usefixtures("newcomers")
def test_parameters_reach_the_method_in_their_type() -> None:
    strategy = Settings.of({**GIVEN, "mine.kind": "bent"}).strategy()
    assert isinstance(strategy, Mine)
    assert strategy.given == (2.0, 3, "bent", False)
    assert [type(value) for value in strategy.given] == [float, int, str, bool]
    assert Settings.of({"method": "plain", "plain.times": 5}).strategy().times == 5  # type: ignore[attr-defined]


def test_a_parameter_that_a_run_config_cannot_carry_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Odd(FedAvg):
        def __init__(
            self, *, ends: tuple[float, float] = (0.0, 1.0), **options: Unpack[Options]
        ) -> None:
            super().__init__(**options)

    monkeypatch.setitem(METHODS, "odd", Odd)
    with pytest.raises(
        SettingsError, match="Odd's parameter ends must be annotated: int, float, bool or str"
    ):
        parameters()


def test_an_error_in_a_methods_code_is_not_taken_for_a_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(FedAvg):
        def __init__(self, **options: Unpack[Options]) -> None:
            super().__init__(**options)
            {}["missing"]

    monkeypatch.setitem(METHODS, "broken", Broken)
    with pytest.raises(KeyError):
        Settings.of({"method": "broken"})


# What reaches the method --------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*METHODS, "torchjd:upgrad"])
def test_common_settings_reach_every_method_in_their_types(method: str) -> None:
    config: dict[str, Any] = {
        **{"max-growth": 3, "loss-limit": math.inf, "update-limit": 50, "unused-rounds": 5},
        "enrolled-sizes": " site-a=1200  client.7_b=300 ",
        **{"training-clients": "b, a,b", "average-models": True},
        **{"server-optimizer": "adam", "server-optimizer-lr": 0.1, "server-optimizer-beta1": 0.5},
    }
    plain = Settings.of({}).strategy()
    assert (plain.training_clients, plain.average_models, plain.server_optimizer) == (
        (),
        False,
        None,
    )
    strategy = Settings.of({**config, "method": method}).strategy()
    assert (strategy.max_growth, strategy.loss_limit) == (3.0, math.inf)
    assert (strategy.update_limit, strategy.unused_rounds) == (50.0, 5)
    assert strategy.enrolled_sizes == {"site-a": 1200, "client.7_b": 300}
    assert (strategy.training_clients, strategy.average_models) == (("b", "a"), True)
    assert strategy.server_optimizer == ServerOptimizer("adam", 0.1, 0.5, 0.99, 1e-3)
    assert parse_assignments(["enrolled-sizes=site-a=1200 site-b=300"]) == {
        "enrolled-sizes": "site-a=1200 site-b=300"
    }
    assert (
        Settings.of(parse_assignments(["loss-limit=inf", "max-growth=20"])).loss_limit == math.inf
    )


AS_WRITTEN = (
    "fedfv",
    "cuda:1",
    "",
    "/data/my runs/a",
    "a=b",
    "2024-01-01",
    "12:30:00",
    "{a = 1}",
    "[1, 2]",
    "3 # x",
    "3\nb = 1",
    "[" * 9999,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-1", -1),
        ("0.2", 0.2),
        ("1e-3", 0.001),
        ("true", True),
        ('"5"', "5"),
        *((text, text) for text in AS_WRITTEN),
    ],
    ids=range(18),
)
def test_a_value_is_read_as_toml_and_else_as_a_string(text: str, value: object) -> None:
    """A run folder may be called 2024-01-01."""
    assert parsed(text) == value
    assert type(parsed(text)) is type(value)


def test_zero_clients_may_be_given_as_their_help_says() -> None:
    check_used({"clients": 0}, ["fedavg"], "digits")
    assert RunSettings.of({"clients": 0}) == RunSettings.of({})


def test_another_methods_parameter_is_refused_if_given() -> None:
    check_used(typed("fedfv.alpha", "num-rounds"), ["fedfv"], "digits")
    check_used(
        typed("fedfv.alpha", "qfedavg.q", "digits.rotated-clients"),
        ["fedavg", "fedfv", "qfedavg"],
        "digits",
    )
    with pytest.raises(
        SettingsError,
        match=r"fedfv\.alpha has no effect with method = 'fedavg': leave it out, or set",
    ):
        check_used(typed("num-rounds", "fedfv.alpha"), ["fedavg"], "digits")


@pytest.mark.parametrize("key", ["model", "partition"])
def test_another_tasks_setting_is_refused_if_given(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setitem(TASKS, "ones", TaskInfo("ones", "Ones", "nobody", "nowhere:load"))
    with pytest.raises(
        SettingsError,
        match=r"digits\.rotated-clients has no effect with task = 'ones': .* task=digits",
    ):
        check_used(typed("digits.rotated-clients"), ["fedavg"], "ones")
    check_used(typed(key), ["fedavg"], "digits")
    with pytest.raises(
        SettingsError,
        match=f"{key} has no effect with task = 'ones', which leaves no choice: leave",
    ):
        check_used(typed(key), ["fedavg"], "ones")


OF_DEVICES = ("round-timeout", "min-replies", "min-clients", "wait-for-clients", "release")


@pytest.mark.parametrize("key", OF_DEVICES)
def test_settings_of_devices_have_no_effect_in_one_process(key: str) -> None:
    assert marked(Mark.DEPLOYED).keys() == {*OF_DEVICES}
    assert SETTINGS[key].default is not None
    given = {**typed(key), "release": "last"} if key == "release" else typed(key)
    check_used(given, ["fedavg"], "digits", deployed=True)
    with pytest.raises(SettingsError, match=f"{key} has no effect in one process"):
        check_used(given, ["fedavg"], "digits")


# What may differ ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "keys"),
    [
        (
            Mark.FREE,
            {
                *("out", "enrolled-sizes", "unused-rounds", "memory"),
                *("min-clients", "wait-for-clients", "release"),
            },
        ),
        (Mark.LIMIT, {"max-growth", "loss-limit", "update-limit"}),
        (Mark.PLACE, {"data-dir", "state-dir", "device"}),
        (Mark.DEVICE, {"data-dir", "state-dir"}),
        (Mark.ROUNDING, {"engine", "device", "threads"}),
    ],
)
def test_marks_decide_which_settings_a_continued_run_may_change(mark: Mark, keys: set[str]) -> None:
    assert set(marked(mark)) == keys


def test_a_setting_for_some_partitions_names_known_ones(
    subtests: pytest.Subtests,
) -> None:
    known = {name for info in TASKS.values() for name in info.partitions}
    used = {key: each.partitions for key, each in SETTINGS.items() if each.partitions}
    assert used.keys() == {
        "shards-per-client",
        "classes-per-client",
        "dirichlet-alpha",
        "smallest-client",
    }
    assert {name for names in used.values() for name in names} <= known
    for key, names in used.items():
        with subtests.test(key=key, names=names):
            for partition in known:
                given = {**typed(key), "partition": partition}
                task = next(name for name, info in TASKS.items() if partition in info.partitions)
                if partition in names:
                    check_used(given, ["fedavg"], task)
                else:
                    with pytest.raises(
                        SettingsError, match=f"{key} has no effect with partition = '{partition}'"
                    ):
                        check_used(given, ["fedavg"], task)


def test_an_assignment_without_a_value_is_refused() -> None:
    with pytest.raises(SettingsError, match="'clients': write it as KEY=VALUE"):
        parse_assignments(["clients"])


# The rounds' own ----------------------------------------------------------------------------------


def test_one_client_a_round_trains_on_pooled_data() -> None:
    method = Settings.of({"pooled": True, "fraction": 0.5}).strategy()
    assert {
        share(method.fraction_train, clients, method.min_train_nodes)
        for clients in (1, 2, 11, 10**6)
    } == {1}


@pytest.mark.parametrize("typed_too", [{"fraction": 0.5}, {"training-clients": "client-1"}])
def test_settings_without_effect_on_pooled_data_are_refused(typed_too: dict[str, Any]) -> None:
    check_used({"pooled": True}, ["fedavg"], "digits")
    check_used({"pooled": False, "fraction": 0.5}, ["fedavg"], "digits", deployed=True)
    with pytest.raises(
        SettingsError, match=f"{next(iter(typed_too))} has no effect with pooled = true"
    ):
        check_used({"pooled": True, **typed_too}, ["fedavg"], "digits")
    with pytest.raises(SettingsError, match=r"pooled = true: .* in one process only"):
        Settings.of({"pooled": True}).check_deployed()
