"""What bounds a simulated round: the arithmetic of its steps on one thread, and how many cores share it.

Two processors may be threads of one core. So all of them multiply matrices at the same time, and what they do in a
second of processor time is compared with what one does alone. Other work on the machine changes that little.
"""

import os
import time
from multiprocessing import get_context

import numpy as np

from fairbloom.client.local import load_task_and_model
from fairbloom.client.plan import global_work
from fairbloom.client.training import batch_of, count_steps, losses_of
from fairbloom.protocol.terms import Terms
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import one_thread

from .measuring import Cells, Measured

SIDE = 256
"""Two matrices of so many rows and columns lie in the cache that a core has to itself."""


def count_products(seconds: float) -> int:
    """Return how many matrix products this process makes in so many seconds of its own."""
    matrix, ends, count = np.ones((SIDE, SIDE), np.float32), time.process_time() + seconds, 0
    while time.process_time() < ends:
        matrix @ matrix
        count += 1
    return count


def measure_cores(seconds: float = 1.0) -> float:
    """Return how many times the arithmetic of one process all processors do together."""
    with one_thread():
        alone = count_products(seconds)
        with get_context("fork").Pool(os.cpu_count()) as pool:
            together = sum(pool.map(count_products, [seconds] * (os.cpu_count() or 1)))
    return together / alone


def measure_step(settings: Settings, seconds: float = 1.0) -> float:
    """Return the least seconds of processor time that one client takes for a step: forward and back, on one thread."""
    task, model = load_task_and_model(settings)
    examples, took = task.splits(task.clients[0]).train, list[float]()
    work = global_work(settings, Terms(server_round=1))
    inputs, targets = examples[slice(0, batch_of(len(examples), work))]
    ends = time.process_time() + seconds
    with one_thread():
        while time.process_time() < ends or len(took) < 2:
            started = time.process_time()
            losses_of(model, task, inputs, targets).mean().backward()  # type: ignore[no-untyped-call]
            took.append(time.process_time() - started)
    return min(took)


def find_bound(name: str, settings: Settings, cores: float, plain: Measured, seconds: float = 1.0) -> Cells:
    """Return a row on one workload: what its round takes at least where each client is computed by itself."""
    task, _ = load_task_and_model(settings)
    work = global_work(settings, Terms(server_round=1))
    drawn = round(settings.fraction * len(task.clients))
    steps = drawn * count_steps(len(task.splits(task.clients[0]).train), work)
    step = measure_step(settings, seconds)
    least = steps * step / cores
    return {
        "workload": name,
        "a step on one thread": Measured((step,), "s"),
        "steps a round": str(steps),
        "a round at least": Measured((least,), "s"),
        "at most, times the plain loop": Measured(tuple(each / least for each in plain.values), "×"),
    }
