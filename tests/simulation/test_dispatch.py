"""Clients on several workers have the bits, words and refusals of the loop, whatever becomes of a
worker."""

import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Method
from fairbloom.simulation.clients import LocalClients
from fairbloom.simulation.workers import WorkerClients
from fairbloom.strategies import DRFA, FedAvg
from fairbloom.tasks import forget_tasks

from .harmed import BUFFERS, FIVE, SHARED
from .helpers import all_of, both_of, config_of, is_gone, model_of

ARRAYS: Any = {"buffers": BUFFERS, "shared": SHARED}
CONFIG: dict[str, Any] = {"task": "tests.simulation.harmed:tied", "batch_size": 8, "momentum": 0.9}


Start = Callable[[Method], WorkerClients]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory of all workers, without any file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def start(place: Path) -> Iterator[Start]:
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


def test_rounds_of_changing_cohorts_have_the_bits_of_the_loop(
    start: Start, subtests: pytest.Subtests
) -> None:
    config = config_of(**CONFIG)
    model = model_of(config_of(**CONFIG))
    for method in (personal(), DRFA(**ARRAYS, local_steps=3)):
        with subtests.test(method=method):
            found = list[list[list[dict[str, Any]]]]()
            for clients in (start(method), LocalClients(method, RunSettings.of(config))):
                cohorts = enumerate((FIVE, FIVE[2:4], [], FIVE[:3], [FIVE[4]], FIVE), start=1)
                found.append(
                    [
                        both_of(clients, names, model, method.terms(number))
                        for number, names in cohorts
                    ]
                )
            assert found[0] == found[1]
            assert not any(replies["refused"] for replies in itertools.chain(*found[0]))


def test_a_client_that_fails_is_refused_in_the_words_of_the_loop(start: Start, place: Path) -> None:
    forget_tasks()  # so that data are read
    method = personal()
    config = config_of(**CONFIG)
    clients = start(method)
    loop = LocalClients(method, RunSettings.of(config))
    model = model_of(config)
    terms = method.terms(1)
    (place / "no-data").touch()
    trained, evaluated = both_of(clients, FIVE, model, terms)
    assert [trained, evaluated] == both_of(loop, FIVE, model, terms)
    assert trained["refused"].keys() == {"client-1"}
    assert "OSError: its disk is gone (harmed.py, line" in trained["refused"]["client-1"]
    (place / "no-data").unlink()
    assert list(clients.train(FIVE, model, replace(terms, server_round=2)).metrics) == FIVE


# Workers that are lost ----------------------------------------------------------------------------


def test_workers_killed_in_and_between_rounds_are_replaced(
    start: Start, place: Path, said: pytest.LogCaptureFixture
) -> None:
    """Personal models too: each round's are the start of the next one's."""
    method = personal()
    found = list[list[dict[str, Any]]]()
    clients = start(method)
    model = model_of(config_of(**CONFIG))
    expected = in_the_loop(method, [1, 2, 3, 4])
    for number in (1, 2, 3):
        if number == 2:
            (place / "die-once").touch()
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
    assert {int(path.stem) for path in place.glob("*.process")} - {os.getpid()} > killed


def test_a_client_that_ends_workers_is_refused_in_that_round(start: Start, place: Path) -> None:
    method = personal()
    config = config_of(**CONFIG)
    clients = start(method)
    loop = LocalClients(method, RunSettings.of(config))
    model = model_of(config)
    others = [name for name in FIVE if name != "client-3"]
    (place / "deadly").touch()
    trained = all_of(clients.train(FIVE, model, method.terms(1)))
    (place / "deadly").unlink()
    assert re.fullmatch(
        r"computing it has ended 2 workers \(.+\)", trained["refused"].pop("client-3")
    )
    assert trained == all_of(loop.train(others, model, method.terms(1)))
    assert both_of(clients, FIVE, model, method.terms(2)) == both_of(
        loop, FIVE, model, method.terms(2)
    )


def test_ctrl_c_ends_the_workers_and_their_answers(start: Start, place: Path) -> None:
    method = personal()
    expected = in_the_loop(method, [1])
    clients = start(method)
    model = model_of(config_of(**CONFIG))
    clients.train(FIVE, model, Terms(server_round=1))  # all workers are there
    (place / "stall").touch()

    def interrupt() -> None:
        ends = time.monotonic() + 60.0
        while len(list(place.glob("*.stalled"))) < 2 and time.monotonic() < ends:
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
    stalled = {int(path.stem) for path in place.glob("*.stalled")}
    assert len(stalled) == 2
    assert all(map(is_gone, stalled))
    (place / "stall").unlink()
    assert [both_of(clients, FIVE, model, method.terms(1))] == expected
