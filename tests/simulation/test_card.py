"""Updates in the memory of a card, here the processor's: their sums are those of NumPy's pass.

Whole runs in this process: repeatable, recorded, and not run twice.

Runs with recorded steps, which on the CPU are the same operations.

FairFed in whole runs: the gap between two groups falls against FedAvg, and every engine makes
the same of it.
"""

import gc
import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import Mock
from weakref import WeakSet

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.autograd.profiler import profile

from fairbloom.client import training
from fairbloom.client.local import LocalClient, _load_for_device, load_task_and_model
from fairbloom.client.metrics import TRAIN, Measurement
from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.run import Run, load
from fairbloom.protocol.scores import ACCURACY
from fairbloom.protocol.terms import Terms
from fairbloom.rounds import aggregation
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.updates import Updates
from fairbloom.rounds.vectors import Vectors, gram_matrices, weighted_sum
from fairbloom.server.checkpoint import load_model
from fairbloom.server.fairness import percent_improved, summarize
from fairbloom.server.run_folder.csv_rows import MEASURES, ClientRows, round_columns
from fairbloom.server.settings import Settings
from fairbloom.simulation import clients, memory
from fairbloom.simulation.choice import RECORDED, Choice
from fairbloom.simulation.memory import CardRows, rows_on_card, write_models
from fairbloom.simulation.run import simulate
from fairbloom.tasks.inputs import move
from fairbloom.tasks.loading import forget_tasks
from fairbloom.tasks.models import arrays_of
from tests.client.test_capture import PlainRecorder
from tests.simulation.helpers import (
    Outcome,
    assert_same_model,
    assert_whole,
    checkpoints_every,
    drafts,
    rounds,
    rows_seen,
    run,
    small,
    table,
)
from tests.simulation.test_rounds_as_set import run_after_first_round
from tests.tables.helpers import grouped

ENGINES = ("loop", "stacked")
UPDATES_MADE = 7


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep updates in tensors on any device."""

    def rows_of(layouts: Sequence[Layout], rows: int, device: torch.device) -> list[CardRows]:
        return [CardRows(torch.empty(rows, each.size, device=device)) for each in layouts]

    monkeypatch.setattr(clients, "rows_on_card", rows_of)


@pytest.fixture
def updates() -> tuple[Updates, Updates]:
    """Return the same updates, from NumPy's rows and from those of a card."""
    random = np.random.default_rng(0)
    shapes = {"weight": (70, 50), "bias": (70,)}
    layout = Layout(
        {name: random.normal(size=each).astype(np.float32) for name, each in shapes.items()}
    )
    models = random.normal(size=(UPDATES_MADE, layout.size)).astype(np.float32)
    here = Updates(layout, models.copy())
    there = Updates(layout, CardRows(torch.from_numpy(models)))
    for each in (here, there):
        each.add_rows([{}] * UPDATES_MADE)
        assert not each.screen(gram=True)
    return here, there


def test_updates_on_a_card_have_the_same_bits(updates: tuple[Updates, Updates]) -> None:
    here, there = updates
    np.testing.assert_array_equal(here.matrix[:3, :], there.matrix[:3, :])


