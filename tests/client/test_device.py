"""Where a client computes."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from torch import Tensor

from fairbloom.client import training
from fairbloom.client.device import choose_device
from fairbloom.client.metrics import WorkDone
from fairbloom.client.rules.control_variates import ControlVariates
from fairbloom.client.work import StepsTaken
from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.terms import Terms
from fairbloom.simulation.clients import call_client
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedAvg
from fairbloom.tasks import load_task

from .helpers import run_config


def test_auto_takes_the_best_device_there_is() -> None:
    best = "cpu"
    if torch.backends.mps.is_available():
        best = "mps"
    if torch.cuda.is_available():
        best = "cuda"
    assert choose_device("auto").type == best


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "", "cpu:x"])
def test_an_absent_device_is_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(
        FairbloomError,
        match=rf"device = '{name}' is not available .*: auto chooses the best",
    ):
        choose_device(name)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Forget what was chosen, before and after."""
    choose_device.cache_clear()
    yield
    choose_device.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_auto_goes_on_without_a_gpu_that_is_busy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    zeros = torch.zeros
    tried = []

    def busy(*shape: Any, device: str) -> Tensor:
        tried.append(device)
        if device == "cuda":
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2 MiB.\nGPU 0 has no memory left"
            )
        return zeros(*shape, device=device)

    monkeypatch.setattr(torch, "zeros", busy)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with caplog.at_level("WARNING", log.name):
        assert [choose_device("auto") for _ in range(3)] == [torch.device("cpu")] * 3
    assert tried == ["cuda"]  # once in a process, so that all clients compute on one device
    assert [each.getMessage() for each in caplog.records] == [
        "device = auto continues without cuda, which cannot be used: CUDA out of memory. Tried to"
        " allocate 2 MiB."
    ]
    with pytest.raises(
        FairbloomError, match=r"device = 'cuda' is not available .*\(CUDA out of memory"
    ):
        choose_device("cuda")


class OnDevice(Tensor):
    """A tensor that claims to be on another device than the CPU, like the results of operations on
    it."""

    kind = "mps"

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it says to lie."""
        return torch.device(self.kind)

    def to(self, *_: Any) -> Tensor:
        """Stay where it says to lie."""
        return self

    def cpu(self, *_: Any) -> Tensor:
        """Return it as any other tensor."""
        return self.as_subclass(Tensor)

    def double(self, *_: Any) -> Tensor:
        """Fail as MPS does."""
        raise TypeError(
            "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support"
            " float64"
        )


def test_a_model_is_measured_on_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "seeded", lambda seed, device: nullcontext())
    task = load_task(run_config(clients=2))
    examples = task.splits(task.clients[0]).train
    model = task.model()
    there = replace(
        examples, inputs=examples.inputs.as_subclass(OnDevice), targets=examples.targets
    )
    assert isinstance(model(there.inputs), OnDevice)
    assert training.measure(model, task, there) == pytest.approx(
        training.measure(model, task, examples)
    )


def test_update_norms_and_rules_work_without_float64() -> None:
    there = torch.ones(3).as_subclass(OnDevice), torch.tensor([1.0, 4.0, 5.0]).as_subclass(OnDevice)
    assert WorkDone(lambda: 0.1, lambda: [there], lambda: 0.1).norm_on_device() == 5.0
    rule = ControlVariates(Terms(server_round=1, control_variates=True))
    received = {"w": there[0]}
    _, kept = rule.finish(
        received, {"w": there[1]}, rule.start(received, {}, {}), StepsTaken((0.5,))
    )
    assert kept["w"].tolist() == [0.0, -6.0, -8.0]


ASSERTED = RuntimeError(
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later"
)


def raise_asserted(*_: Any) -> None:
    raise ASSERTED


def test_a_lost_gpu_ends_the_run_and_blames_no_client() -> None:
    words = r"the GPU has stopped \(CUDA error: device-side assert triggered\), .* set device = cpu"
    with pytest.raises(FairbloomError, match=words):
        call_client(raise_asserted)
    app = ClientApp()
    app.train()(raise_asserted)
    with pytest.raises(FairbloomError, match=words):
        FedAvg().start(InProcessGrid(app, {}, 2), ArrayRecord({"w": torch.zeros(1)}), num_rounds=1)
    assert call_client(lambda: 1 / 0).startswith("ZeroDivisionError")  # type: ignore[union-attr]


def test_batches_are_fetched_one_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Stream:
        def wait_stream(self, other: object) -> None:
            events.append("wait")

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(3):
            events.append(f"fetch {number}")
            yield torch.tensor([number]), torch.tensor([number])

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: events.append("record"))
    for inputs, _ in training.fetch_ahead(batches(), torch.device("cuda")):
        events.append(f"use {int(inputs)}")
    ready = ["wait", "record", "record"]
    assert events == [
        "fetch 0", *ready, "fetch 1", "use 0", *ready, "fetch 2", "use 1", *ready, "use 2"
    ]  # fmt: skip


def test_everyday_tests_see_no_card() -> None:
    if not os.environ.get("FAIRBLOOM_TEST_CUDA"):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
