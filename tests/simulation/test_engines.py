"""Methods, configurations and engines are crossed here, once: each engine gives the numbers of the
loop.

Which engine computes a run follows a rule, and is recorded.

Methods with every local objective finish, are finite, repeat and resume to the same bits.

Many registered clients, few a round: what a run takes grows with those who take part.
"""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from safetensors.numpy import load_file

from fairbloom.client.app import app
from fairbloom.client.states import ROUNDING_STATE
from fairbloom.errors import FairbloomError
from fairbloom.rounds.round import Round
from fairbloom.rounds.sampling import sample
from fairbloom.server.settings import Settings
from fairbloom.simulation import run as running
from fairbloom.simulation.choice import Choice, choose
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import simulate
from fairbloom.strategies import METHODS
from tests.federation import KINDS
from tests.rounds.implementations import (
    CASES,
    GROUPED,
    bits,
    method_and_model,
    outcome,
    settings_of,
)
from tests.tasks import mine

from .helpers import ROOT, StoppedError, newest_states, run, small, stop_after, table

# At the seam: what clients reply, and each round --------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_messages_give_the_bits_of_the_loop(case: str) -> None:
    expected = outcome("local", case)
    other = outcome("flower", case)
    for (what, answer), (expected_what, expected_answer) in zip(
        other.seen, expected.seen, strict=True
    ):
        assert what == expected_what
        assert [key for key in answer if answer[key] != expected_answer[key]] == []
    assert plain(other.state) == plain(expected.state)
    for finished, due in zip(other.rounds, expected.rounds, strict=True):
        actual = about(finished)
        looped = about(due)
        if "frozen" in case:  # its first messages have all
            actual |= {"bytes_sent": 0}
            looped |= {"bytes_sent": 0}
        assert actual == looped


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_stacked_clients_give_the_numbers_of_the_loop(case: str) -> None:
    """In float64: in float32, roundings that flip a unit of a network differ by more from processor
    to processor."""
    expected = outcome("local", case, in_float64=True)
    other = outcome("stacked", case, in_float64=True)
    for (_, answer), (_, expected_answer) in zip(other.seen, expected.seen, strict=True):
        for key in ("asked", "names", "refused", "missing"):
            assert answer[key] == expected_answer[key]
    for finished, due in zip(other.rounds, expected.rounds, strict=True):
        actual = flat(about(finished, arrays=dict))
        expected_values = flat(about(due, arrays=dict))
        assert actual.keys() == expected_values.keys()
        for place, value in actual.items():
            if isinstance(value, float | np.ndarray):
                np.testing.assert_allclose(
                    np.asarray(value), expected_values[place], 1e-9, 1e-9, str(place)
                )
            else:
                assert value == expected_values[place], place


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    ["fedavg", *(case for case in CASES if case not in METHODS)],
)
def test_flowers_start_gives_the_rounds_of_the_loop(case: str) -> None:
    """With a user's own evaluation of the same metrics; the loop asks for a loss in evaluated
    rounds alone."""
    settings = settings_of(case)
    rounds = list[Round]()
    method, model = method_and_model(settings)
    result = method.start(
        InProcessGrid(app, settings.run_config(), settings.clients),
        ArrayRecord({name: Array(array) for name, array in model.items()}),
        settings.num_rounds,
        timeout=60.0,
        train_config=ConfigRecord({"measure": ["loss-before"]} if settings.evaluate_every else {}),
        evaluate_config=ConfigRecord({"measure": ["train-loss"]}),
        on_round=rounds.append,
    )
    expected = outcome("local", case)
    for finished, looped in zip(rounds, expected.rounds, strict=True):
        forms = {name: getattr(finished, name) for name in ("arrays", "average")}
        numpys = {
            name: form and {key: array.numpy() for key, array in form.items()}
            for name, form in forms.items()
        }
        actual = about(Round(**vars(finished) | numpys))
        due = about(looped)
        # the loop measures in the last round, which it alone knows to be evaluated
        if not settings.evaluate_every:
            actual |= {"metrics": [], "train_metrics": {}}
            due |= {"metrics": [], "train_metrics": {}}
        if method.frozen:  # Flower's own loop sends whole models
            actual |= {"bytes_sent": 0, "bytes_received": 0}
            due |= {"bytes_sent": 0, "bytes_received": 0}
        assert actual == due
    assert {name: array.numpy().tobytes() for name, array in result.arrays.items()} == {
        name: array.tobytes() for name, array in expected.rounds[-1].evaluated.items()
    }


