"""StopRun ends a run as finished, whichever function of an app raises it."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

import fairbloom
from fairbloom import StopRun
from fairbloom.strategies import FairStrategy, FedAvg
from tests.simulation.helpers import table

from .test_flower import start

# Whether the round in which a hook raises counts: its replies are aggregated before.
HOOKS = {
    "configure_train": False,
    "choose": False,
    "weigh": True,
    "remember": True,
    "aggregate_train": True,
    "configure_evaluate": True,
    "aggregate_evaluate": True,
}


def stopping(hook: str, *, first: bool) -> FairStrategy:
    """Return a strategy with a hook that raises StopRun in round 2, before or after super()."""

    def raising(self: Any, *given: Any, **named: Any) -> Any:
        inner = partial(getattr(FedAvg, hook), self)
        is_before = hook in ("configure_train", "choose", "aggregate_train")
        if self.progress.finished_rounds + is_before != 2:
            return inner(*given, **named)
        if not first:
            inner(*given, **named)
        raise StopRun("plateau")

    Stopping = type("Stopping", (FedAvg,), {hook: raising})  # a class
    strategy: FairStrategy = Stopping()
    return strategy


# Before super(), aggregate_train has not aggregated the replies: see the next test.
CASES = [
    (hook, first)
    for hook in HOOKS
    for first in (True, False)
    if (hook, first) != ("aggregate_train", True)
]


@pytest.mark.parametrize(("hook", "first"), CASES)
def test_a_hook_ends_the_run_as_finished(tmp_path: Path, hook: str, first: bool) -> None:
    result = start(tmp_path / "run", stopping(hook, first=first), 5)
    run = fairbloom.load(tmp_path / "run")
    assert (run.state, run.stopped) == ("finished", "plateau")
    assert run.rounds_done == (2 if HOOKS[hook] else 1)
    rows = table(tmp_path / "run" / "rounds.csv")
    assert bool(rows[-1]["test_eval_acc_of_global_model_mean"]) == (hook != "configure_evaluate")
    start(tmp_path / "run", stopping(hook, first=first), 5)
    assert fairbloom.load(tmp_path / "run").rounds_done == run.rounds_done
    assert result.arrays["w"].numpy().any()


def test_a_round_without_aggregation_does_not_count(tmp_path: Path) -> None:
    class Stops(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            if server_round == 3:
                raise StopRun("plateau")
            return super().aggregate_train(server_round, replies)

    start(tmp_path / "run", Stops(), 5)
    assert fairbloom.load(tmp_path / "run").rounds_done == 2


def test_a_step_after_the_stop_is_kept(tmp_path: Path) -> None:
    stopped = start(tmp_path / "run", stopping("aggregate_train", first=False), 5)
    whole = start(tmp_path / "whole", FedAvg(), 2)
    assert stopped.arrays["w"].data == whole.arrays["w"].data
    (last,) = table(tmp_path / "run" / "rounds.csv")[1:]
    (expected,) = table(tmp_path / "whole" / "rounds.csv")[1:]
    name = "test_eval_acc_of_global_model_mean"
    assert last[name] == expected[name] != ""


@pytest.mark.parametrize("argument", ["train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"])
def test_a_function_of_the_app_ends_the_run_as_finished(tmp_path: Path, argument: str) -> None:
    def stop(contents: Any, weighted_by_key: str) -> Any:
        raise StopRun("plateau")

    given: dict[str, Any] = {argument: stop}
    start(tmp_path / "run", FedAvg(**given), 5)
    run = fairbloom.load(tmp_path / "run")
    assert (run.state, run.rounds_done) == ("finished", 1)
    assert run.final()


@pytest.mark.parametrize("hook", ["summary", "configure_train"])
def test_a_hook_before_the_first_round_ends_the_run_as_finished(tmp_path: Path, hook: str) -> None:
    def stop(*given: Any) -> None:
        raise StopRun("plateau")

    strategy: FairStrategy = type("Stopping", (FedAvg,), {hook: stop})()
    start(tmp_path / "run", strategy, 5)
    run = fairbloom.load(tmp_path / "run")
    assert (run.state, run.stopped, run.rounds_done) == ("finished", "plateau", 0)


def test_a_timeout_function_ends_the_run_as_finished(tmp_path: Path) -> None:
    def seconds(number: int) -> float:
        if number == 3:
            raise StopRun("plateau")
        return 60.0

    start(tmp_path / "run", FedAvg(), 5, timeout=seconds)
    assert fairbloom.load(tmp_path / "run").rounds_done == 2


def test_a_hook_inside_a_wrapper_leaves_no_model_without_noise(tmp_path: Path) -> None:
    wrapped = DifferentialPrivacyServerSideFixedClipping(
        stopping("aggregate_train", first=False),
        noise_multiplier=0.1,
        clipping_norm=1.0,
        num_sampled_clients=4,
    )
    strategy: Any = wrapped
    models = list[bytes]()
    start(
        tmp_path / "run",
        strategy,
        5,
        on_round=lambda finished: models.append(finished.arrays["w"].data),
    )
    assert models[0] == models[1]
    assert fairbloom.load(tmp_path / "run").rounds_done == 2
