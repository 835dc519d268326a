"""Recorded local steps equal ordinary ones, and what cannot be recorded runs without."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.client.capture import NO_CAPTURE, Capture, CudaRecorder, FindObstacle, FixedStep
from fairbloom.client.training import train
from fairbloom.client.work import LocalWork
from fairbloom.tasks import Examples, Splits, Task

T = TypeVar("T")

ROWS = 23
FEATURES = 16  # a batch of ten is aligned like a copy of it, on which the bits depend
CLASSES = 3
WORK = LocalWork(epochs=4, batch_size=10, learning_rate=0.1)


class PlainRecorder(CudaRecorder):
    """Replays the same operations, on any device."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.recorded = 0
        self.replayed = 0
        self.released = 0

    def warm_up(self, step: Callable[[], T]) -> T:
        return step()

    def record(self, step: Callable[[], T]) -> Callable[[], T]:
        self.recorded += 1

        def replay() -> T:
            self.replayed += 1
            return step()

        return replay

    def release(self) -> None:
        self.released += 1


class Failing(PlainRecorder):
    """Fails as PyTorch does when an operation is not permitted in a capture."""

    def record(self, step: Callable[[], T]) -> Callable[[], T]:
        raise RuntimeError("operation not permitted when stream is capturing")


class Wrong(PlainRecorder):
    """Replays a step twice."""

    def record(self, step: Callable[[], T]) -> Callable[[], T]:
        def replay() -> T:
            step()
            return step()

        return replay


class Idle(PlainRecorder):
    """Replays nothing."""

    def record(self, step: Callable[[], T]) -> Callable[[], Any]:
        return lambda: None


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def examples_of(client: int) -> Examples:
    random = torch.Generator().manual_seed(client)
    return Examples(
        torch.randn(ROWS, FEATURES, generator=random),
        torch.randint(CLASSES, (ROWS,), generator=random),
    )


def task_of(model: nn.Module) -> Task:
    return Task(("a",), lambda: model, loss, lambda _: Splits(examples_of(0), examples_of(0)))


def network(*between: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), *between, nn.ReLU(), nn.Linear(8, CLASSES))


def train_clients(model: nn.Module, work: LocalWork, capture: Capture) -> list[Tensor]:
    """Train two clients from the same model; return what both end with."""
    start = copy.deepcopy(model.state_dict())
    ends: list[Tensor] = []
    for client in range(2):
        model.load_state_dict(start)
        given = replace(work, random=np.random.default_rng(client), draws=client)
        train(model, task_of(model), examples_of(client), given, capture=capture)
        ends += [each.clone() for each in model.state_dict().values()]
    return ends


def assert_equal(model: nn.Module, work: LocalWork, recorder: PlainRecorder) -> Capture:
    capture = Capture(recorder)
    expected = train_clients(copy.deepcopy(model), work, NO_CAPTURE)
    for array, other in zip(train_clients(model, work, capture), expected, strict=True):
        assert torch.equal(array, other)
    return capture


@pytest.fixture
def recorder() -> PlainRecorder:
    return PlainRecorder()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"pull": 0.5, "gradient_clip": 0.1},
        {"optimizer": "adam", "learning_rate": 0.01},
        {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
        {"bfloat16": True},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "between",
    [(), (nn.BatchNorm1d(8),), (nn.Dropout(0.5),)],
    ids=["plain", "batch-norm", "dropout"],
)
def test_recorded_steps_have_the_bits_of_ordinary_ones(
    changes: dict[str, Any],
    between: tuple[nn.Module, ...],
    monkeypatch: pytest.MonkeyPatch,
    recorder: PlainRecorder,
) -> None:
    if "optimizer" in changes:  # on the CPU, which cannot be captured, it reads its step count
        monkeypatch.setattr("fairbloom.client.capture.WAITS", None)
    assert not assert_equal(
        network(*copy.deepcopy(between)), replace(WORK, **changes), recorder
    ).why_not
    assert recorder.recorded == 2  # batches of 10 and of 3 examples
    # Of 24 steps, the first two of each shape are ordinary ones.
    assert recorder.replayed == 24 - 2 * 2


def test_several_steps_are_watched_before_the_first_graph(recorder: PlainRecorder) -> None:
    kind = FixedStep(network(), [torch.ones(1)], WORK)
    Capture(recorder).take(kind, "two steps", [torch.ones(1)], lambda batch: batch[0], 2)
    assert not recorder.recorded


