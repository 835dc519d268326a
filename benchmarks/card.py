"""How a run uses a card: how often it waits for it, and how busy the card is."""

import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

from fairbloom.server.settings import Settings

from .measuring import Side

# Calls in which the processor waits for the card.
WAITS = ("cudaDeviceSynchronize", "cudaEventSynchronize", "cudaStreamSynchronize")

SAMPLE = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu",
    "--format=csv,noheader,nounits",
    "--loop-ms=200",
)


def count_waits(side: Side, settings: Settings) -> float:
    """Return how often a round after the first one waits for the card."""
    few = _count_all_waits(side, settings.model_copy(update={"num_rounds": 2}))
    more = _count_all_waits(side, settings.model_copy(update={"num_rounds": 4}))
    return (more - few) / 2


def _count_all_waits(side: Side, settings: Settings) -> int:
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiled:
        side(settings)
    return sum(event.count for event in profiled.key_averages() if event.key in WAITS)


@contextmanager
def sample_busy() -> Iterator[list[float]]:
    """Yield a list which, at the end, has the card's load in percent, every 0.2 s."""
    loads = list[float]()
    process = subprocess.Popen(SAMPLE, stdout=subprocess.PIPE, text=True)  # noqa: S603 (no input)
    try:
        yield loads
    finally:
        process.terminate()
        printed, _ = process.communicate()
        loads += [float(line) for line in printed.split()]


def mean_busy(side: Side, settings: Settings) -> str:
    """Return the mean load of the card during a run, which includes its start."""
    with sample_busy() as loads:
        side(settings)
    return f"{statistics.mean(loads):.0f} %" if loads else "–"