def plain(state: Any) -> Any:
    """Return a method's state with its arrays as bytes."""
    if isinstance(state, np.ndarray):
        return state.tobytes()
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return [plain(value) for value in state] if isinstance(state, list) else state


def about(finished: Round, arrays: Callable[[Any], Any] = bits) -> dict[str, Any]:
    """Return a round's values without the reasons of refusals, in which implementations differ."""
    actual = vars(finished) | {
        "arrays": arrays(finished.arrays),
        "average": (None if finished.average is None else arrays(finished.average)),
        "refused": list(finished.refused),
    }
    return actual | {key: list(actual[key].items()) for key in ("coefficients", "metrics")}


def flat(value: Any, place: tuple[object, ...] = ()) -> dict[tuple[object, ...], Any]:
    """Return the values inside mappings, lists and tuples, by their place."""
    if isinstance(value, Mapping):
        return {
            where: each
            for key, inner in value.items()
            for where, each in flat(inner, (*place, key)).items()
        }
    if isinstance(value, list | tuple):
        return flat(dict(enumerate(value)), place)
    return {place: value}


def replies(case: str, what: str) -> list[dict[str, Any]]:
    return [answer for kind, answer in outcome("local", case).seen if kind == what]


@pytest.mark.slow
def test_the_cases_meet_what_they_are_there_for(subtests: pytest.Subtests) -> None:
    """A case in which nothing is refused, kept or measured would compare nothing."""
    assert {case for case in CASES if case in METHODS} == set(METHODS)
    assert any(answer["refused"] for answer in replies("stragglers that are left out", "trained"))
    assert any(
        finished.refused
        for finished in outcome("local", "replies that are out of proportion").rounds
    )
    assert all(answer["snapshots"] for answer in replies("drfa", "trained"))
    assert any(
        "loss-personal" in dict(answer["metrics"][0]) for answer in replies("ditto", "evaluated")
    )
    assert len(replies("evaluated after the last round only", "evaluated")) == 1
    assert all(
        "accuracy-validation" in dict(answer["metrics"][0])
        for answer in replies("validation examples", "evaluated")
    )
    assert {
        name for answer in replies("few clients train", "trained") for name in answer["names"]
    } == {"client-0", "client-1", "client-4"}
    for case in (case for case in CASES if case.startswith("averaged")):
        with subtests.test(case=case):
            first, *others = outcome("local", case).rounds
            assert bits(first.average) == bits(first.arrays)
            assert all(bits(other.average) != bits(other.arrays) for other in others)
    decaying = replies("a rate that decays", "trained")
    assert [
        {dict(actual)["learning-rate"] for actual in answer["metrics"]} for answer in decaying
    ] == [{0.1}, {0.05}, {0.025}]
    first, second, *_ = (
        bits(finished.arrays) for finished in outcome("local", "a model with buffers").rounds
    )
    assert {
        name for name, array in second.items() if "running" in name and array != first[name]
    } == {"1.running_mean", "1.running_var"}


# Which one ----------------------------------------------------------------------------------------


def recorded(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "engine.json").read_text()))


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_an_engine_that_is_asked_for_is_recorded_with_the_reason(
    tmp_path: Path, engine: str
) -> None:
    about = recorded(run(tmp_path / engine, engine=engine, num_rounds=1))
    assert (about["engine"], about["reason"]) == (engine, "it was asked for")


