"""The engine `workers`: what forked processes share with this one, and how they end.

Clients on several workers have the bits, words and refusals of the loop, whatever becomes of a
worker.
"""

import errno
import itertools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.arrays import Model
from fairbloom.rounds.cohort import Kept
from fairbloom.rounds.method import Method
from fairbloom.rounds.vectors import Vectors, combine
from fairbloom.simulation import processes
from fairbloom.simulation.choice import choose
from fairbloom.simulation.clients import LocalClients
from fairbloom.simulation.processes import shared_array
from fairbloom.simulation.workers import WorkerClients
from fairbloom.strategies import DRFA, FedAvg
from fairbloom.tasks import forget_tasks

from .harmed import BUFFERS, FIVE, SHARED, tied
from .helpers import all_of, both_of, config_of, is_gone, model_of, small


def workers_of(method: Method | None = None, workers: int = 2, **changes: Any) -> WorkerClients:
    return WorkerClients(method or FedAvg(), RunSettings.of(config_of(**changes)), workers)


# As in the loop -----------------------------------------------------------------------------------


def test_a_task_of_a_notebook_is_as_in_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """__main__ alone has it, which no other process could import."""
    main = ModuleType("__main__")
    main.notebook = tied  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(tmp_path)
    settings = {"task": "__main__:notebook", "batch_size": 8}
    config = config_of(**settings)
    terms = Terms(server_round=1)
    expected = both_of(
        LocalClients(FedAvg(), RunSettings.of(config)), FIVE, model_of(config), terms
    )
    with closing(workers_of(**settings)) as clients:
        assert both_of(clients, FIVE, model_of(config), terms) == expected


@pytest.fixture
def model() -> Model:
    return model_of(config_of())


@pytest.mark.parametrize("memory", [0.0, 1e-9])
def test_old_updates_that_a_method_keeps_stay_as_they_are(memory: float, model: Model) -> None:
    """In memory, and in a file, where there would be no memory for copies."""
    method = FedAvg()
    with closing(workers_of(method, memory=memory)) as clients:
        vectors = clients.train(FIVE, model, Terms(server_round=1)).updates.vectors
        kept = {
            Kept("a", 1): combine(np.eye(len(FIVE))[2], vectors),
            Kept("b", 1): Vectors.of(np.ones(vectors.size)),
        }
        method.enter(replace(method.run_state, kept=kept))
        before = [row.blocks[0].tobytes() for row in method.run_state.kept.values()]
        clients.train(FIVE, model, Terms(server_round=2))
        after = [row.blocks[0] for row in method.run_state.kept.values()]
        assert [row.tobytes() for row in after] == before
        assert isinstance(after[0], np.memmap) == (memory > 0.0)


# Processes that end -------------------------------------------------------------------------------


