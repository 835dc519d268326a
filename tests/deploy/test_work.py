"""Work that nobody waits for ends on the device: what a client is told at its heartbeat, and what becomes of it."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.common.constant import SubStatus
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node

from fairbloom.deploy.device import work as work_module
from fairbloom.deploy.device.work import DroppedError, Work
from fairbloom.deploy.flower.device.answers import AppError, Droppable, Isolated, Resident
from fairbloom.deploy.flower.device.channel import WorkReport
from fairbloom.deploy.flower.device.unpacked import Unpacked
from fairbloom.deploy.server.overdue import RUN_OVER, TIME_OVER, Overdue

from .state import Call, pull
from .test_fleet import Place
from .test_fleet import place as place
from .unpacking import bundle_of, context, message

ENDLESS = """
import time
from flwr.clientapp import ClientApp
app = ClientApp()

@app.train()
def train(message, context):
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            pass
"""


ended: list[int] = []
"""How the process would have ended."""


@pytest.fixture
def work() -> Work:
    ended.clear()
    return Work(end=ended.append)


def work_on(work: Work, name: str) -> None:
    with work.on(name):
        time.sleep(60.0)


# On the device ------------------------------------------------------------------------------------------------------


def test_dropped_work_ends_with_its_reason(work: Work) -> None:
    threading.Timer(0.2, work.drop, ("7/a", "the run is over")).start()
    with pytest.raises(DroppedError, match="the run is over"):
        work_on(work, "7/a")
    assert work.name == ""
    with work.on("7/b"):
        pass


def test_other_work_goes_on(work: Work) -> None:
    work.drop("7/a", "the run is over")
    with work.on("7/b"):
        work.drop("7/a", "the run is over")
        time.sleep(0.01)


def test_work_that_does_not_end_is_dropped_with_its_process(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "GRACE_SECONDS", 0.1)
    with work.on("7/a"):
        try:
            work.drop("7/a", "the run is over")
            time.sleep(1.0)
        except DroppedError:
            time.sleep(1.0)
    assert ended == [1]


def test_the_owners_limit_ends_work_with_the_setting(work: Work) -> None:
    bounded = Work(0.1, ended.append)
    with pytest.raises(
        DroppedError, match=r"longer than the owner of this device allows \(0.1 s, limits.round-seconds"
    ):
        work_on(bounded, "7/a")
    with bounded.on("7/b"):
        pass
    time.sleep(0.2)
    assert ended == []


@pytest.mark.parametrize("kind", [Resident, Isolated])
def test_an_app_that_never_ends_is_dropped_and_the_next_message_answered(kind: Any, home: Path, work: Work) -> None:
    answer = Droppable(kind(Unpacked()), work)
    fab, run = bundle_of(home, "tried_app:app", {"tried_app.py": ENDLESS})
    asked = message("reply")
    name = f"{run.run_id}/{asked.metadata.message_id}"
    for _ in range(2):
        threading.Timer(3.0, work.drop, (name, "its time is over")).start()
        with pytest.raises(AppError, match="the client has dropped this work: its time is over"):
            answer(fab, run, 3, asked, context())


class Answered:
    """A call that was answered with this metadata."""

    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata


def test_a_heartbeat_says_what_is_worked_on_and_heeds_the_answer(work: Work) -> None:
    said: list[Any] = []

    def call(details: Any, request: Any) -> Answered:
        said.append(details.metadata)
        return Answered(("fairbloom-drop", "the run is over"))

    report, details = WorkReport(work), SimpleNamespace(method="/x/SendNodeHeartbeat", metadata=None)
    details._replace = lambda metadata: SimpleNamespace(method=details.method, metadata=metadata)
    report.intercept_unary_unary(call, details, None)
    threading.Timer(0.2, report.intercept_unary_unary, (call, details, None)).start()
    with pytest.raises(DroppedError, match="the run is over"):
        work_on(work, "7/a")
    assert said == [None, [("fairbloom-work", "7/a")]]


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
    assert dict(place.fleet._overdue.runs) == {str(place.node): str(place.run)}
    place.fleet.PullMessages(pull(place.node), Call())
    assert dict(place.fleet._overdue.runs) == {}


@pytest.mark.parametrize("words", ["", "x", "7", "/", "-1/a", "9" * 20 + "/a", "1 OR 1/a"])
def test_what_a_node_makes_up_about_its_work_is_no_fault(place: Place, words: str) -> None:
    assert beat(place, words) in ("", TIME_OVER, RUN_OVER)


def test_a_node_that_works_for_a_run_that_goes_on_is_not_listed() -> None:
    overdue = Overdue()
    assert overdue.judge(5, "7", waits=False, runs=False) == RUN_OVER
    assert overdue.judge(5, "8", waits=True, runs=True) == ""
    assert dict(overdue.runs) == {}