def test_an_engine_that_cannot_do_what_is_asked_says_so(tmp_path: Path) -> None:
    about = recorded(run(tmp_path / "late", engine="stacked", num_rounds=1, time_budget=60.0))
    assert about["engine"] == "loop"
    assert (
        "stacked was asked for, but stacking does not support time-budget = 60.0" in about["reason"]
    )


def test_a_run_that_continues_keeps_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(tmp_path / "run", num_rounds=2)
    begun = recorded(folder)

    def another(*_: Any) -> Choice:
        raise AssertionError("a run that continues chooses an engine anew")

    monkeypatch.setattr(running, "choose", another)
    assert recorded(run(folder, num_rounds=4)) == begun


def test_a_damaged_engine_json_is_named_and_can_be_deleted(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", num_rounds=1)
    file = folder / "engine.json"
    file.write_text(json.dumps(recorded(folder) | {"threads": 2}))
    with pytest.raises(FairbloomError, match=r"engine\.json cannot be read: .*, or delete it"):
        run(folder, num_rounds=2)
    file.unlink()
    assert recorded(run(folder, num_rounds=2))["engine"]


@pytest.mark.parametrize(
    ("changes", "engine", "reason"),
    [
        ({"model": "mlp"}, "stacked", "the model can be computed for many clients at once"),
        ({"model": "logistic"}, "stacked", "the model can be computed for many clients at once"),
        ({"model": "cnn"}, "loop", "convolutions and recurrent layers are slow on the processor"),
        ({"model": "mlp", "fraction": 0.01}, "loop", "a round has one client"),
        ({"model": "mlp", "time_budget": 60.0}, "loop", "does not support time-budget = 60.0"),
    ],
)
def test_an_engine_is_chosen_by_a_rule(changes: dict[str, Any], engine: str, reason: str) -> None:
    chosen = choose(small("", **changes))
    assert chosen.engine == engine
    assert reason in chosen.reason


def test_an_unknown_engine_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match=r"engine = 'workers'.*auto, loop or stacked"):
        run(tmp_path / "run", engine="workers")
    folder = run(tmp_path / "run", engine="stacked", num_rounds=1)
    file = folder / "engine.json"
    file.write_text(json.dumps(recorded(folder) | {"engine": "workers"}))
    with pytest.raises(FairbloomError, match="there are loop and stacked: name one of them"):
        run(folder, engine="stacked", num_rounds=2)
    file.write_text(json.dumps(recorded(folder) | {"engine": "loop"}))
    assert recorded(run(folder, engine="stacked", num_rounds=2))["engine"] == "loop"


def test_an_untrainable_model_gets_no_engine() -> None:
    with pytest.raises(FairbloomError, match="the model, Auxiliary, returns a tuple in training"):
        choose(small("", model="tests.client.nets:Auxiliary"))


OBJECTIVES: dict[str, dict[str, Any]] = {
    "proximal": {"proximal-mu": 0.1},
    "personal": {"personal-lambda": 0.5, "momentum": 0.9},
    "stragglers, averaged models": {"stragglers": 0.5, "local-epochs": 3, "average-models": True},
}
# Objectives that are tried with one method.
ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw on a schedule": (
        "ditto",
        {
            **{
                "optimizer": "adamw",
                "learning-rate": 0.01,
                "weight-decay": 0.01,
                "gradient-clip": 1.0,
            },
            **{"schedule": "cosine", "warmup": 1, "model": "mlp", "engine": "stacked"},
        },
    ),
    "frozen parameters": ("fedfv", {"model": "tests.nets:Adapted"}),
    "updates in bfloat16": (
        "fedfv",
        {"wire-dtype": "bfloat16-updates", "model": "mlp", "engine": "stacked"},
    ),
    "the model in bfloat16": ("fedmgda", {"wire-dtype": "bfloat16", "engine": "loop"}),
    "an adaptive server": ("fedavg", {"server-optimizer": "adam", "server-optimizer-lr": 0.05}),
}

