"""What a round costs in Python calls and bytes: counts, which do not depend on the processor.

Counts the calls of this project's functions, and what these call directly. Leaves out what differs
between versions: calls inside PyTorch, NumPy, Flower and the standard library, and comprehensions,
which are calls up to Python 3.11 only (PEP 709). Leaves out generated functions as well, such as
the constructors of named tuples: all have the same file, line and name, so that `pstats` keeps the
count of one of them, which one depends on addresses.
"""

import cProfile
import gc
import math
import pstats
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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

# A count may exceed its budget by this factor.
SLACK = 1.1

# The calls of one more round. Raise a number only with a line in docs/decisions.md that says what
# it buys. Lower it where calls are saved.
BUDGETS = {
    "a round of 100 stacked logistic clients": 1480,
    "an evaluated round of 100 stacked logistic clients": 9820,
    "the same under fedmgdaplus": 1640,
    "the same under fedfv": 2290,
    "a round of ten stacked MLP clients": 8023,
    "a deployed message": 1710,  # a setting costs 11
}

# What a round sends, and receives, by workload: the clients' models, and the header of each of
# their arrays.
BYTES = {"logistic": 100 * (4 * 650 + 2 * 128), "mlp": 10 * (4 * 199_210 + 6 * 128)}

# How often all updates of large models are read: to screen and multiply them, and for the step.
PASSES = dict.fromkeys(("fedavg", "fedmgda", "fedfv"), 2)


# Functions that exist up to Python 3.11 only.
COMPREHENSIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})

# The file of functions that the standard library generates.
GENERATED = "<string>"


def is_ours(file: str) -> bool:
    return file.startswith(str(ROOT)) and "site-packages" not in file


def count_calls(profile: cProfile.Profile) -> Counter[str]:
    """Return the calls that count, by function."""
    calls = Counter[str]()
    for (file, _, function), (_, called, _, _, callers) in pstats.Stats(profile).stats.items():
        if function in COMPREHENSIONS or file == GENERATED:
            continue
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
    """Return the calls between the records of the fourth and the fifth round, and the fifth
    round."""
    profile = cProfile.Profile()
    seen = list[RecordedRound]()

    def on_round(recorded: RecordedRound) -> None:
        seen.append(recorded)
        if recorded.number == 4:
            gc.disable()
            profile.enable()
        elif recorded.number == 5:
            profile.disable()
            gc.enable()

    with pytest.MonkeyPatch.context() as patch:
        # else a slow machine would write a checkpoint here
        patch.setattr(recorder, "SHARED_SECONDS", math.inf)
        simulate(settings.model_copy(update={"num_rounds": 7, "out": str(folder)}), on_round)
    return count_calls(profile), seen[4]


def profile_message(folder: Path) -> Counter[str]:
    """Return the calls of a client app that handles the TRAIN message of its second round."""
    settings = WORKLOADS["logistic"].settings(clients=2, fraction=1.0, device="cpu")
    grid = InProcessGrid(app, dict(settings.run_config()), 2)
    strategy = settings.strategy()
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


def profile_engine(workload: str, every: int, **changes: Any) -> Callable[[Path], Counter[str]]:
    how = {"evaluate_every": every, "engine": "stacked", "device": "cpu", **changes}
    settings = WORKLOADS[workload].settings(**how)
    return lambda folder: profile_round(settings, folder / "run")[0]


CASES: Mapping[str, Callable[[Path], Counter[str]]] = {
    "a round of 100 stacked logistic clients": profile_engine("logistic", 0),
    "an evaluated round of 100 stacked logistic clients": profile_engine("logistic", 1),
    "the same under fedmgdaplus": profile_engine("logistic", 0, method="fedmgdaplus"),
    "the same under fedfv": profile_engine("logistic", 0, method="fedfv"),
    "a round of ten stacked MLP clients": profile_engine("mlp", 0),
    "a deployed message": profile_message,
}


@pytest.mark.parametrize("case", CASES)
def test_a_round_keeps_to_its_budget_of_calls(case: str, tmp_path: Path) -> None:
    calls = CASES[case](tmp_path)
    most = SLACK * BUDGETS[case]
    assert calls.total() <= most, (
        f"{case}: {calls.total()} calls, {most:.0f} allowed: {calls.most_common(20)}"
    )


@pytest.mark.parametrize("method", ["fedavg", "fedmgdaplus", "fedfv"])
def test_a_further_client_costs_a_round_eight_calls(method: str, tmp_path: Path) -> None:
    few, many = (
        profile_engine("logistic", 0, method=method, clients=clients)(tmp_path / str(clients))
        for clients in (100, 300)
    )
    assert (many.total() - few.total()) / 200 <= 8.0, (many - few).most_common(20)


@pytest.mark.parametrize("workload", BYTES)
def test_a_round_sends_its_models_and_no_more(workload: str, tmp_path: Path) -> None:
    settings = WORKLOADS[workload].settings(evaluate_every=0, engine="stacked", device="cpu")
    row = profile_round(settings, tmp_path / "run")[1].row
    assert row["bytes_sent"] == row["bytes_received"] == BYTES[workload]


@pytest.mark.parametrize("method", PASSES)
def test_aggregation_reads_all_updates_as_often_as_it_must(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = updates.Borrowed.read
    numbers = list[int]()
    (m, d) = (5, 500_000)
    grid = Replies(m, d)
    strategy = Settings.of({"method": method, "fraction": 1.0}).strategy()

    def counted(self: updates.Borrowed, place: slice, out: Any, *rows: slice) -> None:
        numbers.append(out.size)
        read(self, place, out, *rows)

    monkeypatch.setattr(updates.Borrowed, "read", counted)
    for number in (1, 2, 3):  # from the second round on there are kept rows
        numbers.clear()
        replies = grid.send_and_receive(
            strategy.configure_train(number, grid.model, ConfigRecord(), grid)
        )
        after, _ = strategy.aggregate_train(number, replies)
        assert after is not None
    assert sum(numbers) == PASSES[method] * m * d
