"""What a round costs in Python calls and bytes: counts, which do not depend on the processor.

Counted are the calls of this project's functions, and what these call directly; what PyTorch, NumPy, Flower and the
standard library call inside is left out, since it differs from version to version.
"""

import cProfile
import gc
import math
import pstats
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flwr.app import ConfigRecord

from benchmarks.aggregation import Replies, record
from benchmarks.workloads import WORKLOADS
from fairbloom.client.app import app
from fairbloom.rounds import updates
from fairbloom.server.run_folder import recorder
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import simulate
from fairbloom.tasks import load_task
from fairbloom.tasks.models import arrays_of

ROOT = Path(__file__).parents[2]

SLACK = 1.1
"""A count may exceed its budget by this factor."""

OFTEN = 50
"""Functions that are called so often in a round have a budget of their own, which a failing test compares with."""


class Budget(NamedTuple):
    """The calls of one more round, and of the functions with OFTEN calls or more those of each."""

    calls: int
    often: Mapping[str, int]


BUDGETS: Mapping[str, Budget] = {
    "a round of 100 stacked logistic clients": Budget(
        1757,
        {
            **{"isinstance": 169, "get": 149, "append": 107, "clients.<genexpr>": 105, "blocks.<genexpr>": 101},
            **{"keys": 101, "getattr": 84, "len": 82, "items": 55},
        },
    ),
    "an evaluated round of 100 stacked logistic clients": Budget(
        8230,
        {
            **{"isinstance": 1499, "get": 850, "append": 507, "keys": 505, "getattr": 409, "task.__len__": 400},
            **{"items": 372, "local.<dictcomp>": 300, "metrics.of": 300, "len": 216, "blocks.<genexpr>": 202},
            **{"move_to_end": 201, "clients.<genexpr>": 105, "tables.escape_formula": 104, "match": 104},
            **{"tables.<genexpr>": 103, "tables.<listcomp>": 101, "tables.<lambda>": 101, "fairness.<genexpr>": 101},
            **{"clients.work_done": 100, "metrics.requested_metrics": 100},
            **{"clients.states": 100, "clients.local": 100},
        },
    ),
    "a round of ten stacked MLP clients": Budget(
        8023,
        {
            **{"isinstance": 831, "len": 792, "training.<genexpr>": 260, "append": 239, "__getattr__": 225},
            **{"detach": 200, "blocks.shape": 175, "next": 151, "transpose": 150, "programs._move": 150},
            **{"programs.add_to": 150, "dot": 137, "unsqueeze": 126, "min": 121, "requires_grad_": 100, "flatten": 100},
            **{"sum": 100, "clients.<genexpr>": 100, "__init__": 88, "clients.<listcomp>": 87, "items": 85},
            **{"getattr": 84, "__enter__": 82, "__exit__": 82, "add_": 75, "baddbmm_": 75, "mul_": 75, "view": 75},
            **{"baddbmm": 75, "grad": 75, "programs._linear": 75, "programs._other": 75, "updates.<genexpr>": 65},
            **{"is_floating_point": 62, "get": 59, "inputs.map_inputs": 56, "updates.places": 51},
        },
    ),
    "a deployed message": Budget(
        1877,
        {
            **{"isinstance": 265, "parameters.<genexpr>": 138, "parameters.key_of": 102, "replace": 102},
            **{"parameters._number": 92, "fullmatch": 92, "strip": 92, "getattr": 84, "__get__": 82},
            **{"parameters._taken": 79, "parameters.checked": 79, "settings._check": 77},
        },
    ),
}
"""Raise a number only with a line in docs/decisions.md that says what it buys. Lower it where calls are saved."""

BYTES = {"logistic": 100 * (4 * 650 + 2 * 128), "mlp": 10 * (4 * 199_210 + 6 * 128)}
"""What a round sends, and receives, by workload: the clients' models, and the header of each of their arrays."""

PASSES = {"fedavg": 2, "fedmgda": 2, "fedfv": 2}
"""How often aggregation reads all updates of large models: to screen and multiply them, and for the step."""


def is_ours(file: str) -> bool:
    return file.startswith(str(ROOT)) and "site-packages" not in file


def count_calls(profile: cProfile.Profile) -> Counter[str]:
    """Return the calls that count, by function."""
    calls = Counter[str]()
    stats: Any = pstats.Stats(profile)
    for (file, _, function), (_, called, _, _, callers) in stats.stats.items():
        if is_ours(file):
            calls[f"{Path(file).stem}.{function}"] += called
        elif direct := sum(times[1] for (caller, *_), times in callers.items() if is_ours(caller)):
            calls[short_name(function)] += direct
    return calls