# What tests/rounds/test_compatibility.py tests to be refused.
REFUSED = {
    *(("proximal", name) for name in ("fedprox", "mgdaprox")),
    *(("personal", name) for name in ("ditto", "fcfl", "feddyn", "qfedsgd", "scaffold")),
}

SMALL: dict[str, Any] = {"clients": 5, "num-rounds": 3, "fraction": 0.6, "device": "cpu"}


def bits_of(folder: Path) -> dict[str, Any]:
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "best": (folder / "model-best.safetensors").read_bytes(),
        "clients": (folder / "clients.csv").read_bytes(),
        "personal": sorted(newest_states(folder).values()),
        "errors": sorted(newest_states(folder, ROUNDING_STATE).values()),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "objective"),
    [
        *((name, "plain") for name in METHODS),
        *((name, each) for each in OBJECTIVES for name in KINDS if (each, name) not in REFUSED),
        *((name, each) for each, (name, _) in ALONE.items()),
    ],
)
def test_a_run_repeats_and_resumes_to_the_same_bits(
    method: str, objective: str, tmp_path: Path
) -> None:
    """The second run, which is interrupted, repeats two rounds of the first before it goes on from
    its folder."""
    _, alone = ALONE.get(objective, ("", {}))
    config = {
        **SMALL,
        **OBJECTIVES.get(objective, {}),
        **alone,
        "method": method,
        **GROUPED.get(method, {}),
    }
    whole, resumed = (Settings.of({**config, "out": str(tmp_path / name)}) for name in "ab")
    expected = bits_of(simulate(whole))
    assert all(
        np.isfinite(array).all()
        for array in load_file(tmp_path / "a" / "model.safetensors").values()
    )
    with pytest.raises(StoppedError):
        simulate(resumed, stop_after(2))
    assert bits_of(simulate(resumed)) == expected
    assert bool(expected["errors"]) == ("bfloat16" in objective)
    assert bool(expected["personal"]) == ("personal" in objective or method in ("ditto", "local"))


LINE = f"{mine.__name__}:line"


def settings(clients: int, a_round: int, **others: Any) -> dict[str, Any]:
    share = a_round / clients
    return {
        "task": LINE,
        "clients": clients,
        "fraction": share,
        "fraction-evaluate": share,
        "device": "cpu",
        **others,
    }


# Memory -------------------------------------------------------------------------------------------


GROWTH = r"""
import re, sys
from pathlib import Path
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.simulation.test_engines import settings

def largest():
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024

for clients in (1_000, 1_000, 1_000_000):  # twice, so that what a second run in a process takes is no growth
    simulate(Settings.of(settings(clients, 100, **{"num-rounds": 3, "out": f"{sys.argv[1]}/{len(sys.argv)}"})))
    sys.argv.append(str(largest()))
print(int(sys.argv[-1]) - int(sys.argv[-2]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="a process reads its largest resident memory from /proc"
)
def test_a_run_with_a_million_clients_takes_at_most_200_mb_more(tmp_path: Path) -> None:
    command = [sys.executable, "-c", GROWTH, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # less than the names take would be no measurement
    assert 50 < int(done.stdout.split()[-1]) <= 200


# Draws --------------------------------------------------------------------------------------------


def test_clients_are_drawn_by_the_order_of_their_names(tmp_path: Path) -> None:
    """line-10 comes before line-9, and is the eleventh client of the task."""
    folder = run(tmp_path / "run", **settings(30, 3, num_rounds=4, seed=5))
    evaluated = defaultdict(list)
    for row in table(folder / "clients.csv"):
        evaluated[int(row["round"])].append(row["client"])
    names = sorted(f"line-{number}" for number in range(30))
    assert evaluated == {number: sample(names, 3, 5, "evaluate", number) for number in range(1, 5)}
