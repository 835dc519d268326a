"""Work that nobody waits for ends on the device: what a client is told at its heartbeat, and what becomes of it."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.common.constant import SubStatus
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node

from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.flower.device.worker import DroppedError, Worker
from fairbloom.deploy.flower.server.fleet import RUN_OVER, TIME_OVER

from .apps import bundle_of, message, reply_of, task_of, version_of
from .state import Call, pull
from .test_fleet import Place
from .test_fleet import place as place

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
def worker(home: Path) -> Iterator[Worker]:
    worker = Worker(ClientSettings(superlink="a:1", insecure=True, app="tried_app:app", state_dir="/own"))
    yield worker
    worker.end()


# On the device ------------------------------------------------------------------------------------------------------


def test_an_app_that_never_ends_is_dropped_with_its_process_and_the_next_message_answered(
    worker: Worker, home: Path
) -> None:
    endless = bundle_of(home, "tried_app:app", {"tried_app.py": ENDLESS})
    assert not reply_of(worker.answer(task_of(endless, message("reply")), "1/a")).has_error()
    threading.Timer(1.0, worker.drop, ("1/b", "its time is over")).start()
    with pytest.raises(DroppedError, match="its time is over"):
        worker.answer(task_of(endless, message("endless")), "1/b")
    assert (worker.working, worker.runs) == ("", False)
    assert not reply_of(worker.answer(task_of(endless, message("reply")), "1/c")).has_error()


def test_a_worker_that_still_loads_is_not_ended_with_the_work_that_waits_for_it(worker: Worker, home: Path) -> None:
    """Else a device that takes longer to load its libraries than a message may wait would never answer."""
    good = version_of(home, 1)
    threading.Timer(0.1, worker.drop, ("1/a", "its time is over")).start()
    with pytest.raises(DroppedError, match="its time is over"):
        worker.answer(task_of(good, message("reply")), "1/a")
    loading = worker._process
    assert worker.runs
    assert reply_of(worker.answer(task_of(good, message("reply")), "1/b")).content["metrics"]["version"] == 1
    assert worker._process is loading


def test_the_owners_limit_ends_work_with_the_setting(
    worker: Worker, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_limit", 0.5)
    endless = bundle_of(home, "tried_app:app", {"tried_app.py": ENDLESS})
    with pytest.raises(
        DroppedError, match=r"longer than the owner of this device allows \(0.5 s, limits.round-seconds"
    ):
        worker.answer(task_of(endless, message("endless")), "1/a")
    assert not worker.runs


def test_the_owners_limit_reaches_the_worker() -> None:
    settings = ClientSettings(superlink="a:1", insecure=True, limits={"round-seconds": 2})
    assert Worker(settings)._limit == 2.0


def test_other_work_goes_on_and_a_worker_that_is_ended_leaves_no_process(worker: Worker, home: Path) -> None:
    threading.Timer(0.5, worker.drop, ("1/a", "the run is over")).start()
    assert not reply_of(worker.answer(task_of(version_of(home, 1), message("reply")), "1/b")).has_error()
    process = worker._process
    assert process is not None
    worker.end()
    assert not worker.runs
    assert process.returncode is not None


# At the server ------------------------------------------------------------------------------------------------------


class Beat(Call):
    """A heartbeat that says what its node works on."""

    def __init__(self, works_on: str) -> None:
        super().__init__()
        self._works_on, self.answer = works_on, tuple[tuple[str, str], ...]()

    def invocation_metadata(self) -> Any:
        return (*super().invocation_metadata(), ("fairbloom-work", self._works_on))

    def set_trailing_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self.answer = metadata


def beat(place: Place, works_on: str, node: int = 0) -> str:
    """Return why a node is to drop what it works on, "" where it is not."""
    call = Beat(works_on)
    request = SendNodeHeartbeatRequest(node=Node(node_id=node or place.node), heartbeat_interval=30)
    place.fleet.SendNodeHeartbeat(request, call)
    return dict(call.answer).get("fairbloom-drop", "")


def test_a_node_drops_what_has_outlived_its_time_or_is_anothers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = place.send()
    name = f"{place.run}/{asked.metadata.message_id}"
    assert beat(place, name) == ""
    assert beat(place, name, place.other) == TIME_OVER
    assert beat(place, f"{place.run}/unknown") == TIME_OVER
    later = time.time() + asked.metadata.ttl + 1.0
    monkeypatch.setattr("fairbloom.deploy.flower.server.fleet.time.time", lambda: later)
    assert beat(place, name) == TIME_OVER


def test_a_node_drops_the_work_of_a_run_that_is_over_and_is_listed_until_it_asks_for_work(place: Place) -> None:
    asked = place.send()
    (about,) = place.link.state.get_run_info(run_ids=[place.run])
    place.link.state.finish_task(about.primary_task_id, SubStatus.STOPPED, "stopped by the operator")
    assert beat(place, f"{place.run}/{asked.metadata.message_id}") == RUN_OVER
    assert place.fleet.overdue == {place.node: str(place.run)}
    place.fleet.PullMessages(pull(place.node), Call())
    assert place.fleet.overdue == {}


@pytest.mark.parametrize("words", ["", "x", "7", "/", "-1/a", "9" * 20 + "/a", "1 OR 1/a"])
def test_what_a_node_makes_up_about_its_work_is_no_fault(place: Place, words: str) -> None:
    assert beat(place, words) in ("", TIME_OVER, RUN_OVER)


def test_a_node_that_works_for_a_run_that_goes_on_is_not_listed(place: Place) -> None:
    assert beat(place, "7/a") == RUN_OVER
    assert place.fleet.overdue == {place.node: "7"}
    assert beat(place, f"{place.run}/{place.send().metadata.message_id}") == ""
    assert place.fleet.overdue == {}