def test_forks_that_cannot_train_leave_it_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a backward on a machine with a card: its threads are marked in every fork."""

    def fail(*_: object) -> None:
        raise RuntimeError("Unable to handle autograd's threading with fork-based multiprocessing")

    settings = small("unused", engine="workers")
    assert choose(settings, 2).engine == "workers"
    monkeypatch.setattr(torch.Tensor, "backward", fail)
    choice = choose(settings, 2)
    assert (choice.engine, "cannot train" in choice.reason) == ("loop", True)


def test_closing_ends_all_processes_and_may_be_done_twice(model: Model) -> None:
    clients = workers_of()
    expected = both_of(clients, FIVE, model, Terms(server_round=1))
    there = pids_of(clients)
    clients.close()
    clients.close()
    assert len(there) == 2
    assert all(map(is_gone, there))
    with closing(clients):
        assert both_of(clients, FIVE, model, Terms(server_round=1)) == expected


def pids_of(clients: WorkerClients) -> set[int | None]:
    assert clients.workers
    return {worker.pid for worker in clients.workers.processes.values()}


def test_workers_stay_for_the_clients_of_later_rounds(model: Model) -> None:
    """The data of these clients are read before the workers are forked."""
    with closing(workers_of()) as clients:
        clients.train(FIVE[:2], model, Terms(server_round=1))
        first = pids_of(clients)
        clients.train(FIVE[3:], model, Terms(server_round=2))
        assert pids_of(clients) == first


def test_workers_without_a_clients_data_are_forked_again(
    monkeypatch: pytest.MonkeyPatch, model: Model
) -> None:
    monkeypatch.setattr("fairbloom.simulation.workers.READ_AHEAD_SECONDS", -1.0)
    with closing(workers_of()) as clients:
        clients.train(FIVE[:2], model, Terms(server_round=1))
        first = pids_of(clients)
        clients.train(FIVE[3:], model, Terms(server_round=2))
        assert first.isdisjoint(pids_of(clients))


@pytest.mark.parametrize(
    "how", ["SIGKILL, as when memory runs short", "SIGTERM", "exit code 3", "exit code 0"]
)
def test_it_is_said_how_a_process_ended(how: str) -> None:
    def serve(pipe: Connection, how: str = how) -> None:
        if how.startswith("exit code "):
            sys.exit(int(how.removeprefix("exit code ")))
        os.kill(os.getpid(), signal.Signals[how.partition(",")[0]])

    process = processes.Forked(serve, [])
    with pytest.raises(EOFError):
        process.pipe.recv()
    assert process.end() == how


def busy_run(folder: Path) -> int:
    """Fork a process with workers that never end; return its number once all of them work.

    The file `said` has all output of these processes.
    """
    parent = os.fork()
    if parent:
        ends = time.monotonic() + 60.0
        while len(list(folder.glob("[0-9]*"))) < 2 and time.monotonic() < ends:
            time.sleep(0.01)
        return parent
    status = 99
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdout = sys.stderr = (folder / "said").open("w", buffering=1)

        def stay(*_: Any) -> None:
            (folder / str(os.getpid())).touch()
            time.sleep(60.0)

        with pytest.MonkeyPatch.context() as patch, closing(workers_of()) as clients:
            patch.setattr("fairbloom.simulation.workers.train_client", stay)
            clients.train(FIVE, model_of(config_of()), Terms(server_round=1))
    except KeyboardInterrupt:
        status = 88
    finally:
        os._exit(status)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_its_parent_or_says_anything(
    how: signal.Signals, tmp_path: Path
) -> None:
    parent = busy_run(tmp_path)
    workers = [int(path.name) for path in tmp_path.glob("[0-9]*")]
    assert len(workers) == 2
    if how == signal.SIGINT:
        os.killpg(parent, how)  # as Ctrl-C in a terminal
    else:
        os.kill(parent, how)
    assert os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1]) == (
        88 if how == signal.SIGINT else -how
    )
    assert all(map(is_gone, workers))
    assert (tmp_path / "said").read_text() == ""


# What cannot be -----------------------------------------------------------------------------------


def test_what_a_machine_cannot_give_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device, memory, processes, forks at all."""

    def refuses() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with pytest.raises(FairbloomError, match="device is meta"):
        workers_of(device="meta")
    with pytest.raises(FairbloomError, match=r"9007199.3 GB"):
        shared_array((2**50,), np.float64)
    clients = workers_of()
    monkeypatch.setattr(os, "fork", refuses)
    with pytest.raises(FairbloomError, match="Resource temporarily unavailable"):
        clients.train(FIVE, model_of(config_of()), Terms(server_round=1))
    monkeypatch.delattr(os, "fork")
    with pytest.raises(FairbloomError, match="engine = 'workers'"):
        workers_of()


ARRAYS: Any = {"buffers": BUFFERS, "shared": SHARED}
CONFIG: dict[str, Any] = {"task": "tests.simulation.harmed:tied", "batch_size": 8, "momentum": 0.9}


Start = Callable[[Method], WorkerClients]


@pytest.fixture
def start(here: Path) -> Iterator[Start]:
    """Return what starts the clients of a method on two workers."""
    begun: list[WorkerClients] = []

    def start(method: Method) -> WorkerClients:
        begun.append(WorkerClients(method, RunSettings.of(config_of(**CONFIG)), 2))
        return begun[-1]

    yield start
    for clients in begun:
        clients.close()


def personal() -> Method:
    return FedAvg(**ARRAYS, personal_lambda=0.5)


def in_the_loop(method: Method, numbers: list[int]) -> list[list[dict[str, Any]]]:
    """Return what all clients reply in these rounds, one after the other in this process."""
    config = config_of(**CONFIG)
    loop = LocalClients(method, RunSettings.of(config))
    model = model_of(config)
    return [both_of(loop, FIVE, model, method.terms(number)) for number in numbers]


