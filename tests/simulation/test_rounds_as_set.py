"""The settings of rounds besides the method: averaged models, training clients, reports, pooling.

Early stopping by validation examples: where a run ends, its files, and how it continues.

How often a round waits for numbers that a device computes, counted on the CPU.
"""

import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

import fairbloom
from fairbloom import StopRun
from fairbloom.client.training import measure
from fairbloom.errors import FairbloomError
from fairbloom.server.checkpoint import load_model
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.run_folder.recorder import RunRecorder
from fairbloom.server.settings import Settings
from fairbloom.simulation import choice
from fairbloom.simulation.run import simulate
from fairbloom.tasks import Examples, load_task
from fairbloom.tasks.models import on_processor
from fairbloom.tasks.pooled import join
from tests.tasks import mine

from .helpers import Outcome, StoppedError, rounds, run, small, stop_after, table

SCORE = "accuracy_of_global_model"


def test_the_mean_is_measured_by_each_client_on_its_own_examples(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """The best model is chosen among means too."""
    changes = {"average_models": True, "validation_share": 0.2}
    folder = run(tmp_path / "run", **changes)
    task = load_task(small(folder, **changes).run_config())
    module = task.model()
    module.load_state_dict(load_file(folder / "model.safetensors"))
    for row in table(folder / "clients.csv")[-5:]:
        with subtests.test(row=row):
            own = task.splits(row["client"])
            assert own.validation is not None
            for split, examples in (("test", own.test), ("validation", own.validation)):
                found = measure(module, task, examples)
                assert float(row[f"{split}_{SCORE}"]) == pytest.approx(
                    100.0 * found["accuracy"], abs=1e-4
                )
                assert float(row[f"{split}_loss_of_global_model"]) == pytest.approx(
                    found["loss"], abs=1e-4
                )
    assert load_model(folder / "model-best.safetensors")[1][f"validation_{SCORE}_mean"] == max(
        float(row[f"validation_{SCORE}_mean"]) for row in table(folder / "rounds.csv")
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"training_clients": "client-1, client-7"},
        {"enrolled_sizes": "client-1=500 client-7=500"},
    ],
)
def test_an_unknown_client_is_refused_at_once(tmp_path: Path, changes: dict[str, str]) -> None:
    key = next(iter(changes)).replace("_", "-")
    with pytest.raises(
        FairbloomError,
        match=rf"{key} names 'client-7'.* there are client-0, client-1, client-2 and 2 more$",
    ):
        run(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_the_best_model_is_chosen_by_validation_examples(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    settings: dict[str, Any] = {"method": "fedavg", "num_rounds": 12, "fraction": 0.2, "seed": 9}
    folder = run(tmp_path / "run", validation_share=0.3, **settings)
    rows = table(folder / "rounds.csv")
    clients = table(folder / "clients.csv")
    means = {}
    for row in rows:
        with subtests.test(row=row):
            own = [float(c[f"validation_{SCORE}"]) for c in clients if c["round"] == row["round"]]
            means[int(row["round"])] = float(row[f"validation_{SCORE}_mean"])
            assert means[int(row["round"])] == pytest.approx(np.mean(own), rel=1e-12)
    best = max(means, key=lambda number: means[number])
    by_test = max(rows, key=lambda row: float(row[f"test_{SCORE}_mean"]))
    assert best != int(by_test["round"]), "this run cannot tell by what the best model is chosen"
    about = load_model(folder / "model-best.safetensors")[1]
    assert {k: v for k, v in about.items() if k not in ("blake3", "rows")} == {
        "round": best,
        f"validation_{SCORE}_mean": means[best],
    }


def test_pooled_clients_share_training_and_keep_their_tests(subtests: pytest.Subtests) -> None:
    settings = small("", pooled=True).run_config()
    task = load_task(settings)
    apart = load_task({**settings, "pooled": False})
    assert load_task(settings) is task
    first, second = (task.splits(client) for client in task.clients[:2])
    assert first.train is second.train
    for client in task.clients:
        with subtests.test(client=client):
            for mine, own in zip(
                task.splits(client).test[:], apart.splits(client).test[:], strict=True
            ):
                assert torch.equal(mine, own)
    inputs, targets = (
        torch.cat(part)
        for part in zip(*(apart.splits(c).train[:] for c in apart.clients), strict=True)
    )
    assert torch.equal(first.train[:][0], inputs)
    assert torch.equal(first.train[:][1], targets)


def test_shared_tensors_are_joined_by_rows_and_others_copied() -> None:
    inputs = torch.arange(12.0).view(6, 2)
    targets = torch.arange(6)
    parts = [Examples(inputs, targets, torch.tensor(rows)) for rows in ([4, 0], [5])]
    shared = join(parts)
    whole = Examples(inputs + 100, targets + 100)
    assert shared.inputs is inputs
    assert shared.targets is targets
    copied = join([*parts, whole])
    assert copied.rows is None
    assert copied.targets.tolist() == [4, 0, 5, 100, 101, 102, 103, 104, 105]
    assert copied[:][0][:3].tolist() == shared[:][0].tolist()


def begin(out: Path, **changes: Any) -> tuple[list[str], float]:
    """Run one round by default; return the number of clients that trained in each round, and the
    recorded fraction."""
    plain = {"num-rounds": 1, "device": "cpu", "evaluate-every": 0, "out": str(out)}
    folder = simulate(
        Settings.of(plain | {key.replace("_", "-"): value for key, value in changes.items()})
    )
    return [row["participants"] for row in table(folder / "rounds.csv")], float(
        tomllib.loads((folder / "config.toml").read_text())["fraction"]
    )


@pytest.mark.parametrize(
    ("clients", "trained", "fraction"),
    [
        (2, "2", 1.0),
        (9, "9", 1.0),
        (10, "5", 0.5),
        (11, "6", 0.5),
    ],
)
def test_all_of_up_to_nine_clients_train_and_half_of_more(
    tmp_path: Path, clients: int, trained: str, fraction: float
) -> None:
    assert begin(tmp_path / str(clients), clients=clients) == ([trained], fraction)


def test_only_clients_that_train_count_and_pooled_data_are_one(tmp_path: Path) -> None:
    some, _ = begin(tmp_path / "some", clients=12, training_clients="client-01,client-02,client-03")
    pooled, _ = begin(tmp_path / "pooled", clients=4, pooled=True, num_rounds=2)
    assert (some, pooled) == (["3"], ["1", "1"])


def test_a_run_goes_on_with_the_fraction_that_it_was_begun_with(tmp_path: Path) -> None:
    """A folder of before has 0.5, which was the default then."""
    begin(tmp_path / "a", clients=4, fraction=0.5)
    assert begin(tmp_path / "a", clients=4, num_rounds=3) == (["2"] * 3, 0.5)
    with pytest.raises(RunFolderError, match=r"fraction = 0\.5 there and 1\.0 here"):
        begin(tmp_path / "a", clients=4, num_rounds=4, fraction=1.0)


EARLY: dict[str, Any] = {
    **{
        "clients": 4,
        "num-rounds": 40,
        "fraction": 1.0,
        "validation-share": 0.3,
        "early-stopping": 3,
    },
    # so long steps that the score soon rises and falls
    **{"device": "cpu", "engine": "loop", "learning-rate": 1.0},
}


def run_until(out: Path, **changes: Any) -> Path:
    return simulate(Settings.of({**EARLY, "out": str(out), **changes}))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_until(tmp_path_factory.mktemp("early") / "run")


def test_a_run_ends_after_its_patience_without_a_better_score(
    stopped: Path, tmp_path: Path
) -> None:
    """As docs/runs.md has it: three rounds after the first one with the best score up to then."""
    long = run_until(tmp_path / "long", **{"early-stopping": 0, "num-rounds": 20})
    scores = [
        float(row["validation_accuracy_of_global_model_mean"]) for row in table(long / "rounds.csv")
    ]
    bests = [1 + scores.index(max(scores[:number])) for number in range(1, 21)]
    end = next(number for number, best in enumerate(bests, start=1) if number - best == 3)
    assert end < 20, "the data are such that it stops"
    found = fairbloom.load(stopped)
    assert (found.state, found.rounds_done) == ("finished", end)
    assert rounds(stopped) == rounds(long)[:end]


def test_the_folder_the_log_and_show_say_why(
    stopped: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    found = fairbloom.load(stopped)
    assert re.fullmatch(
        r"the mean validation accuracy was best in round \d+, [\d.]+ %, and not better in the 3"
        r" rounds since "
        r"\(early-stopping = 3\)",
        found.stopped,
    )
    found.show()
    shown = " ".join(capsys.readouterr().out.split())
    assert f"The run stopped after round {found.rounds_done} of 40: {found.stopped}." in shown
    with caplog.at_level("INFO", "flwr"):
        run_until(stopped)
    assert any("is finished, since the mean validation" in line for line in caplog.messages)
    assert found.summary["worst"] == min(found.final().values())


def test_a_stopped_run_goes_on_only_with_more_patience(stopped: Path, tmp_path: Path) -> None:
    folder = run_until(tmp_path / "run", **{"early-stopping": 2})
    end = fairbloom.load(folder).rounds_done
    run_until(folder, **{"early-stopping": 2, "num-rounds": 60})
    assert fairbloom.load(folder).rounds_done == end
    assert fairbloom.load(folder).finished
    run_until(folder, **{"num-rounds": 60})
    assert fairbloom.load(folder).rounds_done > end
    assert Outcome.of(folder) == Outcome.of(stopped)
    with pytest.raises(fairbloom.FairbloomError, match="early-stopping = 3 there and 2 here"):
        run_until(folder, **{"early-stopping": 2, "num-rounds": 60})


def test_a_run_killed_at_any_moment_stops_where_it_would_have(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between its last checkpoint and its final model, where nothing is left to run."""
    end = fairbloom.load(stopped).rounds_done
    with monkeypatch.context() as patched:
        patched.setattr("fairbloom.server.run_folder.recorder.SHARED_SECONDS", 0.0)
        with pytest.raises(StoppedError):
            simulate(Settings.of({**EARLY, "out": str(tmp_path / "run")}), stop_after(end))
        assert not (tmp_path / "run" / "model.safetensors").exists()
    monkeypatch.setattr(RunRecorder, "record", None)  # no round is left
    run_until(tmp_path / "run")
    assert Outcome.of(tmp_path / "run") == Outcome.of(stopped)


def test_personal_models_are_watched_where_they_are_used(tmp_path: Path) -> None:
    """The global model of Local never changes, and would end the run at once."""
    folder = run_until(
        tmp_path / "run",
        method="local",
        **{"num-rounds": 8, "learning-rate": 0.05, "early-stopping": 2},
    )
    column = "validation_accuracy_of_personal_model"
    sums = Counter[str]()
    for row in table(folder / "clients.csv"):
        sums[row["round"]] += float(row[column])  # type: ignore[assignment]
    assert sums["2"] > sums["1"]
    assert fairbloom.load(folder).rounds_done > 3


def test_a_task_without_validation_examples_is_refused(tmp_path: Path) -> None:
    """It would never stop early, whatever was set."""
    task = {"task": f"{mine.__name__}:line", "learning-rate": 0.01, "num-rounds": 3}
    with pytest.raises(
        FairbloomError,
        match=r"validation-share = 0.3: task .*:line sets no validation examples apart",
    ):
        run_until(tmp_path / "run", **task, **{"early-stopping": 2})
    assert not (tmp_path / "run").exists()
    unset = {"early-stopping": 0, "validation-share": 0}
    assert fairbloom.load(run_until(tmp_path / "run", **task, **unset)).rounds_done == 3


def test_on_round_ends_a_run_as_finished_by_stop_run(tmp_path: Path) -> None:
    def enough(recorded: RecordedRound) -> None:
        if recorded.number == 4:
            raise StopRun("good enough")

    settings: dict[str, Any] = {"clients": 4, "out": tmp_path / "run", "device": "cpu"}
    found = fairbloom.run(rounds=10, settings={"early-stopping": 0}, on_round=enough, **settings)
    assert (found.state, found.rounds_done, found.stopped) == ("finished", 4, "good enough")
    assert fairbloom.run(rounds=10, **settings).rounds_done == 4
    longer = fairbloom.run(rounds=11, **settings)
    assert (longer.rounds_done, longer.stopped) == (11, "")


CLIENTS = 4
ROUNDS = 1
SLACK = 1.1

# Functions that wait for a device. Copies of whole models are not among them.
WAITS = (
    Tensor.item,
    Tensor.tolist,
    Tensor.nonzero,
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
)

CASES = [
    {"model": "logistic"},
    {"model": "mlp", "batch_size": 50, "momentum": 0.9},
    {"model": "cnn", "batch_size": 50},
    {"model": "mlp", "method": "qfedavg"},
    {"model": "mlp", "method": "scaffold"},
    {"model": "mlp", "method": "ditto"},
]


class CountWaits(TorchFunctionMode):
    """Counts the calls of WAITS, and of more functions, by name."""

    def __init__(self, *more: Callable[..., Any]) -> None:
        super().__init__()
        self.functions = (*WAITS, *more)
        self.counts = Counter[str]()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in self.functions:
            self.counts[func.__name__] += 1
        return func(*args, **kwargs or {})


def run_after_first_round(
    folder: Path, engine: str, begin: Callable[[], object], **changes: Any
) -> None:
    """Carry out 1 + ROUNDS rounds; call `begin` after the first, which fills caches."""

    def after(recorded: RecordedRound) -> None:
        if recorded.number == 1:
            begin()

    given = {"method": "fedavg"} | changes
    simulate(
        small(folder, engine=engine, clients=CLIENTS, fraction=1.0, num_rounds=1 + ROUNDS, **given),
        after,
    )


def most_waits(engine: str, each_client: int) -> float:
    """Return the most waits in ROUNDS rounds; there is one block of clients."""
    return SLACK * ROUNDS * (each_client * CLIENTS if engine == "loop" else 10 + 1)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("changes", CASES[:2], ids=str)
def test_a_client_reads_at_most_one_number_of_its_device(
    changes: dict[str, Any], engine: str, tmp_path: Path
) -> None:
    profiler = profile(activities=[ProfilerActivity.CPU])
    run_after_first_round(tmp_path / "run", engine, profiler.start, **changes)
    profiler.stop()
    counts = {each.key: each.count for each in profiler.key_averages()}
    assert counts["aten::copy_"]
    assert counts.get("aten::_local_scalar_dense", 0) <= most_waits(engine, 1)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("changes", CASES, ids=str)
def test_steps_and_measures_wait_for_no_step(
    changes: dict[str, Any], engine: str, tmp_path: Path
) -> None:
    with CountWaits() as waits:
        run_after_first_round(tmp_path / "run", engine, waits.counts.clear, **changes)
    assert waits.counts.total() <= most_waits(engine, 4)


@pytest.mark.parametrize("block", [CLIENTS, 3])
@pytest.mark.parametrize("changes", CASES[:3], ids=str)
def test_a_stacked_round_waits_ten_times_and_once_a_block(
    changes: dict[str, Any], block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the copies to the processor, of which each block's models are one."""
    waits = CountWaits(Tensor.cpu)

    def copy_once(state: Any) -> Any:
        before = waits.counts["cpu"]
        copied = on_processor(state)
        waits.counts["cpu"] = before + 1
        return copied

    monkeypatch.setattr("fairbloom.tasks.models.registry.on_processor", copy_once)
    monkeypatch.setattr(choice, "fitting_clients", lambda *_: block)
    with waits:
        run_after_first_round(tmp_path / "run", "stacked", waits.counts.clear, **changes)
    blocks = math.ceil(CLIENTS / block)
    assert blocks <= waits.counts["cpu"] / ROUNDS
    assert waits.counts.total() / ROUNDS <= 10 + blocks
