"""The way of a round's messages and replies through the SuperLink, in one call of the run each."""

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from fairbloom.deploy.flower.server import grid, tables
from fairbloom.deploy.flower.server.control import WholeMessages
from fairbloom.deploy.flower.server.grid import COLLECT_PATH, SEND_PATH, UNREADABLE_REPLY, WholeGrid
from fairbloom.deploy.server import long_poll
from tests.deploy.state import AbortedError, Call, content, head, parts, pull, reply_to
from tests.deploy.test_fleet import Place


class Direct:
    """A run's connection to its SuperLink without HTTP between them."""

    def __init__(self, place: Place) -> None:
        whole = WholeMessages(place.link.factory)
        self._calls: Any = {SEND_PATH: whole.send, COLLECT_PATH: whole.collect}
        self._task = SimpleNamespace(run_id=place.run)

    def _unary_unary(self, *, path: str, request: Any, **_: Any) -> Any:
        return self._calls[path](request, self._task)


class Run:
    """A run's process, as far as it sends messages and collects replies."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.grid: Any = WholeGrid(token="none")
        self.grid._client = Direct(place)

    def send(self, *nodes: int, size: int = 100) -> list[Message]:
        """Send the same content to nodes."""
        arrays, made = content(1, size), []
        for node in nodes:
            message = Message(arrays, dst_node_id=node, message_type="train")
            message.metadata.__dict__.update(_run_id=self.place.run, _src_node_id=1)
            made.append(message)
        assert self.grid.push_messages(made) == [message.metadata.message_id for message in made]
        return made

    def collect(self, sent: list[Message]) -> list[Message]:
        found: list[Message] = self.grid.pull_messages([message.metadata.message_id for message in sent])
        return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(long_poll, "HELD_SECONDS", 0.01)
    return Place(tmp_path, whole=True)


@pytest.fixture
def run(place: Place) -> Run:
    return Run(place)


@pytest.mark.parametrize("at_once", [1 << 20, 50])
def test_a_round_comes_back_as_it_was_answered(
    place: Place, run: Run, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(grid, "LARGEST_CALL", at_once)
    sent = run.send(place.node, place.other)
    replies = [reply_to(message, seed=number) for number, message in enumerate(sent)]
    for message, reply in zip(sent, replies, strict=True):
        (handed,) = place.fleet.PullMessages(pull(message.metadata.dst_node_id), Call()).messages_list
        assert handed.metadata.message_id == message.metadata.message_id
        assert all(place.push(reply))
    found = {reply.metadata.src_node_id: reply for reply in run.collect(sent)}
    assert found.keys() == {place.node, place.other}
    for reply in replies:
        received = found[reply.metadata.src_node_id]
        assert received.content["arrays"].object_id == reply.content["arrays"].object_id
        assert received.metadata.reply_to_message_id == reply.metadata.reply_to_message_id
    assert place.bytes_stored() == 0
    assert place.link.count("message_ins") == place.link.count("message_res") == 0


@pytest.mark.parametrize("at_once", [1 << 20, 50])
def test_nodes_are_woken_once_all_parts_are_here(
    place: Place, run: Run, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(grid, "LARGEST_CALL", at_once)
    woken = list[tuple[Any, bool]]()
    state, mail = place.link.state, {"node_id": tables.signed(place.node), "now": time.time()}
    state.on_message = lambda nodes: woken.append((nodes, bool(state.query(tables.HAS_MAIL, mail))))
    sent = run.send(place.node)
    assert run.grid.push_messages(sent) == [sent[0].metadata.message_id]  # the answer before was lost
    assert woken == [({place.node}, True)] * 2
    assert place.link.count("message_ins") == 1


def test_parts_that_were_deleted_meanwhile_are_sent_again(
    place: Place, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "LARGEST_CALL", 50)
    plain, lost = run.grid._make, list[int]()

    def lose_first_parts(path: str, request: Any, seconds: float = 0.0) -> Any:
        if request.sent and not lost:
            lost.append(len(place.link.state.query("DELETE FROM objects RETURNING object_id")))
        return plain(path, request, seconds)

    monkeypatch.setattr(run.grid, "_make", lose_first_parts)
    (sent,) = run.send(place.node)
    assert lost[0] > 0
    (handed,) = place.fleet.PullMessages(pull(place.node), Call()).messages_list
    assert place.link.state.store.contents(parts(sent)) == parts(sent)
    assert handed.metadata.message_id == sent.metadata.message_id


def test_a_message_to_an_unknown_node_or_of_a_finished_run_is_not_taken(place: Place, run: Run) -> None:
    message = Message(RecordDict(), dst_node_id=17, message_type="train")
    message.metadata.__dict__.update(_run_id=place.run, _src_node_id=1)
    assert run.grid.push_messages([message]) == [""]
    message.metadata.__dict__["_dst_node_id"] = place.node
    message.metadata.__dict__["_run_id"] = place.run + 1
    assert run.grid.push_messages([message]) == [""]
    message.metadata.__dict__["_run_id"] = place.run
    place.link.state.stop_run(place.run)
    assert run.grid.push_messages([message]) == [""]
    assert place.bytes_stored() == 0


def test_a_reply_whose_parts_name_another_client_is_its_senders(place: Place, run: Run) -> None:
    """The SuperLink checks heads; the parts have a head of their own, which the client writes."""
    ours, theirs = run.send(place.node, place.other)
    reply = reply_to(ours)
    forged = reply_to(theirs)  # what the run would read
    named = head(forged, node=place.node)
    named.messages_list[0].metadata.src_node_id = place.node
    named.messages_list[0].metadata.reply_to_message_id = reply.metadata.reply_to_message_id
    place.fleet.PushMessages(named, Call(), parts(forged))
    (found,) = run.collect([ours, theirs])
    assert found.metadata.src_node_id == place.node
    assert found.metadata.reply_to_message_id == ours.metadata.message_id


@pytest.mark.parametrize("what", [Array, ArrayRecord, ConfigRecord])
def test_a_reply_that_is_no_message_is_an_error_of_its_sender(place: Place, run: Run, what: type) -> None:
    ours, theirs = run.send(place.node, place.other)
    objects: dict[type, Any] = {
        Array: Array(np.zeros(3)),
        ArrayRecord: ArrayRecord({"w": Array(np.zeros(3))}),
        ConfigRecord: ConfigRecord({"a": 1}),
    }
    odd, reply = objects[what], reply_to(ours)
    pushed = head(reply, tree=get_object_tree(odd))
    pushed.messages_list[0].metadata.message_id = odd.object_id
    place.fleet.PushMessages(pushed, Call(), {name: one.deflate() for name, one in get_all_nested_objects(odd).items()})
    place.push(reply_to(theirs))
    found = {reply.metadata.src_node_id: reply for reply in run.collect([ours, theirs])}
    assert found[place.node].error.code == UNREADABLE_REPLY
    assert found[place.other].has_content()


def test_a_message_of_a_run_that_is_over_is_handed_to_nobody(place: Place, run: Run) -> None:
    run.send(place.node)
    place.link.state.stop_run(place.run)
    for _ in range(tables.MAX_DELIVERIES + 2):
        assert not place.fleet.PullMessages(pull(place.node), Call()).messages_list


def test_a_reply_whose_tree_lies_about_its_parts_is_refused(place: Place, run: Run) -> None:
    (ours,) = run.send(place.node)
    reply = reply_to(ours)
    tree = get_object_tree(reply)
    del tree.children[0].children[0].children[:]
    with pytest.raises(AbortedError, match="other parts"):
        place.fleet.PushMessages(head(reply, tree=tree), Call(), parts(reply))
    assert all(place.push(reply))


def test_what_another_client_has_announced_stops_no_reply(place: Place, run: Run) -> None:
    """A reply with a record that everybody can foresee, of which somebody says first that it has other parts."""
    ours, theirs = run.send(place.node, place.other)
    honest, hostile = reply_to(ours, seed=7), reply_to(theirs, seed=7)
    tree = get_object_tree(hostile)
    del tree.children[0].children[0].children[:]
    place.fleet.whole = False
    place.fleet.PushMessages(head(hostile, tree=tree), Call())
    place.fleet.whole = True
    assert all(place.push(honest))
    (found,) = run.collect([ours])
    assert found.content["arrays"].object_id == honest.content["arrays"].object_id


def test_a_message_takes_a_few_statements(place: Place, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand devices are one process's work: no statement more for each unseen."""
    nodes = [place.link.node(f"key-{number}".encode()) for number in range(20)]
    made, plain = Counter[str](), type(place.link.state).query

    def counted(state: Any, query: str, data: Any = None) -> Any:
        made[stage] += 1
        return plain(state, query, data)

    for kind in (type(place.link.state), type(place.link.state.store)):
        monkeypatch.setattr(kind, "query", counted)
    stage = "send"
    sent = run.send(*nodes)
    for message in sent:
        stage = "hand out"
        place.fleet.PullMessages(pull(message.metadata.dst_node_id), Call())
        stage = "reply"
        assert all(place.push(reply_to(message)))
    assert made["send"] <= len(nodes) + 7
    assert made["hand out"] <= 5 * len(nodes)
    assert made["reply"] <= 13 * len(nodes)