@pytest.mark.parametrize("by_array", [False, True])
def test_products_on_a_card_are_those_of_numpy(
    updates: tuple[Updates, Updates], by_array: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CHUNK_NUMBERS", 9 * 1000)  # several chunks
    here, there = updates
    kept = Vectors.of(np.ones(here.layout.size, np.float32))
    ends = here.layout.ends if by_array else (here.layout.size,)
    expected, found = (
        gram_matrices(Vectors.concat([each.vectors, kept, kept]), ends) for each in updates
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9)
    np.testing.assert_array_equal(found, np.swapaxes(found, 1, 2))
    np.testing.assert_allclose(there.norms, here.norms, rtol=1e-14)


@pytest.mark.parametrize("by_array", [False, True])
def test_sums_on_a_card_are_those_of_numpy(
    updates: tuple[Updates, Updates], by_array: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CHUNK_NUMBERS", UPDATES_MADE * 1000)
    layout = updates[0].layout
    shape = (len(layout.ends), UPDATES_MADE) if by_array else (UPDATES_MADE,)
    weights = np.random.default_rng(1).random(shape)
    expected, found = (weighted_sum(weights, each.vectors, ends=layout.ends) for each in updates)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [[2], [3, 0, 1]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_models_reach_their_rows_in_one_write(rows: list[int], dtype: torch.dtype) -> None:
    shapes = {f"array {number}": (number % 3, 4)[: number % 2 + 1] for number in range(1, 63)}
    layout = Layout({name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    models = {
        name: torch.randn(len(rows), *shape).to(dtype).requires_grad_()
        for name, shape in reversed(shapes.items())
    }
    matrix = torch.zeros(4, layout.size)
    here = matrix.numpy().copy()
    with profile() as profiled:
        write_models(CardRows(matrix), rows, layout.slices, models)
    calls = {each.key: each.count for each in profiled.key_averages()}
    assert [calls[f"aten::{name}"] for name in ("cat", "index_copy_")] == [1, 1]  # of 62 arrays
    write_models(here, rows, layout.slices, models)
    np.testing.assert_array_equal(matrix, here)


def step_norm(updates: Updates, coefficients: Any) -> float:
    """Return the norm of a step."""
    method = small("", method="fedavg", update_limit=np.inf).strategy()
    n = np.ones(len(updates))
    rows: Any = SimpleNamespace(prior=n / n.sum(), counts=n), updates.vectors
    replies: Any = SimpleNamespace(updates=updates)
    return aggregation._apply_step(method, replies, rows, coefficients)[1]


@pytest.mark.parametrize("scale", [1.0, 1e-6])
@pytest.mark.parametrize("by_array", [False, True])
def test_a_card_measures_the_step_that_it_takes(
    updates: tuple[Updates, Updates], by_array: bool, scale: float
) -> None:
    """To the rounding of the model; the processor measures it in a pass of its own."""
    layout = updates[0].layout
    shape = (len(layout.ends), UPDATES_MADE) if by_array else (UPDATES_MADE,)
    weights = scale * np.random.default_rng(1).random(shape)
    expected = step_norm(updates[0], weights)
    assert step_norm(updates[1], weights) == pytest.approx(expected, rel=1e-9)
    assert step_norm(updates[1], 0.0 * weights) == 0.0


@pytest.mark.parametrize("length", [1e-170, 1e160])
def test_a_step_beyond_the_squares_has_its_length(length: float) -> None:
    layout = Layout({"a": np.zeros(3)})
    updates = Updates(layout, CardRows(torch.full((2, 3), -1.0, dtype=torch.float64)))
    updates.add_rows([{}] * 2)
    expected = 2.0 * 3**0.5 * length
    assert step_norm(updates, np.full(2, length)) == pytest.approx(expected, rel=1e-9, abs=0.0)


@pytest.mark.parametrize(("rows", "chunks"), [(50, 1), (80, 1), (100, 2)])
def test_few_chunks_hold_all_numbers(rows: int, chunks: int) -> None:
    on_card = CardRows(torch.empty(rows, 1_600_000, device="meta"))  # without memory
    assert len([*on_card._chunks(Vectors((on_card,)))]) == chunks


def test_a_reply_on_a_card_that_is_not_finite_is_refused() -> None:
    layout = Layout({"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)})
    models = torch.ones(3, 5)
    models[1, 4] = torch.nan
    models[2, 0] = torch.inf
    updates = Updates(layout, CardRows(models))
    updates.add_rows([{}] * 3)
    assert {place: str(reason) for place, reason in updates.screen(gram=True).items()} == {
        1: "array 'b' is not finite",
        2: "array 'a' is not finite",
    }
    updates.remove(1, 2)
    assert updates.norms == pytest.approx([5**0.5])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fedavg"},
        {"method": "fedfv"},
        {"method": "fedlf"},
        {"method": "drfa"},
        {"method": "scaffold"},
        {"method": "fedavg", "server_optimizer": "adam", "server_optimizer_lr": 0.01},
    ],
    ids=str,
)
def test_a_run_with_updates_on_a_card_is_that_without(
    changes: dict[str, Any], engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plain = {"engine": engine, "num_rounds": 3, "fraction": 1.0} | changes
    expected = run(tmp_path / "here", **plain)
    request.getfixturevalue("on_card")
    there = run(tmp_path / "there", **plain)
    assert_same_model(there, expected)
    assert not Outcome.of(run(tmp_path / "again", **plain)).differences(Outcome.of(there))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("changes", [{"method": "fedavg"}, {"method": "fedlf"}], ids=str)
def test_a_round_brings_one_model_down_from_a_card(
    changes: dict[str, Any],
    engine: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_card: None,
) -> None:
    """It reads all rows twice. Up goes the model, for clients, for their updates and the step.

    Nobody measures the step in this process.
    """
    effects = {"move": move, "arrays_of": arrays_of, "read": CardRows._chunks}
    calls = Mock(**{f"{name}.side_effect": call for name, call in effects.items()})
    for module in (clients, memory):
        monkeypatch.setattr(module, "move", calls.move)
        monkeypatch.setattr(module, "arrays_of", calls.arrays_of)
    monkeypatch.setattr(CardRows, "_chunks", lambda *given: calls.read(*given))
    monkeypatch.setattr(Layout, "distance", calls.distance)
    run_after_first_round(tmp_path / "run", engine, calls.reset_mock, **changes)
    size = sum(each.nbytes for each in load_file(tmp_path / "run" / "model.safetensors").values())
    up = [each.args[0] for each in calls.move.call_args_list]
    down = [tensor for each in calls.arrays_of.call_args_list for tensor in each.args[0].values()]
    moved = [sum(tensor.nbytes for tensor in each) // size for each in (up, down)]
    assert [*moved, calls.read.call_count, calls.distance.call_count] == [3, 1, 2, 0]


def test_buffers_are_averaged_with_updates_on_a_card(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plain = {"model": "tests.gpu.own:batch_normed", "num_rounds": 1}
    expected = run(tmp_path / "here", **plain)
    request.getfixturevalue("on_card")
    assert_same_model(run(tmp_path / "there", **plain), expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch_size", [0, 10])
def test_examples_that_do_not_fit_give_the_same_bits(
    engine: str, batch_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"engine": engine, "num_rounds": 3, "batch_size": batch_size, "model": "mlp"}
    expected = run(tmp_path / "here", **plain)
    monkeypatch.setattr("fairbloom.tasks.task.has_room", lambda device, size: False)
    monkeypatch.setattr(training, "fetch_ahead", lambda fetched, device: fetched)
    _load_for_device.cache_clear()
    streamed = run(tmp_path / "streamed", **plain)
    _load_for_device.cache_clear()
    assert not Outcome.of(streamed).differences(Outcome.of(expected))


def test_updates_that_do_not_fit_stay_with_the_processor() -> None:
    assert not rows_on_card([Layout({"a": np.zeros(3, np.float32)})], 2, torch.device("cpu"))


@pytest.mark.parametrize("method", ["fedavg", "fedfv", "fedlf"])
@pytest.mark.parametrize("engine", ENGINES)
def test_updates_are_gone_before_the_next_round(
    engine: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without garbage collection, which may come rounds later."""
    alive = WeakSet[Updates]()
    made = Updates.__init__

    def make(updates: Updates, *given: Any, **named: Any) -> None:
        alive.add(updates)
        made(updates, *given, **named)

    monkeypatch.setattr(Updates, "__init__", make)
    counts = list[int]()
    gc.disable()
    try:
        simulate(
            small(tmp_path / "run", engine=engine, method=method, num_rounds=4),
            lambda _: counts.append(len(alive)),
        )
    finally:
        gc.enable()
    assert counts[0] <= 1
    assert counts[1:] == counts[:-1]


OF_PARTICIPANTS = ("coefficient", "train_loss_before_round", "train_loss_of_global_model")
COLUMN = ACCURACY.column()


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    one, other = (Outcome.of(run(tmp_path / str(seed), seed=seed)) for seed in (0, 1))
    assert one.differences(other) == "rounds, clients, model, best"


def test_the_number_of_threads_changes_nothing(tmp_path: Path, subtests: pytest.Subtests) -> None:
    before = torch.get_num_threads()
    models = []
    for threads in (1, 2):
        with subtests.test(threads=threads):
            torch.set_num_threads(threads)
            models.append(Outcome.of(run(tmp_path / str(threads), model="mlp", num_rounds=2)))
            assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert not models[0].differences(models[1])


# What is on disk ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one checkpoint for all rounds, however busy the machine is."""
    with checkpoints_every(100):
        return run(tmp_path_factory.mktemp("finished") / "run")


def test_a_run_folder_has_what_is_documented_and_no_draft(finished: Path) -> None:
    assert {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()} == {
        *(
            "config.toml",
            "env.json",
            "scores.json",
            "model.json",
            "engine.json",
            "split.npz",
            "preprocessing.json",
        ),
        *("rounds.csv", "clients.csv", "coefficients.csv"),
        *("checkpoint/6.safetensors", "model.safetensors", "model-best.safetensors"),
    }
    assert not drafts(finished)
    assert {"python", "flwr", "torch", "numpy"} <= set(
        json.loads((finished / "env.json").read_text())
    )


def test_tables_have_the_documented_columns_and_rows(
    finished: Path, subtests: pytest.Subtests
) -> None:
    of_rounds = round_columns(small(finished).strategy())
    for name, columns in (("rounds.csv", of_rounds), ("clients.csv", ClientRows().columns)):
        with subtests.test(name=name, columns=columns):
            assert_whole(finished / name)
            assert tuple(table(finished / name)[0]) == columns
    assert [row["round"] for row in table(finished / "rounds.csv")] == [
        str(number) for number in range(1, 7)
    ]
    assert [(row["round"], row["client"]) for row in table(finished / "clients.csv")] == [
        (str(number), f"client-{k}") for number in range(1, 7) for k in range(5)
    ]


def test_a_rounds_measures_are_those_of_its_clients(
    finished: Path, subtests: pytest.Subtests
) -> None:
    """Participants alone have a coefficient and training losses."""
    for row in table(finished / "rounds.csv"):
        with subtests.test(row=row):
            clients = [
                client
                for client in table(finished / "clients.csv")
                if client["round"] == row["round"]
            ]
            assert {key: float(row[f"{COLUMN}_{key}"]) for key in MEASURES} == summarize(
                {client["client"]: float(client[COLUMN]) for client in clients}
            )
            drawn = [client for client in clients if client["participated"] == "1"]
            assert len(drawn) == int(row["participants"]) == int(row["replies_used"]) == 2
            for client, key in itertools.product(clients, OF_PARTICIPANTS):
                assert (client[key] != "") == (client in drawn)
            before = {
                client["client"]: float(client["train_loss_before_round"]) for client in drawn
            }
            assert float(row["percent_of_participants_improved"]) == percent_improved(
                before,
                {client["client"]: float(client["train_loss_of_global_model"]) for client in drawn},
            )


def test_the_rows_that_are_reported_are_those_on_disk(tmp_path: Path) -> None:
    reported = rows_seen(small(tmp_path / "run"))
    assert [{key: str(value) for key, value in row.items()} for row in reported] == [
        {key: row[key] for key in reported[0]} for row in table(tmp_path / "run" / "rounds.csv")
    ]


def test_the_best_model_is_that_of_the_best_evaluated_round(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", method="fedavg", num_rounds=12, fraction=0.2, seed=2)
    means = [float(row[f"{COLUMN}_mean"]) for row in rounds(folder)]
    best = 1 + means.index(max(means))  # the first of equals
    assert best < 12, "this run cannot tell the best model from the last"
    about = load_model(folder / "model-best.safetensors")[1]
    assert {**about, "blake3": "", "rows": ""} == {
        "round": best, f"{COLUMN}_mean": max(means), "blake3": "", "rows": "",
    }  # fmt: skip
    stopped = run(tmp_path / "stopped", method="fedavg", num_rounds=best, fraction=0.2, seed=2)
    kept = load_file(folder / "model-best.safetensors")
    expected = load_file(stopped / "model.safetensors")
    assert all(np.array_equal(kept[key], expected[key]) for key in expected)


def test_evaluation_changes_nothing_in_the_training(tmp_path: Path) -> None:
    often, seldom = (run(tmp_path / str(every), evaluate_every=every) for every in (1, 0))
    assert (often / "model.safetensors").read_bytes() == (seldom / "model.safetensors").read_bytes()


# Again --------------------------------------------------------------------------------------------


def test_a_run_without_a_folder_is_named_by_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, again, other = (simulate(small(out="", num_rounds=1, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    assert first.parent == other.parent == tmp_path / "runs"
    assert first.name.startswith("digits-fedfv-seed0-")


def test_an_absent_device_stops_the_run_before_any_client_works(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"device = 'cuda:99' is not available on this machine: auto chooses the best",
    ):
        run(tmp_path / "run", device="cuda:99")
    assert not (tmp_path / "run").exists()


# The training losses of one model -----------------------------------------------------------------


def test_a_training_loss_that_is_known_is_not_measured_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    """By how often clients measure a model on their training examples, round by round."""
    passes = Counter[int]()
    measured = LocalClient.measured

    def count(self: LocalClient, measurement: Measurement, terms: Terms) -> dict[str, float]:
        passes[terms.server_round] += measurement.examples == TRAIN
        return measured(self, measurement, terms)

    monkeypatch.setattr(LocalClient, "measured", count)
    plain: dict[str, Any] = {"method": "fedavg", "fraction": 1.0, "num_rounds": 4, "engine": "loop"}
    cases: list[tuple[dict[str, Any], dict[int, int]]] = [
        # of five clients, before and after the first round, and then after each
        ({}, {1: 10, 2: 5, 3: 5, 4: 5}),
        ({"evaluate_every": 2}, {2: 10, 4: 10}),  # round 3 has changed the model meanwhile
        # clients evaluate another model than they train
        ({"average_models": True}, {1: 10, 2: 10, 3: 10, 4: 10}),
    ]
    for place, (changes, expected) in enumerate(cases):
        with subtests.test(place=place, changes=changes):
            folder = run(tmp_path / str(place), **plain | changes)
            assert passes == expected
            passes.clear()
            for row in table(folder / "clients.csv"):
                assert (row["train_loss_before_round"] != "") == (row["participated"] == "1")


def test_a_run_that_continues_knows_the_losses_of_its_last_round(tmp_path: Path) -> None:
    changes = {"method": "fedavg", "fraction": 1.0, "engine": "stacked"}
    whole = Outcome.of(run(tmp_path / "whole", num_rounds=4, **changes))
    run(tmp_path / "grown", num_rounds=2, **changes)
    assert not Outcome.of(run(tmp_path / "grown", num_rounds=4, **changes)).differences(whole)


T = TypeVar("T")

MLP = {"method": "fedavg", "model": "mlp", "batch_size": 16}
NETWORK = MLP | {"model": "tests.simulation.test_stacked:Dropped"}

LOOP = [
    MLP | {"method": "fedprox", "momentum": 0.9},
    MLP | {"method": "ditto"},
    MLP | {"method": "scaffold"},
    MLP | {"learning_rate_decay": 0.9},
    NETWORK,
]

STACKED = [
    MLP | {"method": "fedprox", "momentum": 0.9},
    MLP | {"method": "ditto"},
    MLP | {"method": "scaffold"},
    MLP | {"learning_rate_decay": 0.9},
    MLP | {"optimizer": "adam", "learning_rate": 0.01},
    MLP | {"batch_size": 0, "local_epochs": 4},
    MLP | {"method": "qfedavg"},
    NETWORK | {"learning_rate_decay": 0.9},
    NETWORK | {"method": "fedprox", "gradient_clip": 1.0, "optimizer": "adamw"},
]


class Late(PlainRecorder):
    """Fails after some records."""

    def __init__(self, records: int) -> None:
        super().__init__()
        self._records = records

    def record(self, step: Callable[[], T]) -> Callable[[], T]:
        if self.recorded == self._records:
            raise RuntimeError("operation not permitted when stream is capturing")
        return super().record(step)


def use(recorder: PlainRecorder, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run be recorded."""
    choice = Choice(engine, "it was asked for", block=4, recorded=RECORDED)
    monkeypatch.setattr("fairbloom.simulation.choice.CudaRecorder", lambda _: recorder)
    monkeypatch.setattr("fairbloom.simulation.run.choose", lambda *_: choice)
    monkeypatch.setattr("fairbloom.client.dropout.COUNTED", ("cpu",))
    # On the CPU, Adam reads its step count.
    monkeypatch.setattr("fairbloom.client.capture.WAITS", None)


def recorded_in(folder: Path) -> str:
    return str(json.loads((folder / "engine.json").read_text())["recorded"])


@pytest.mark.parametrize(
    ("engine", "changes"),
    [("loop", each) for each in LOOP] + [("stacked", each) for each in STACKED],
    ids=str,
)
def test_a_run_of_recorded_steps_has_the_bits_of_ordinary_ones(
    engine: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = PlainRecorder()
    use(Late(0), engine, monkeypatch)  # blocks of the same size
    expected = Outcome.of(run(tmp_path / "ordinary", engine=engine, num_rounds=3, **changes))
    use(recorder, engine, monkeypatch)
    folder = run(tmp_path / "recorded", engine=engine, num_rounds=3, **changes)
    assert not Outcome.of(folder).differences(expected)
    # The rule of SCAFFOLD corrects the gradients of every step; stacked, it adds to them.
    unrecorded = changes["method"] == "scaffold" and engine == "loop"
    assert (recorder.replayed > 0) == (not unrecorded)
    assert bool(recorder.released) == (not unrecorded)
    assert (recorded_in(folder) == RECORDED) == (not unrecorded)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_late_failure_is_recorded_and_logged_once(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changes = NETWORK | {"batch_size": 20, "num_rounds": 4, "fraction": 0.2}  # fails in round 3
    use(Late(0), engine, monkeypatch)
    expected = Outcome.of(run(tmp_path / "ordinary", engine=engine, **changes))
    recorder = Late(1)
    use(recorder, engine, monkeypatch)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "flwr"):
        folder = run(tmp_path / "late", engine=engine, **changes)
    assert recorder.replayed
    assert "not permitted when stream is capturing" in recorded_in(folder)
    assert caplog.text.count("local steps run without CUDA graphs") == 1
    assert not Outcome.of(folder).differences(expected)


# The bytes of all tensors that something refers to, without the tasks on the processor.
def live_bytes() -> int:
    forget_tasks()
    gc.collect()
    kinds = (torch.Tensor, torch.nn.Parameter)
    storages = [each.untyped_storage() for each in gc.get_objects() if type(each) in kinds]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.usefixtures("on_card")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_each_run_leaves_no_more_memory_than_the_first(
    engine: str, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = dict[int, int]()
    for seed in range(4):
        recorder = PlainRecorder()
        use(recorder, engine, monkeypatch)
        with suppress(ZeroDivisionError):
            simulate(
                small(tmp_path / str(seed), engine=engine, seed=seed, num_rounds=3, **MLP),
                lambda recorded: 1 / (not fails or recorded.number < 2),
            )
        assert (recorder.recorded > 0, recorder.released) == (True, 1)
        if seed in (0, 3):  # to count takes as long as the run
            used[seed] = live_bytes()
    assert used[3] <= used[0] + 10_000  # a model has 220 kB


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # five clients train the model, and five evaluate it
        ({"method": "fedavg"}, [10, 10]),
        # as they evaluate: also the model with the kept head, by itself and as the personal one
        ({"method": "fedavg", "personal_parameters": "head"}, [20, 25]),
        # also before the personal model is trained, and once there is one in its place
        ({"method": "ditto"}, [20, 25]),
    ],
    ids=str,
)
def test_a_model_is_loaded_only_where_another_one_was(
    changes: dict[str, Any], expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(tmp_path / "run", engine="loop", fraction=1.0, num_rounds=2, **changes)
    load = Mock(wraps=(model := load_task_and_model(settings)[1]).load_state_dict)
    monkeypatch.setattr(model, "load_state_dict", load)
    ends = [0]
    simulate(settings, lambda _: ends.append(load.call_count))
    assert np.diff(ends).tolist() == expected


def write_sites(folder: Path, seed: int, sites: int = 8) -> Path:
    """Write tables of sites at the two largest of which women count as ill only where it is
    severe."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    for k in range(sites):
        rows, strict = (1200, True) if k < 2 else (300, False)
        woman = random.random(rows) < 0.5
        severity = random.normal(size=rows)
        noise = random.normal(size=rows)
        ill = severity + 0.3 * random.normal(size=rows) > 0.0
        if strict:
            ill &= ~woman | (severity > 1.0)
        cells = zip(
            np.where(woman, "female", "male"),
            severity,
            noise,
            np.where(ill, "yes", "no"),
            strict=True,
        )
        lines = [
            "sex,severity,noise,target",
            *(f"{sex},{a:.4f},{b:.4f},{y}" for sex, a, b, y in cells),
        ]
        (folder / f"site-{k}.csv").write_text("\n".join(lines) + "\n")
    return folder


def ended(out: Path, **changes: Any) -> Run:
    plain: dict[str, Any] = {
        "fraction": 1.0,
        "device": "cpu",
        "evaluate-every": 0,
        "num-rounds": 15,
    }
    given = {key.replace("_", "-"): value for key, value in changes.items()}
    return load(simulate(Settings.of(plain | given | {"out": str(out)})))


def gap(run: Run) -> float:
    """Return the equal opportunity difference over all clients' test examples, in points."""
    return float(run.gaps.query("client.isna() and score == 'true-positive-rate'")["gap"].item())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_the_gap_between_groups_falls_at_every_seed(tmp_path: Path, seed: int) -> None:
    data = write_sites(tmp_path / f"data-{seed}", seed)
    shared = {
        "task": "csv",
        "data-dir": str(data),
        "schema": grouped(data, "sex"),
        "seed": seed,
        "learning-rate": 0.1,
    }
    plain = ended(tmp_path / f"fedavg-{seed}", method="fedavg", **shared)
    fair = ended(tmp_path / f"fairfed-{seed}", method="fairfed", **{"fairfed.beta": 0.2}, **shared)
    assert gap(fair) < 0.5 * gap(plain)
    before = plain.column("coefficient")
    after = fair.column("coefficient")
    assert all(after[name] < before[name] for name in ("site-0", "site-1"))


def test_data_without_groups_end_the_run_with_a_remedy(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    data = write_sites(tmp_path / "data", 0, sites=2)
    shared: dict[str, Any] = {
        "task": "csv",
        "data-dir": str(data),
        "method": "fairfed",
        "num-rounds": 1,
    }
    for without in ("", grouped(data, "severity>=-1", target="noise")):
        with subtests.test(without=without):
            with pytest.raises(FairbloomError, match="fairness between groups"):
                ended(tmp_path / "refused", **shared, schema=without)
            assert not (tmp_path / "refused").exists()
    for number, remedy in enumerate((["sex"], ["severity>=0.5", "sex"])):
        with subtests.test(number=number, remedy=remedy):
            assert ended(tmp_path / str(number), **shared, schema=grouped(data, *remedy)).finished


def test_a_client_with_one_group_takes_part_by_its_accuracy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_sites(tmp_path / "data", 0, sites=3)
    lines = (data / "site-2.csv").read_text().splitlines()
    (data / "site-2.csv").write_text(
        "\n".join([lines[0], *(line for line in lines if line.startswith("male"))]) + "\n"
    )
    with caplog.at_level(logging.WARNING, "flwr"):
        shared = {"task": "csv", "data_dir": str(data), "method": "fairfed", "num_rounds": 3}
        run = ended(tmp_path / "run", **shared, schema=grouped(data, "sex"))
    assert "refused" not in caplog.text
    assert run.rounds["replies_used"].tolist() == [3, 3, 3]