# As in the loop -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [personal(), DRFA(**ARRAYS, local_steps=3)])
def test_rounds_of_changing_cohorts_have_the_bits_of_the_loop(start: Start, method: Method) -> None:
    config = config_of(**CONFIG)
    model = model_of(config)
    found = list[list[list[dict[str, Any]]]]()
    for clients in (start(method), LocalClients(method, RunSettings.of(config))):
        cohorts = enumerate((FIVE, FIVE[2:4], [], FIVE[:3], [FIVE[4]], FIVE), start=1)
        found.append(
            [both_of(clients, names, model, method.terms(number)) for number, names in cohorts]
        )
    assert found[0] == found[1]
    assert not any(replies["refused"] for replies in itertools.chain(*found[0]))


def test_a_client_that_fails_is_refused_in_the_words_of_the_loop(start: Start, here: Path) -> None:
    forget_tasks()  # so that data are read
    method = personal()
    config = config_of(**CONFIG)
    clients = start(method)
    loop = LocalClients(method, RunSettings.of(config))
    model = model_of(config)
    terms = method.terms(1)
    (here / "no-data").touch()
    trained, evaluated = both_of(clients, FIVE, model, terms)
    assert [trained, evaluated] == both_of(loop, FIVE, model, terms)
    assert trained["refused"].keys() == {"client-1"}
    assert "OSError: its disk is gone (harmed.py, line" in trained["refused"]["client-1"]
    (here / "no-data").unlink()
    assert list(clients.train(FIVE, model, replace(terms, server_round=2)).metrics) == FIVE


# Workers that are lost ----------------------------------------------------------------------------


def test_workers_killed_in_and_between_rounds_are_replaced(
    start: Start, here: Path, said: pytest.LogCaptureFixture
) -> None:
    """Personal models too: each round's are the start of the next one's."""
    method = personal()
    found = list[list[dict[str, Any]]]()
    clients = start(method)
    model = model_of(config_of(**CONFIG))
    expected = in_the_loop(method, [1, 2, 3, 4])
    for number in (1, 2, 3):
        if number == 2:
            (here / "die-once").touch()
        found.append(both_of(clients, FIVE, model, method.terms(number)))
    (warned,) = {message for message in said.messages if message.startswith("a worker ended")}
    assert re.fullmatch(
        r"a worker ended \(.+\) before it had computed client \S+, which is computed again", warned
    )
    assert clients.workers
    killed = {worker.pid for worker in clients.workers.processes.values()}
    for process in killed:
        os.kill(process, signal.SIGKILL)
    found.append(both_of(clients, FIVE, model, method.terms(4)))
    assert found == expected
    assert len(killed) == 2
    assert {int(path.stem) for path in here.glob("*.process")} - {os.getpid()} > killed


def test_a_client_that_ends_workers_is_refused_in_that_round(start: Start, here: Path) -> None:
    method = personal()
    config = config_of(**CONFIG)
    clients = start(method)
    loop = LocalClients(method, RunSettings.of(config))
    model = model_of(config)
    others = [name for name in FIVE if name != "client-3"]
    (here / "deadly").touch()
    trained = all_of(clients.train(FIVE, model, method.terms(1)))
    (here / "deadly").unlink()
    assert re.fullmatch(
        r"computing it has ended 2 workers \(.+\)", trained["refused"].pop("client-3")
    )
    assert trained == all_of(loop.train(others, model, method.terms(1)))
    assert both_of(clients, FIVE, model, method.terms(2)) == both_of(
        loop, FIVE, model, method.terms(2)
    )


def test_ctrl_c_ends_the_workers_and_their_answers(start: Start, here: Path) -> None:
    method = personal()
    expected = in_the_loop(method, [1])
    clients = start(method)
    model = model_of(config_of(**CONFIG))
    clients.train(FIVE, model, Terms(server_round=1))  # all workers are there
    (here / "stall").touch()

    def interrupt() -> None:
        ends = time.monotonic() + 60.0
        while len(list(here.glob("*.stalled"))) < 2 and time.monotonic() < ends:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    # pytest-xdist's workers ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            clients.train(FIVE, model, Terms(server_round=2, local_steps=1))
    finally:
        signal.signal(signal.SIGINT, before)
    stalled = {int(path.stem) for path in here.glob("*.stalled")}
    assert len(stalled) == 2
    assert all(map(is_gone, stalled))
    (here / "stall").unlink()
    assert [both_of(clients, FIVE, model, method.terms(1))] == expected
