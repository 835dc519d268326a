"""Where a client computes."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from torch import Tensor

from fairbloom.client import training
from fairbloom.client.device import choose_device, computing_in
from fairbloom.client.metrics import WorkDone
from fairbloom.client.rules.control_variates import ControlVariates
from fairbloom.client.work import StepsTaken
from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.simulation.choice import choose
from fairbloom.simulation.clients import Failed, call_client
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedAvg
from fairbloom.tasks import load_task
from fairbloom.tasks.generators import seed_all

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


# PyTorch 2.8 and later raise a class of their own.
ASSERTED = getattr(torch, "AcceleratorError", RuntimeError)(
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"
    " at some other API call\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
LOST_GPU = (
    r"^the GPU has stopped \(CUDA error: device-side assert triggered\), .* target is outside .*"
    r" index outside an embedding: run once with --set device=cpu, which names it$"  # one line
)


def raise_asserted(*_: Any) -> None:
    raise ASSERTED


def test_a_lost_gpu_ends_the_run_and_blames_no_client() -> None:
    with pytest.raises(FairbloomError, match=LOST_GPU):
        call_client(raise_asserted)
    app = ClientApp()
    app.train()(raise_asserted)
    with pytest.raises(FairbloomError, match=LOST_GPU):
        FedAvg().start(InProcessGrid(app, {}, 2), ArrayRecord({"w": torch.zeros(1)}), num_rounds=1)
    failed = call_client(lambda: 1 / 0)
    assert isinstance(failed, Failed)
    assert failed.reason.startswith("ZeroDivisionError")


def test_a_lost_gpu_ends_a_run_wherever_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairbloom.simulation.choice.train", raise_asserted)
    with pytest.raises(FairbloomError, match=LOST_GPU):
        choose(RunSettings.of(run_config(clients=2)))
    for error, words in (
        (ASSERTED, LOST_GPU),
        (FairbloomError("said: device-side assert"), "^said"),
        (KeyError("other"), "^'other'$"),
    ):
        with pytest.raises(Exception, match=words), computing_in("float32", torch.device("cuda")):
            raise error


@pytest.mark.parametrize(
    ("model", "precision", "device", "says"),
    [
        ("cnn", "float32", "cuda", True),
        ("mlp", "float32", "cuda", False),
        ("cnn", "tf32", "cuda", False),
        ("cnn", "bfloat16", "cuda", False),
        ("cnn", "float32", "cpu", False),
    ],
)
def test_full_precision_of_convolutions_names_tf32(
    model: str,
    precision: str,
    device: str,
    says: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = RunSettings.of(run_config(model=model, precision=precision, engine="loop"))
    monkeypatch.setattr("fairbloom.simulation.choice.choose_device", lambda _: torch.device(device))
    with caplog.at_level("INFO", log.name):
        choose(settings)
    assert caplog.text.count("--set precision=tf32") == says


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


@pytest.mark.parametrize("is_there", [True, False])
def test_generators_of_a_device_that_is_there_are_seeded(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, the numbers are the same in less time."""
    seeds_devices = Mock(wraps=torch.manual_seed)
    monkeypatch.setattr(torch, "manual_seed", seeds_devices)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: is_there)
    seed_all(5)
    drawn = torch.rand(3)
    assert seeds_devices.called == is_there
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(5)))


def test_everyday_tests_see_no_card() -> None:
    if not os.environ.get("FAIRBLOOM_TEST_CUDA"):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
