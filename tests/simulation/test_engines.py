"""The engines: whichever computes, the run folder is the same; which one does follows a rule, and is recorded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fairbloom.errors import FairbloomError
from fairbloom.simulation import run as running
from fairbloom.simulation.choice import Choice, Effort, choose, choose_fastest
from fairbloom.strategies import METHODS
from tests.rounds.implementations import GROUPED

from .helpers import run, small, table

ENGINES = ("stacked", "workers")

SERVER_ALONE = {"qfedsgd", "term", "afl", "gifair", "vred", "semivred", "aaggff", "fedmgda", "fedfv", "adafed", "fedlf"}
"""Methods whose clients do and measure nothing but what those of others do: one model shows that they run."""

CHOSEN = ("qfedavg, mlp", "personal models", "fedmgdaplus, cnn")
"""Runs for which an engine is chosen, too; it is one of those that all cases compare."""

RUNS: dict[str, dict[str, Any]] = {
    **{
        f"{name}, {model}": {"method": name, "model": model, **GROUPED.get(name, {})}
        for name in METHODS
        for model in ("logistic", "mlp")
        if model == "logistic" or name not in SERVER_ALONE
    },
    **{f"{name}, cnn": {"method": name, "model": "cnn"} for name in ("fedavg", "ditto", "drfa", "fedmgdaplus")},
    "momentum, stragglers, full batch": {"momentum": 0.5, "stragglers": 0.5, "local_epochs": 3, "batch_size": 0},
    "clients of unequal size": {"partition": "dirichlet", "dirichlet_alpha": 0.1, "weight_decay": 0.01},
    "personal models": {"personal_lambda": 0.5, "proximal_mu": 0.1, "num_rounds": 4},
    "averaged models": {"average_models": True, "num_rounds": 4},
    "an adaptive server": {"method": "fedfv", "server_optimizer": "yogi", "server_optimizer_lr": 0.05, "num_rounds": 4},
    "some train, with a rate that decays": {
        "training_clients": "client-0,client-3,client-4",
        "learning_rate_decay": 0.5,
        "personal_lambda": 0.5,
    },
    "total losses, some misreported": {
        "method": "qfedavg",
        "reported_loss": "total",
        "misreporting_clients": "client-1,client-2",
        "reported_loss_factor": 2.0,
        "reported_loss_bias": -3.0,
    },
    "losses of batches, in full batches": {"method": "qfedavg", "reported_loss": "batches", "batch_size": 0},
    "losses of batches, after the work": {"method": "fedfa", "reported_loss": "batches"},
    "adamw, clipping, a schedule and class weights": {
        **{"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.01, "gradient_clip": 0.5, "model": "mlp"},
        **{"schedule": "cosine", "warmup": 1, "num_rounds": 4, "class_weights": "balanced", "personal_lambda": 0.5},
    },
    "validation examples": {"validation_share": 0.2, "method": "ditto"},
    "pooled data": {"pooled": True, "method": "fedavg"},
    "frozen parameters": {"model": "tests.rounds.adapted:Plain", "method": "fedmgdaplus"},
    "frozen parameters of personal models": {"model": "tests.rounds.adapted:Plain", "method": "ditto"},
}


def ended(folder: Path) -> dict[str, Any]:
    """Return all that a run leaves but how long it took."""
    tables = {
        (name, place, column): value
        for name in ("rounds.csv", "clients.csv")
        for place, row in enumerate(table(folder / name))
        for column, value in row.items()
        if column != "seconds"
    }
    return {"tables": tables, "model": load_file(folder / "model.safetensors")}


def assert_same(ours: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float) -> None:
    assert ours["tables"].keys() == expected["tables"].keys()
    for place, value in ours["tables"].items():
        due = expected["tables"][place]
        same = value == due or float(value) == pytest.approx(float(due), rel=tolerance, abs=tolerance)
        assert same, f"{place}: {value}, and {due} is due"
    for name, array in ours["model"].items():
        np.testing.assert_allclose(array, expected["model"][name], rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNS)
def test_whichever_engine_computes_the_run_folder_is_the_same(case: str, tmp_path: Path) -> None:
    """In float64: in float32, roundings that flip a unit of a network differ by more from processor to processor."""
    changes = {"num_rounds": 2, "fraction": 0.6, "task": "tests.simulation.doubled:doubled", **RUNS[case]}
    expected = ended(run(tmp_path / "loop", engine="loop", **changes))
    for engine in (*ENGINES, "auto") if case in CHOSEN else ENGINES:
        ours = ended(run(tmp_path / engine, engine=engine, **changes))
        assert_same(ours, expected, 0.0 if engine == "workers" else 1e-9)


# Which one ------------------------------------------------------------------------------------------------------------


def recorded(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "engine.json").read_text()))


@pytest.mark.parametrize("engine", ["loop", "stacked", "workers"])
def test_the_engine_that_one_asks_for_computes_and_is_recorded_with_the_reason(engine: str, tmp_path: Path) -> None:
    about = recorded(run(tmp_path / "run", engine=engine, num_rounds=1))
    assert about["engine"] == engine
    assert about["reason"] == "it was asked for"


def test_a_model_that_cannot_be_stacked_falls_back_and_the_record_says_why(tmp_path: Path) -> None:
    about = recorded(run(tmp_path / "run", engine="stacked", model="tests.client.nets:Dropping", num_rounds=1))
    assert about["engine"] == "loop"
    assert "stacked was asked for" in about["reason"]
    assert "draws, as dropout does" in about["reason"]


def test_work_that_cannot_be_stacked_falls_back_and_the_record_names_the_setting(tmp_path: Path) -> None:
    about = recorded(run(tmp_path / "run", engine="stacked", time_budget=60.0, num_rounds=1))
    assert about["engine"] == "loop"
    assert "time-budget = 60.0" in about["reason"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"optimizer": "adafactor", "learning_rate": 0.01}, "optimizer = adafactor"),
        (
            {"schedule": "cosine", "schedule_over": "steps", "optimizer": "asgd", "learning_rate": 0.01},
            "schedule = cosine over steps of optimizer = asgd",
        ),
    ],
    ids=str,
)
def test_steps_that_are_not_stacked_fall_back_and_the_record_names_them(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    about = recorded(run(tmp_path / "run", engine="stacked", num_rounds=1, **changes))
    assert about["engine"] == "loop"
    assert f"stacked was asked for, but stacked clients do not honour {named}" in about["reason"]


def test_a_run_that_continues_keeps_the_engine_that_it_was_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(tmp_path / "run", num_rounds=2)
    begun = recorded(folder)

    def another(*_: Any) -> Choice:
        raise AssertionError("a run that continues chooses an engine anew")

    monkeypatch.setattr(running, "choose", another)
    assert recorded(run(folder, num_rounds=4)) == begun


def effort(**changes: Any) -> Effort:
    steps = {"cohort": 100, "steps": 10, "most_steps": 10, "bytes": 10_000}
    seconds = {"arithmetic": 1e-3, "update": 1e-4, "calls": 1e-4, "stacked_calls": 1e-4}
    return Effort(**steps | seconds | changes)


def test_small_models_are_stacked_and_large_ones_are_shared_by_processes() -> None:
    assert choose_fastest(effort(arithmetic=1e-6, update=1e-6), "", 2).engine == "stacked"
    assert choose_fastest(effort(arithmetic=1e-1), "", 2).engine == "workers"
    assert choose_fastest(effort(arithmetic=1e-1), "", 1).engine == "stacked"
    assert choose_fastest(effort(arithmetic=1e-6), "it cannot be stacked", 1).engine == "loop"
    assert "it cannot be stacked" in choose_fastest(effort(), "it cannot be stacked", 2).reason
    assert choose_fastest(effort(cohort=1), "it cannot be stacked", 2).engine == "loop"


def test_two_linear_clients_of_very_unequal_sizes_are_not_stacked() -> None:
    linear = {"cohort": 2, "arithmetic": 1e-8, "update": 1e-8, "calls": 4e-5, "steps": 1300}
    assert choose_fastest(effort(**linear, most_steps=2600), "", 1).engine == "loop"
    assert choose_fastest(effort(**linear | {"cohort": 100}, most_steps=2600), "", 1).engine == "stacked"


def test_the_choice_is_the_same_again_and_knows_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small("").run_config()
    first = choose(config, 2)

    def clock() -> float:
        raise AssertionError("the choice looks at the clock")

    monkeypatch.setattr("fairbloom.simulation.choice.check_first_step", lambda *_: None)  # which trains
    for name in ("time", "perf_counter", "monotonic", "process_time"):
        monkeypatch.setattr(f"time.{name}", clock)
    assert choose(config, 2) == first


def test_a_run_with_one_core_to_itself_has_no_workers_and_the_same_numbers() -> None:
    many = Choice("workers", "a step is long", workers=8)
    assert many.within(4) == Choice("workers", "a step is long", workers=4)
    assert many.within(1).engine == "loop"  # equal to the bit: see test_workers.py
    stacked = Choice("stacked", "a step is short", block=7)
    assert stacked.within(1) is stacked


def test_no_engine_is_chosen_for_a_model_that_no_client_can_train() -> None:
    with pytest.raises(FairbloomError, match="the model, Auxiliary, returns a tuple in training"):
        choose(small("", model="tests.client.nets:Auxiliary").run_config(), 2)
