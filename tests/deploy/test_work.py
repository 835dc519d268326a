"""Unneeded work ends on the device, with or without its process."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.flower import wait_until
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.fleet.worker import DroppedError, Worker

from .apps import content_of, task_of, write_app, write_version

ENDLESS = """
import time
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

@app.train()
def train(message, context):
    while message.content["config"]["do"] == "endless":
        try:
            time.sleep(0.01)
        except Exception:
            pass
    return Message(RecordDict(), reply_to=message)
"""


@pytest.fixture
def worker(own_client: ClientSettings) -> Iterator[Worker]:
    worker = Worker(own_client)
    yield worker
    worker.end()


def drop_later(worker: Worker, id: str, seconds: float = 0.0) -> None:
    """Drop work in another thread, these seconds after the worker has got it."""

    def drop() -> None:
        wait_until(lambda: worker.working == id)
        time.sleep(seconds)
        worker.drop(id, "its time is over")

    threading.Thread(target=drop, daemon=True).start()


def test_an_endless_app_is_dropped_and_the_next_message_answered(
    worker: Worker, home: Path
) -> None:
    write_app(home, {"tried_app.py": ENDLESS})
    content_of(worker.answer(task_of("reply"), "1/a"))
    drop_later(worker, "1/b", 1.0)
    with pytest.raises(DroppedError, match="its time is over"):
        worker.answer(task_of("endless"), "1/b")
    assert (worker.working, worker.runs) == ("", False)
    content_of(worker.answer(task_of("reply"), "1/c"))


def test_a_loading_worker_is_not_ended_with_the_waiting_work(worker: Worker, home: Path) -> None:
    """Otherwise, a device that loads libraries for longer than a message lives never answers."""
    write_version(home, 1)
    drop_later(worker, "1/a")
    with pytest.raises(DroppedError, match="its time is over"):
        worker.answer(task_of("reply"), "1/a")
    loading = worker._process
    assert loading is not None
    assert worker.runs
    threading.Timer(0.2, worker.drop, ("1/a", "the run is over")).start()  # other work continues
    assert content_of(worker.answer(task_of("reply"), "1/b"))["metrics"]["version"] == 1
    assert worker._process is loading
    worker.end()
    assert not worker.runs
    assert loading.returncode is not None


def test_the_owners_limit_ends_work_with_the_setting(
    own_client: ClientSettings, home: Path
) -> None:
    worker = Worker(replace(own_client, limits={"round-seconds": 0.5}))
    write_app(home, {"tried_app.py": ENDLESS})
    with pytest.raises(DroppedError, match=r"0.5 s, limits\.round-seconds"):
        worker.answer(task_of("endless"), "1/a")
    assert not worker.runs