class Reading(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * 2 if inputs.sum().item() > 0 else inputs


class Noisy(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, inputs: Tensor) -> Tensor:
        self.generator.manual_seed(0)
        return inputs + torch.rand(inputs.shape, generator=self.generator)


class Counting(nn.Module):
    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return inputs / self.calls


class Remembering(nn.Module):
    last: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        self.last = inputs.detach().mean()
        return inputs


def with_hook() -> nn.Module:
    layer = nn.ReLU()
    layer.register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (Reading(), "aten._local_scalar_dense"),
        (Noisy(), "aten.rand"),
        (Counting(), "keeps values"),
        (Remembering(), "keeps values"),
        (with_hook(), "hooks"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_a_graph_cannot_do_again_runs_without(
    between: nn.Module, reason: str, recorder: PlainRecorder
) -> None:
    assert reason in assert_equal(network(between), WORK, recorder).why_not
    assert not recorder.recorded


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"time_budget": 60.0}, "time-budget"),
        ({"optimizer": "torch.optim:Adagrad"}, "torch.optim:Adagrad"),
        ({"transform": torch.square}, "loss"),
    ],
)
def test_work_that_cannot_be_recorded_runs_without(
    changes: dict[str, Any], reason: str, recorder: PlainRecorder
) -> None:
    assert reason in assert_equal(network(), replace(WORK, **changes), recorder).why_not
    assert not recorder.recorded


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [(Failing(), "not permitted when stream is capturing"), (Wrong(), "other numbers")],
    ids=["fails", "is-wrong"],
)
def test_a_failed_record_leaves_the_numbers_of_ordinary_steps(
    recorder: PlainRecorder, reason: str
) -> None:
    assert reason in assert_equal(network(nn.BatchNorm1d(8)), WORK, recorder).why_not


@pytest.mark.parametrize("rate", [0.1, 1e-3, 1e-5, 1e-6])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_graph_that_does_nothing_is_found_at_small_rates(rate: float, momentum: float) -> None:
    work = replace(WORK, learning_rate=rate, momentum=momentum)
    assert "other numbers" in assert_equal(network(), work, Idle()).why_not


def test_steps_are_proved_again_once_the_rate_has_grown_tenfold() -> None:
    """At the first rate rounding hides what a step changes."""
    capture = Capture(Idle())
    model = network()
    train_clients(model, replace(WORK, learning_rate=1e-12), capture)
    assert not capture.why_not
    train_clients(model, WORK, capture)
    assert "other numbers" in capture.why_not


@pytest.mark.parametrize(
    ("optimizer", "recorded"),
    [("sgd", 2), ("adam", 4)],  # outside CUDA, Adam takes its rate as a number
)
def test_another_learning_rate_is_replayed(
    optimizer: str, recorded: int, monkeypatch: pytest.MonkeyPatch, recorder: PlainRecorder
) -> None:
    monkeypatch.setattr("fairbloom.client.capture.WAITS", None)
    model = network()
    capture = Capture(recorder)
    for rate in (0.1, 0.05):
        work = replace(WORK, learning_rate=rate, optimizer=optimizer)
        expected = train_clients(copy.deepcopy(model), work, NO_CAPTURE)
        for array, other in zip(train_clients(model, work, capture), expected, strict=True):
            assert torch.equal(array, other)
    assert recorder.recorded == recorded


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_draws_only_with_dropout(dropout: float) -> None:
    """Here by a kernel of cards, without numbers; all of its tensors are on another device."""
    with FindObstacle(torch.device("cpu")) as obstacle:
        torch.ops.aten._scaled_dot_product_efficient_attention(
            *torch.empty(3, 1, 2, 4, 8, device="meta"), None, False, dropout_p=dropout
        )
    assert ("efficient_attention" in obstacle.found) == (dropout > 0.0)


def test_runs_record_on_one_stream_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: [device])
    assert len({id(CudaRecorder(torch.device("cuda", k))._stream) for k in (7, 7, 8)}) == 2


def test_corrected_gradients_are_not_recorded() -> None:
    capture = Capture(PlainRecorder())
    model = network()
    train(
        model,
        task_of(model),
        examples_of(0),
        replace(WORK, random=np.random.default_rng(0)),
        correct=lambda gradients, _: gradients,
        capture=capture,
    )
    assert "corrects the gradients" in capture.why_not
    recorder = capture._recorder
    train_clients(model, WORK, capture)
    assert recorder.replayed > 0  # the reason is of one kind of step


def test_a_step_without_memory_for_a_graph_is_an_ordinary_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = network()
    expected = train_clients(copy.deepcopy(model), WORK, NO_CAPTURE)

    def fail(_each: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    recorder = PlainRecorder()
    capture = Capture(recorder)
    taken = capture._record

    def record(*given: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Tensor, "clone", fail)
            taken(*given)

    monkeypatch.setattr(capture, "_record", record)
    for array, other in zip(train_clients(model, WORK, capture), expected, strict=True):
        assert torch.equal(array, other)
    assert "out of memory" in capture.why_not
    assert recorder.released == 1  # before the second client's steps