def short_name(function: str) -> str:
    """Return the name of a built-in: "get" of "<method 'get' of 'dict' objects>"."""
    quoted = re.search(r"'(\w+)' of|(\w+)>$|^(\w+)$", function)
    return next(name for name in quoted.groups() if name) if quoted else function.split(" at 0x")[0]


def profile_round(settings: Settings, folder: Path) -> tuple[Counter[str], RecordedRound]:
    """Return the calls between the records of the fourth and the fifth round, and the fifth round."""
    profile, seen = cProfile.Profile(), list[RecordedRound]()

    def on_round(recorded: RecordedRound) -> None:
        seen.append(recorded)
        if recorded.number == 4:
            gc.disable()
            profile.enable()
        elif recorded.number == 5:
            profile.disable()
            gc.enable()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "SHARED_SECONDS", math.inf)  # else a slow machine would write a checkpoint here
        simulate(settings.model_copy(update={"num_rounds": 7, "out": str(folder)}), on_round)
    return count_calls(profile), seen[4]


def profile_message(folder: Path) -> Counter[str]:
    """Return the calls of a client app that handles the TRAIN message of its second round."""
    settings = WORKLOADS["logistic"].settings(clients=2, fraction=1.0)
    grid, strategy = InProcessGrid(app, dict(settings.run_config()), 2), settings.strategy()
    model = record({**arrays_of(load_task(settings.run_config()).model().state_dict())})
    for context in grid.contexts.values():
        del context.node_config["num-partitions"]  # a device of its own
    for number in (1, 2):
        profile = cProfile.Profile()
        message = next(iter(strategy.configure_train(number, model, ConfigRecord(), grid)))
        gc.disable()
        reply = profile.runcall(app, message, grid.contexts[message.metadata.dst_node_id])
        gc.enable()
        assert reply.has_content()
    return count_calls(profile)


def profile_engine(workload: str, every: int) -> Callable[[Path], Counter[str]]:
    settings = WORKLOADS[workload].settings(evaluate_every=every, engine="stacked")
    return lambda folder: profile_round(settings, folder / "run")[0]


CASES: Mapping[str, Callable[[Path], Counter[str]]] = {
    "a round of 100 stacked logistic clients": profile_engine("logistic", 0),
    "an evaluated round of 100 stacked logistic clients": profile_engine("logistic", 1),
    "a round of ten stacked MLP clients": profile_engine("mlp", 0),
    "a deployed message": profile_message,
}


def describe_growth(calls: Counter[str], budget: Budget) -> str:
    """Return which functions are called more often than when the budget was set, the largest growth first."""
    grown = {name: count - budget.often.get(name, OFTEN - 1) for name, count in calls.items()}
    beyond = sorted((name for name in grown if grown[name] > 0), key=lambda name: -grown[name])
    return "; ".join(f"{name}: {calls[name]}, {budget.often.get(name, f'below {OFTEN}')} before" for name in beyond)


@pytest.mark.parametrize("case", CASES)
def test_a_round_keeps_to_its_budget_of_calls(case: str, tmp_path: Path) -> None:
    calls, budget = CASES[case](tmp_path), BUDGETS[case]
    total, most = calls.total(), SLACK * budget.calls
    assert total <= most, f"{case}: {total} calls, {most:.0f} allowed: {describe_growth(calls, budget)}"


def test_a_count_over_budget_names_what_grew() -> None:
    calls = Counter({"terms.of_client": 200, "get": 149, "rare": 3, "keys": 150})
    words = describe_growth(calls, BUDGETS["a round of 100 stacked logistic clients"])
    assert words == "terms.of_client: 200, below 50 before; keys: 150, 101 before"


@pytest.mark.parametrize("workload", BYTES)
def test_a_round_sends_its_models_and_no_more(workload: str, tmp_path: Path) -> None:
    settings = WORKLOADS[workload].settings(evaluate_every=0, engine="stacked")
    row = profile_round(settings, tmp_path / "run")[1].row
    assert row["bytes_sent"] == row["bytes_received"] == BYTES[workload]


@pytest.mark.parametrize("method", PASSES)
def test_aggregation_reads_all_updates_twice(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, numbers, (m, d) = updates.Borrowed.read, list[int](), (5, 500_000)
    grid, strategy = Replies(m, d), Settings.of({"method": method, "fraction": 1.0}).strategy()

    def counted(self: updates.Borrowed, place: slice, out: Any, *rows: slice) -> None:
        numbers.append(out.size)
        read(self, place, out, *rows)

    monkeypatch.setattr(updates.Borrowed, "read", counted)
    for number in (1, 2, 3):  # from the second round on there are kept rows
        numbers.clear()
        replies = grid.send_and_receive(strategy.configure_train(number, grid.model, ConfigRecord(), grid))
        after, _ = strategy.aggregate_train(number, replies)
        assert after is not None
    assert sum(numbers) == PASSES[method] * m * d
