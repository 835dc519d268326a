"""The fleet API within limits: what a node may cost the SuperLink, and what takes a refused reply's place."""

import math
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from flwr.common.constant import NOOP_FLWR_AID
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import get_object_tree

from fairbloom.deploy.flower import exchange_pb2
from fairbloom.deploy.flower.server import fleet, fleet_server, tables
from fairbloom.deploy.flower.server.fleet import count
from fairbloom.deploy.server import long_poll, members, rate_limit
from fairbloom.deploy.server.long_poll import LongPoll
from fairbloom.deploy.server.members import Members
from fairbloom.deploy.server.rate_limit import CallLimit, TooManyCallsError
from fairbloom.protocol.names import VERSION_HEADER, WIRE_HEADER
from fairbloom.protocol.version import WIRE
from tests.deploy.logged import read_events
from tests.deploy.state import (
    AbortedError,
    Call,
    Port,
    SuperLinkState,
    confirm,
    head,
    part,
    parts,
    pull,
    reply_to,
)


class Known:
    """Members of one name."""

    def name_of(self, node_id: int) -> str:
        return "site-a"


class Place:
    """A SuperLink with one run, and two nodes."""

    logged: pytest.LogCaptureFixture

    def __init__(self, folder: Path, *, whole: bool = False) -> None:
        self.folder, self.members, self.whole = folder, Known(), whole
        self.start()
        self.node, self.other = self.link.node(b"key-a"), self.link.node(b"key-b")
        self.run = self.link.run()

    def start(self) -> None:
        self.link = SuperLinkState(self.folder / "superlink.db")
        self.long_poll = LongPoll()
        self.fleet = Port(self.link, self.folder, self.members, self.long_poll, whole=self.whole)
        self.link.state.on_message = self.long_poll.wake

    def send(self, **size: int) -> Message:
        return self.link.send(self.run, self.node, **size)

    def push(self, reply: Message) -> list[bool]:
        """Push a reply as Flower's client does, or whole; return which parts were stored."""
        if self.whole:
            answer = self.fleet.PushMessages(head(reply), Call(), parts(reply))
            known = self.link.state.object_store.sizes([reply.metadata.message_id])
            return [name in known for name in parts(reply)]
        answer = self.fleet.PushMessages(head(reply), Call())
        contents = parts(reply)
        return [
            self.fleet.PushObject(part(reply, answer.session_id, needed, contents[needed]), Call()).stored
            for needed in answer.objects_to_push
        ]

    def bytes_stored(self) -> int:
        (row,) = self.link.state.query("SELECT coalesce(sum(length(content)), 0) AS size FROM objects")
        return int(row["size"])

    def refused(self) -> list[str]:
        events = [each["event"] for each in read_events(self.logged.messages)]
        return [event for event in events if event.startswith("refused")]


@pytest.fixture(params=[False, True], ids=["part by part", "whole"])
def place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> Place:
    monkeypatch.setattr(long_poll, "HELD_SECONDS", 0.01)
    made = Place(tmp_path, whole=request.param)
    made.logged = caplog
    return made


@pytest.fixture
def no_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "SLACK_BYTES", 0)


def size(message: Message) -> int:
    return sum(map(len, parts(message).values()))


# Size ---------------------------------------------------------------------------------------------------------------


def test_a_reply_within_its_allowance_comes_to_the_run(place: Place) -> None:
    asked = place.send()
    reply = reply_to(asked, arrays=3)
    assert all(place.push(reply))
    (answer,) = place.link.answers(asked)
    assert answer.metadata.message_id == reply.metadata.message_id
    assert not answer.has_error()
    assert {name: place.link.state.get_object(place.run, name) for name in parts(reply)} == parts(reply)
    assert place.refused() == []


@pytest.mark.parametrize("confirmed", [False, True])
@pytest.mark.parametrize("beyond", [0, 1])
def test_the_allowance_holds_to_the_byte(
    place: Place, monkeypatch: pytest.MonkeyPatch, confirmed: bool, beyond: int
) -> None:
    asked = place.send(arrays=2, size=3000)
    reply = reply_to(asked, arrays=1, size=20_000)
    monkeypatch.setattr(fleet, "SLACK_BYTES", size(reply) - fleet.TIMES * size(asked) - beyond)
    if confirmed:
        place.fleet.ConfirmMessageReceived(confirm(asked), Call())
    before = place.bytes_stored()
    assert all(place.push(reply)) == (beyond == 0)
    (answer,) = place.link.answers(asked)
    assert answer.has_error() == (beyond == 1)
    if beyond:
        assert answer.error.code == fleet.REPLY_TOO_LARGE
        assert "MB that its message allows" in answer.error.reason
        assert answer.metadata.src_node_id == place.node
        assert place.bytes_stored() < before + 1000
        assert place.link.count("fairbloom_uploads") == 0
        assert len(place.refused()) == 1


@pytest.mark.parametrize("beyond", [0, 1])
def test_the_allowance_holds_to_the_object(place: Place, monkeypatch: pytest.MonkeyPatch, beyond: int) -> None:
    asked, reply = place.send(), None
    reply = reply_to(asked, arrays=5)
    number = count(get_object_tree(reply), 1000)
    monkeypatch.setattr(fleet, "SLACK_OBJECTS", number - fleet.TIMES * len(parts(asked)) - beyond)
    stored = place.push(reply)
    (answer,) = place.link.answers(asked)
    assert answer.has_error() == (beyond == 1)
    assert sum(stored) == (0 if beyond else len(parts(reply)))


@pytest.mark.parametrize("place", [False], indirect=True)
def test_what_stops_a_reply_in_its_midst_deletes_what_had_come(place: Place, no_slack: None) -> None:
    asked = place.send(size=1000)
    before = place.bytes_stored()
    stored = place.push(reply_to(asked, arrays=4, size=900))
    assert True in stored
    assert False in stored
    assert place.bytes_stored() < before + 1000  # the error's few bytes


def test_a_head_that_is_pushed_again_does_not_make_the_allowance_new(place: Place, no_slack: None) -> None:
    asked = place.send(size=1000)
    reply = reply_to(asked, arrays=8, size=900)
    contents, stored = parts(reply), 0
    for _ in range(10):  # a part each time, and the head anew
        answer = place.fleet.PushMessages(head(reply), Call())
        for needed in answer.objects_to_push[:1]:
            stored += place.fleet.PushObject(part(reply, answer.session_id, needed, contents[needed]), Call()).stored
    assert stored < len(contents)
    (answered,) = place.link.answers(asked)
    assert answered.has_error()
    assert place.bytes_stored() < size(asked) + 1000


def test_a_part_that_comes_again_and_again_counts_once(
    place: Place, no_slack: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does when receipts are lost."""
    asked = place.send(size=5000)
    reply = reply_to(asked, arrays=2, size=2500)
    answer = place.fleet.PushMessages(head(reply), Call())
    contents = parts(reply)
    largest = max(contents, key=lambda name: len(contents[name]))
    for _ in range(20):
        place.fleet.PushObject(part(reply, answer.session_id, largest, contents[largest]), Call())
    with monkeypatch.context() as patch:
        patch.setattr(tables, "SPEND", "a fault of the SuperLink's")
        for _ in range(20):
            with pytest.raises(sqlite3.OperationalError):
                place.fleet.PushObject(part(reply, answer.session_id, largest, contents[largest]), Call())
    for needed in set(answer.objects_to_push) - {largest}:
        assert place.fleet.PushObject(part(reply, answer.session_id, needed, contents[needed]), Call()).stored


def test_after_a_restart_counting_goes_on(place: Place, no_slack: None) -> None:
    asked = place.send(size=1000)
    reply = reply_to(asked, arrays=4, size=900)
    answer, contents = place.fleet.PushMessages(head(reply), Call()), parts(reply)
    stored = []
    for needed in answer.objects_to_push:
        place.start()
        stored.append(place.fleet.PushObject(part(reply, answer.session_id, needed, contents[needed]), Call()).stored)
    assert True in stored
    assert False in stored
    (answered,) = place.link.answers(asked)
    assert answered.error.code == fleet.REPLY_TOO_LARGE


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_sees_a_reply_once_it_is_whole(place: Place, restarted: bool) -> None:
    asked = place.send()
    reply = reply_to(asked, arrays=3)
    answer, contents = place.fleet.PushMessages(head(reply), Call()), parts(reply)
    for needed in answer.objects_to_push:
        assert place.link.answers(asked) == []
        if restarted:
            place.start()
        assert place.fleet.PushObject(part(reply, answer.session_id, needed, contents[needed]), Call()).stored
    (seen,) = place.link.answers(asked)
    assert seen.metadata.message_id == reply.metadata.message_id


def test_content_in_the_head_is_refused(place: Place) -> None:
    asked = place.send()
    request = head(reply_to(asked))
    request.messages_list[0].metadata.group_id = "x" * (fleet.LARGEST_HEAD + 1)
    assert not place.fleet.PushMessages(request, Call()).session_id
    assert place.refused() == ["refused: a reply with content in its head"]


def tree(number: int, depth: int) -> ObjectTree:
    root = ObjectTree(object_id="0" * 64)
    if depth:
        below = root
        for _ in range(depth):
            below = below.children.add(object_id="1" * 64)
    else:
        for _ in range(number - 1):
            root.children.add(object_id="1" * 64)
    return root


@pytest.mark.parametrize(("number", "depth"), [(20_000, 0), (5001, 5000)])
def test_trees_of_any_shape_are_counted_up_to_the_limit(number: int, depth: int) -> None:
    assert count(tree(number, depth), number) == number
    assert count(tree(number, depth), 100) == 101


def test_a_reply_of_20_000_arrays_leaves_nothing_behind(place: Place) -> None:
    asked = place.send()
    reply = reply_to(asked)
    huge = get_object_tree(reply)
    for number in range(20_000):
        huge.children.add(object_id=f"{number:064x}")
    objects = place.link.count("objects")
    answer = place.fleet.PushMessages(head(reply, tree=huge), Call())
    assert not answer.objects_to_push
    (answered,) = place.link.answers(asked)
    assert answered.error.code == fleet.REPLY_TOO_LARGE
    assert place.link.count("objects") <= objects + 1
    assert place.link.count("fairbloom_uploads") == 0


@pytest.mark.parametrize("place", [True], indirect=True)
def test_a_part_that_is_not_what_its_id_says_is_refused_with_its_reply(place: Place) -> None:
    asked = place.send()
    reply = reply_to(asked)
    contents, before = parts(reply), place.bytes_stored()
    contents[min(contents)] += b"!"
    with pytest.raises(AbortedError, match=r"INVALID_ARGUMENT: object .* has other content"):
        place.fleet.PushMessages(head(reply), Call(), contents)
    assert place.refused() == ["refused: a reply with a part that is not what its id says"]
    assert place.bytes_stored() == before
    assert place.link.answers(asked) == []
    assert all(place.push(reply))


@pytest.mark.parametrize("place", [True], indirect=True)
def test_parts_beyond_a_call_follow_one_by_one(place: Place) -> None:
    asked = place.send()
    reply = reply_to(asked, arrays=3)
    contents = parts(reply)
    some = dict(list(contents.items())[:2])
    answer = place.fleet.PushMessages(head(reply), Call(), some)
    assert {*answer.objects_to_push} == contents.keys() - some.keys()
    assert place.link.answers(asked) == []
    for name in answer.objects_to_push:
        assert place.fleet.PushObject(part(reply, answer.session_id, name, contents[name]), Call()).stored
    assert len(place.link.answers(asked)) == 1


@pytest.mark.parametrize("place", [True], indirect=True)
def test_a_reply_to_a_run_that_is_over_is_refused(place: Place) -> None:
    reply = reply_to(place.send())
    place.link.state.stop_run(place.run)
    with pytest.raises(FlowerError) as refused:
        place.fleet.PushMessages(head(reply), Call(), parts(reply))
    assert refused.value.code == 2007


@pytest.mark.parametrize("place", [True], indirect=True)
@pytest.mark.parametrize("fits", [True, False])
def test_a_message_comes_with_its_parts_where_they_fit(
    place: Place, monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    asked = place.send(arrays=2, size=1000)
    if not fits:
        monkeypatch.setattr(fleet, "LARGEST_PARTS", 1000)
    answer = place.fleet.Next(exchange_pb2.NextRequest(node_id=place.node), Call())
    assert {one.id: one.content for one in answer.parts} == (parts(asked) if fits else {})


# Whose reply, and how many ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["_created_at", "_ttl"])
def test_a_reply_whose_time_is_no_number_does_not_end_its_run(place: Place, field: str) -> None:
    """It is nothing in the database: the run's question for its replies would fail, again and again."""
    sent = place.send()
    place.fleet.PullMessages(pull(place.node), Call())
    reply = reply_to(sent)
    reply.metadata.__dict__[field] = math.nan
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with pytest.raises(AbortedError, match="INVALID_ARGUMENT: a reply has possible times alone"):
        place.push(reply)
    assert place.refused() == ["refused: a reply with an impossible time"]
    assert place.link.answers(sent) == []
    assert all(place.push(reply_to(sent, seed=2)))
    assert len(place.link.answers(sent)) == 1


def test_a_second_reply_is_not_stored(place: Place) -> None:
    asked = place.send()
    first, second = reply_to(asked, seed=1), reply_to(asked, seed=2)
    place.push(first)
    assert not any(place.push(second))
    (answer,) = place.link.answers(asked)
    assert answer.metadata.message_id == first.metadata.message_id
    assert place.refused() == ["refused: a second reply to the same message"]
    store = place.link.objects.store()
    assert not any(name in store for name in set(parts(second)) - set(parts(first)))


def test_one_reply_to_a_message_is_under_way_at_a_time(place: Place) -> None:
    """Parts of many, none of them whole, would fill the disk."""
    asked = place.send()
    first = reply_to(asked, arrays=2)
    answer = place.fleet.PushMessages(head(first), Call())
    assert not place.fleet.PushMessages(head(reply_to(asked, seed=2)), Call()).objects_to_push
    assert place.link.count("fairbloom_uploads") == 1
    assert place.refused() == ["refused: a second reply to the same message"]
    for name in answer.objects_to_push:
        assert place.fleet.PushObject(part(first, answer.session_id, name, parts(first)[name]), Call()).stored
    assert len(place.link.answers(asked)) == 1


def test_after_a_refused_reply_no_other_is_taken(place: Place, no_slack: None) -> None:
    asked = place.send()
    place.push(reply_to(asked, size=40_000))
    assert not any(place.push(reply_to(asked)))
    (answer,) = place.link.answers(asked)
    assert answer.has_error()


def test_a_reply_in_another_nodes_name_is_refused(place: Place) -> None:
    asked = place.send()
    with pytest.raises(AbortedError, match="INVALID_ARGUMENT: a node answers in its own name"):
        place.fleet.PushMessages(head(reply_to(asked), node=place.other), Call())
    assert place.link.answers(asked) == []


def test_a_reply_to_another_nodes_message_is_not_stored(place: Place) -> None:
    asked = place.send()
    reply = reply_to(asked)
    reply.metadata.__dict__["_src_node_id"] = place.other
    reply.metadata.__dict__["_message_id"] = reply.object_id
    assert not any(place.push(reply))
    assert place.link.answers(asked) == []
    assert place.link.count("fairbloom_uploads") == 0


@pytest.mark.parametrize("number", [0, 2])
def test_a_call_carries_one_reply(place: Place, number: int) -> None:
    request = head(reply_to(place.send()))
    several = PushMessagesRequest(
        node=request.node,
        messages_list=list(request.messages_list) * number,
        message_object_trees=list(request.message_object_trees) * number,
    )
    with pytest.raises(AbortedError, match="one reply a call"):
        place.fleet.PushMessages(several, Call())


def test_a_tree_of_another_reply_is_refused(place: Place) -> None:
    asked = place.send()
    with pytest.raises(AbortedError, match="INVALID_ARGUMENT"):
        place.fleet.PushMessages(head(reply_to(asked), tree=get_object_tree(reply_to(asked, seed=9))), Call())


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no such message", "an id that is none"])
def test_heads_that_are_not_stored_leave_nothing_behind(place: Place, fault: str) -> None:
    """Thousands of them would fill the database."""
    reply = reply_to(place.send())
    request = head(reply)
    if fault == "no such message":
        request.messages_list[0].metadata.reply_to_message_id = "f" * 64
    else:
        request.message_object_trees[0].children.add(object_id="short")
    before = {table: place.link.count(table) for table in ("objects", "fairbloom_uploads")}
    for _ in range(5):
        if fault == "an id that is none":
            with pytest.raises(ValueError, match="an object tree with short"):
                place.fleet.PushMessages(request, Call())
        else:
            place.fleet.PushMessages(request, Call())
    assert {table: place.link.count(table) for table in before} == before
    assert place.link.count("message_res") == 0


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["", "unknown", "the other's"])
def test_a_part_without_the_nodes_own_session_is_not_stored(place: Place, whose: str) -> None:
    reply = reply_to(place.send())
    answer, contents = place.fleet.PushMessages(head(reply), Call()), parts(reply)
    name = answer.objects_to_push[0]
    session = answer.session_id if whose == "the other's" else whose
    node = place.other if whose == "the other's" else place.node
    for _ in range(2):
        assert not place.fleet.PushObject(part(reply, session, name, contents[name], node=node), Call()).stored
        place.start()
    assert place.fleet.PushObject(part(reply, answer.session_id, name, contents[name]), Call()).stored


def test_what_is_over_is_forgotten(place: Place) -> None:
    asked = place.send()
    place.push(reply_to(asked))
    assert place.link.count("fairbloom_sizes") == 1
    place.link.state.delete_messages({asked.metadata.message_id})
    place.start()
    assert place.link.count("fairbloom_sizes") == 0
    assert place.link.count("fairbloom_uploads") == 0


# Handing out again --------------------------------------------------------------------------------------------------


def pulled(place: Place, node: int | None = None) -> list[str]:
    answer = place.fleet.PullMessages(pull(node or place.node), Call())
    return [one.metadata.message_id for one in answer.messages_list]


def activate(place: Place, key: bytes = b"key-a") -> None:
    node = place.link.state.get_node_id_by_public_key(key)
    place.link.state.query("UPDATE node SET status = 'offline', online_until = 0")
    place.fleet.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=30), Call(key))
    assert node


@pytest.mark.slow
@pytest.mark.parametrize("how", ["asked again", "restart", "activate"])
@pytest.mark.parametrize("state", ["handed out", "confirmed", "answered"])
def test_what_was_handed_out_and_not_answered_is_handed_out_again_with_all_its_parts(
    place: Place, how: str, state: str
) -> None:
    asked = place.send()
    assert pulled(place) == [asked.metadata.message_id]
    if state == "confirmed":
        place.fleet.ConfirmMessageReceived(confirm(asked), Call())
    elif state == "answered":
        place.push(reply_to(asked))
    if how == "restart":
        place.start()
    elif how == "activate":
        activate(place)
    assert pulled(place) == ([] if state == "answered" else [asked.metadata.message_id])
    if state == "confirmed":
        assert {name: place.link.state.get_object(place.run, name) for name in parts(asked)} == parts(asked)


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True])
def test_a_node_that_is_killed_in_the_midst_of_its_reply_is_handed_the_message_again(
    place: Place, restarted: bool
) -> None:
    asked = place.send()
    pulled(place)
    place.fleet.ConfirmMessageReceived(confirm(asked), Call())
    torn = reply_to(asked, arrays=3)
    begun = place.fleet.PushMessages(head(torn), Call())
    first, *rest = begun.objects_to_push
    assert place.fleet.PushObject(part(torn, begun.session_id, first, parts(torn)[first]), Call()).stored
    if restarted:
        place.start()
    assert pulled(place) == [asked.metadata.message_id]
    assert not place.fleet.PushObject(part(torn, begun.session_id, rest[0], parts(torn)[rest[0]]), Call()).stored
    whole = reply_to(asked, arrays=3, seed=2)
    assert all(place.push(whole))
    (answer,) = place.link.answers(asked)
    assert answer.metadata.message_id == whole.metadata.message_id
    assert pulled(place) == []


def test_a_message_that_ends_its_node_each_time_is_answered_by_an_error_and_the_next_one_is_handed_out(
    place: Place,
) -> None:
    asked, after = place.send(size=100), place.send(size=101)
    for _ in range(tables.MAX_DELIVERIES):
        assert pulled(place) == [asked.metadata.message_id]
        if not place.whole:
            place.fleet.ConfirmMessageReceived(confirm(asked), Call())
    assert pulled(place) == [after.metadata.message_id]
    (answer,) = place.link.answers(asked)
    assert answer.error.reason == "the node received the message 3 times, and ended each time before it had answered"
    assert answer.metadata.src_node_id == place.node


def test_a_node_counts_its_own_messages_alone(place: Place) -> None:
    """Else it could let another one's message fail."""
    theirs = place.link.send(place.run, place.other)
    for _ in range(tables.MAX_DELIVERIES + 1):
        stolen = confirm(theirs)
        stolen.node.node_id = place.node
        place.fleet.ConfirmMessageReceived(stolen, Call())
        stolen.message_object_id = "0" * 64
        place.fleet.ConfirmMessageReceived(stolen, Call())
    assert pulled(place, place.other) == [theirs.metadata.message_id]


def test_a_message_that_was_lost_on_the_way_is_handed_out_as_often_as_it_takes(place: Place) -> None:
    asked = place.send()
    place.fleet.again = True  # as the same process says of its next call
    for _ in range(3 * tables.MAX_DELIVERIES):
        assert pulled(place) == [asked.metadata.message_id]


def test_the_parts_of_a_message_go_with_it(place: Place) -> None:
    asked = place.send(arrays=3, size=1000)
    pulled(place)
    place.fleet.ConfirmMessageReceived(confirm(asked), Call())
    assert place.bytes_stored() > 3000
    place.link.state.delete_messages({asked.metadata.message_id})
    assert place.bytes_stored() == 0


def test_a_node_is_handed_its_own_messages_alone(place: Place) -> None:
    theirs = place.link.send(place.run, place.other)
    for _ in range(2):
        assert pulled(place, place.other) == [theirs.metadata.message_id]
        assert pulled(place) == []


def test_what_was_lost_is_handed_out_before_what_came_later(place: Place) -> None:
    first, second = place.send(size=100), place.send(size=101)
    order = [pulled(place) for _ in range(2)]
    place.push(reply_to(first))
    order += [pulled(place) for _ in range(2)]
    place.push(reply_to(second))
    assert order == [[first.metadata.message_id]] * 2 + [[second.metadata.message_id]] * 2
    assert pulled(place) == []


def test_a_node_that_was_receiving_while_the_superlink_was_started_again_answers_it_once(place: Place) -> None:
    asked = place.send()
    place.fleet.PullMessages(pull(place.node), Call())
    place.start()
    place.fleet.ConfirmMessageReceived(confirm(asked), Call())
    assert all(place.push(reply_to(asked)))
    assert not place.fleet.PullMessages(pull(place.node), Call()).messages_list
    assert len(place.link.answers(asked)) == 1


# Whose message ------------------------------------------------------------------------------------------------------


def pulled_part(place: Place, node: int, object_id: str) -> bytes | None:
    request = PullObjectRequest(node=Node(node_id=node), run_id=place.run, object_id=object_id)
    answer = place.fleet.PullObject(request, Call())
    return answer.object_content if answer.object_found else None


def confirmed(place: Place, node: int, message_id: str) -> None:
    request = ConfirmMessageReceivedRequest(node=Node(node_id=node), run_id=place.run, message_object_id=message_id)
    place.fleet.ConfirmMessageReceived(request, Call())


def test_another_nodes_message_can_be_neither_pulled_nor_deleted(place: Place) -> None:
    theirs = place.send(arrays=3)
    mine = place.link.send(place.run, place.other, arrays=1, size=7)
    for object_id in parts(theirs):
        assert pulled_part(place, place.other, object_id) is None
        confirmed(place, place.other, object_id)
    assert {object_id: pulled_part(place, place.node, object_id) for object_id in parts(theirs)} == parts(theirs)
    assert {object_id: pulled_part(place, place.other, object_id) for object_id in parts(mine)} == parts(mine)
    assert place.refused() == ["refused: a call for what is another client's"]


def test_parts_that_two_messages_share_go_to_both(place: Place) -> None:
    ours, theirs = place.send(), place.link.send(place.run, place.other)
    shared = parts(ours).keys() & parts(theirs).keys()
    assert shared
    for node in (place.node, place.other):
        assert all(pulled_part(place, node, object_id) for object_id in shared)
    confirmed(place, place.node, ours.metadata.message_id)
    assert all(pulled_part(place, place.other, object_id) for object_id in parts(theirs))
    assert all(pulled_part(place, place.node, object_id) for object_id in shared)  # until it has answered


def test_another_nodes_reply_can_be_neither_pulled_nor_deleted(place: Place) -> None:
    reply = reply_to(place.send(), arrays=2)
    assert all(place.push(reply))
    for object_id in parts(reply):
        assert pulled_part(place, place.other, object_id) is None
        confirmed(place, place.other, object_id)
    assert {object_id: place.link.state.get_object(place.run, object_id) for object_id in parts(reply)} == parts(reply)


def test_what_nobody_knows_is_neither_handed_out_nor_noted(place: Place) -> None:
    """As a message whose run has ended."""
    confirmed(place, place.node, "f" * 64)
    assert pulled_part(place, place.node, "f" * 64) is None
    assert place.refused() == []


def test_a_received_message_does_not_open_another_nodes(place: Place) -> None:
    """Its id may be registered once more, by a reply that names it as a part, with another's message below it."""
    mine, second = place.send(), place.send(size=101)
    theirs = place.link.send(place.run, place.other, arrays=2, size=9)
    place.fleet.ConfirmMessageReceived(confirm(mine), Call())
    reply = reply_to(second)
    tree = ObjectTree(object_id=reply.metadata.message_id)
    tree.children.add(object_id=mine.metadata.message_id).children.add(object_id=theirs.metadata.message_id)
    with pytest.raises(AbortedError, match="INVALID_ARGUMENT: no message is a part of a reply"):
        place.fleet.PushMessages(head(reply, tree=tree), Call())
    assert pulled_part(place, place.node, theirs.metadata.message_id) is None
    assert "refused: a reply with a message as a part" in place.refused()


# Waiting for messages -----------------------------------------------------------------------------------------------


class Asking(threading.Thread):
    """A node that asks for work."""

    def __init__(self, place: Place, node: int) -> None:
        super().__init__(daemon=True)
        self.place, self.node, self.call = place, node, Call()
        self.received: list[str] = []
        self.start()

    def run(self) -> None:
        answer = self.place.fleet.PullMessages(pull(self.node), self.call)
        self.received = [one.metadata.message_id for one in answer.messages_list]

    def is_held(self) -> bool:
        """Return, within a second, whether the call is held."""
        for _ in range(100):
            if self.node in self.place.long_poll._waiting or not self.is_alive():
                break
            self.join(0.01)
        return self.is_alive()


@pytest.fixture
def patient(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(long_poll, "HELD_SECONDS", 60.0)
    return place


def test_a_call_is_held_until_there_is_a_message(patient: Place) -> None:
    theirs, ours = Asking(patient, patient.other), Asking(patient, patient.node)
    assert ours.is_held()
    assert theirs.is_held()
    asked = patient.send()
    patient.long_poll.wake([patient.node])
    ours.join(10)
    assert ours.received == [asked.metadata.message_id]
    assert theirs.is_held()
    theirs.call.end()
    theirs.join(10)


def test_a_call_that_nothing_comes_for_is_answered(place: Place) -> None:
    asking = Asking(place, place.node)
    asking.join(10)
    assert not asking.is_alive()
    assert asking.received == []
    assert pulled(place) == []


def test_a_message_is_not_handed_to_a_node_that_has_hung_up(patient: Place) -> None:
    gone = Asking(patient, patient.node)
    assert gone.is_held()
    gone.call.end()
    gone.join(10)
    assert not gone.is_alive()
    asked = patient.send()
    assert pulled(patient) == [asked.metadata.message_id]
    assert gone.received == []


def test_one_call_of_a_node_is_held_at_a_time(patient: Place) -> None:
    """Held calls take threads: a node must not take them all."""
    first = Asking(patient, patient.node)
    assert first.is_held()
    assert pulled(patient) == []  # at once
    first.call.end()
    first.join(10)


def test_beyond_a_number_of_held_calls_others_are_answered_at_once(
    patient: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "MOST_HELD", 1)
    first = Asking(patient, patient.node)
    assert first.is_held()
    assert pulled(patient, patient.other) == []
    first.call.end()
    first.join(10)


# Who may come -------------------------------------------------------------------------------------------------------


def test_a_node_cannot_come_in_another_ones_name(place: Place) -> None:
    """Flower checks that the caller holds some key, not that it is the one it names."""
    place.link.state.query("UPDATE node SET status = 'offline', online_until = 0")
    with pytest.raises(AbortedError, match="UNAUTHENTICATED"):
        place.fleet.ActivateNode(ActivateNodeRequest(public_key=b"key-a", heartbeat_interval=30), Call(b"key-b"))
    assert place.link.state.query("SELECT DISTINCT status FROM node") == [{"status": "offline"}]
    assert place.refused() == ["refused: a node in another one's name"]


def comes(place: Place, instance: str) -> None:
    """Come as the first node does whose client was started just now."""
    place.fleet.ActivateNode(ActivateNodeRequest(public_key=b"key-a", heartbeat_interval=30), Call(b"key-a", instance))


def test_a_client_that_was_killed_and_started_again_is_let_in_at_once_and_never_seen_offline(place: Place) -> None:
    place.link.state.query("UPDATE node SET status = 'offline', online_until = 0")
    comes(place, "a" * 32)
    comes(place, "a" * 32)
    place.start()
    comes(place, "a" * 32)
    assert place.node in {node.node_id for node in place.link.state.get_node_info(statuses=["online"])}


@pytest.mark.slow
@pytest.mark.parametrize("instance", ["", "b" * 32, "a" * 65])
def test_another_one_with_a_copy_of_its_key_is_refused_while_it_is_connected(place: Place, instance: str) -> None:
    place.link.state.query("UPDATE node SET status = 'offline', online_until = 0")
    comes(place, "a" * 32)
    for _ in range(2):  # the second time, it has come before
        with pytest.raises(FlowerError, match="could not be activated"):
            comes(place, instance)
    comes(place, "a" * 32)


@pytest.mark.parametrize(
    ("says", "remedy"),
    [
        ("0", "upgrade fairbloom on this device"),
        (str(WIRE + 1), "upgrade the server first, or go back on this device"),
        ("x" * 100, "upgrade the server first, or go back on this device"),
    ],
)
def test_a_device_with_another_wire_format_is_refused_by_name_with_the_remedy(
    place: Place, says: str, remedy: str
) -> None:
    place.link.state.query("UPDATE node SET status = 'offline', online_until = 0")
    request = ActivateNodeRequest(public_key=b"key-a", heartbeat_interval=30)
    call = Call(b"key-a", "", (WIRE_HEADER, says), (VERSION_HEADER, "9.9.9"))
    words = f"FAILED_PRECONDITION: device site-a speaks wire format {says[:20]}, and the server {WIRE}: {remedy}"
    with pytest.raises(AbortedError) as refused:
        place.fleet.ActivateNode(request, call)
    assert str(refused.value) == words
    assert place.refused() == ["refused: a device with another wire format, of fairbloom 9.9.9"]
    assert place.link.state.query("SELECT DISTINCT status FROM node") == [{"status": "offline"}]
    for same in ((), ((WIRE_HEADER, str(WIRE)),)):  # the first devices say none
        assert place.fleet.ActivateNode(request, Call(b"key-a", "", *same)).node_id == place.node
        place.link.state.query("UPDATE node SET status = 'offline', online_until = 0")


def test_a_key_that_is_revoked_while_its_call_is_held_gets_no_message(patient: Place) -> None:
    waiting, patient.link.state.on_message = Asking(patient, patient.node), lambda nodes: None
    assert waiting.is_held()
    patient.send()
    patient.link.state.delete_node(NOOP_FLWR_AID, patient.node)
    patient.long_poll.wake([patient.node])
    assert waiting.is_held()
    waiting.call.end()
    waiting.join(10)
    assert waiting.received == []


def test_an_unregistered_key_is_noted(place: Place) -> None:
    with pytest.raises(FlowerError):
        place.fleet.ActivateNode(ActivateNodeRequest(public_key=b"key-c", heartbeat_interval=30), Call(b"key-c"))
    (line,) = read_events(place.logged.messages)
    assert line["event"] == "refused: an unregistered key"
    assert line["peer"] == "192.0.2.7"


@pytest.mark.slow
def test_a_key_that_is_struck_off_is_nobodys_at_once(place: Place) -> None:
    """Whose key it is, is remembered from call to call."""
    state = place.link.state
    assert [state.get_node_id_by_public_key(b"key-a") for _ in range(2)] == [place.node] * 2
    state.delete_node(NOOP_FLWR_AID, place.node)
    assert state.get_node_id_by_public_key(b"key-a") is None
    assert state.get_node_id_by_public_key(b"key-b") == place.other
    assert state.get_node_id_by_public_key(b"key-c") is None
    late = place.link.node(b"key-c")
    assert state.get_node_id_by_public_key(b"key-c") == late


CLIENT = """
name = "site-a"
node_id = "77"
partition_id = 0
public_key = "ecdsa-sha2-nistp384 AAAA"
enrolled = "2026-01-01T00:00:00+00:00"
"""


def test_who_is_enrolled_is_read_again_and_kept_while_a_file_is_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "READ_SECONDS", 0.0)
    (tmp_path / "federation.toml").write_text('superlink = "a:1"\ncontrol = "127.0.0.1:2"\n')
    (tmp_path / "clients").mkdir()
    file = tmp_path / "clients" / "site-a.toml"
    enrolled = Members(tmp_path)
    assert enrolled.name_of(77) == "node 77"
    file.write_text(CLIENT)
    assert enrolled.name_of(77) == "site-a"
    for corrupt in ("= what", CLIENT.replace("77", "seven"), "name = 5"):
        file.write_text(corrupt)
        assert enrolled.name_of(77) == "site-a"
    file.unlink()
    assert enrolled.name_of(77) == "node 77"


# Limits -------------------------------------------------------------------------------------------------------------


class Calls:
    """Threads that each wait for a turn of a node and hold it until they are let go."""

    def __init__(self, limit: CallLimit) -> None:
        self.limit, self.go, self.entered = limit, threading.Event(), threading.Semaphore(0)
        self.threads: list[threading.Thread] = []
        self.inside = self.most = self.turned_away = 0
        self._lock = threading.Lock()

    def start(self, number: int, node: object) -> None:
        for _ in range(number):
            self.threads.append(threading.Thread(target=self._call, args=(node,)))
            self.threads[-1].start()

    def _call(self, node: object) -> None:
        try:
            with self.limit.slot(node):
                with self._lock:
                    self.inside += 1
                    self.most = max(self.most, self.inside)
                self.entered.release()
                self.go.wait(300)
                with self._lock:
                    self.inside -= 1
        except TooManyCallsError:
            with self._lock:
                self.turned_away += 1

    def end(self) -> None:
        self.go.set()
        for thread in self.threads:
            thread.join()


def test_a_node_that_floods_delays_itself_alone() -> None:
    limit = CallLimit()
    flood, others = Calls(limit), Calls(limit)
    flood.start(10, node=1)
    for _ in range(rate_limit.CALLS_AT_ONCE):
        assert flood.entered.acquire(timeout=300)
    others.start(2, node=2)
    for _ in range(2):
        assert others.entered.acquire(timeout=300)  # while the first node's are under way
    others.end()
    flood.end()
    assert flood.most == rate_limit.CALLS_AT_ONCE
    with limit.slot(1):
        pass


def test_calls_beyond_a_nodes_measure_are_turned_away_and_hold_no_thread(place: Place) -> None:
    calls, turn = Calls(place.fleet.pipeline._turns), (place.node, fleet_server.SMALL_CALL)
    calls.start(rate_limit.UNDER_WAY_AT_ONCE + 5, turn)
    for _ in range(rate_limit.CALLS_AT_ONCE):
        assert calls.entered.acquire(timeout=300)
    while calls.turned_away < 5:
        calls.threads[0].join(0.01)
    with pytest.raises(AbortedError, match="RESOURCE_EXHAUSTED"):
        pulled(place)
    assert pulled(place, place.other) == []
    calls.end()
    assert calls.turned_away == 5
    assert pulled(place) == []


@pytest.mark.slow
def test_two_parts_at_once_are_both_counted(place: Place, no_slack: None) -> None:
    asked = place.send(size=10_000)
    reply = reply_to(asked, arrays=30, size=1000)
    answer, contents = place.fleet.PushMessages(head(reply), Call()), parts(reply)
    stored: list[Any] = []

    def push(names: list[str]) -> None:
        for name in names:
            stored.append(place.fleet.PushObject(part(reply, answer.session_id, name, contents[name]), Call()).stored)

    names = list(answer.objects_to_push)
    threads = [threading.Thread(target=push, args=(names[start::2],)) for start in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert False in stored
    (answered,) = place.link.answers(asked)
    assert answered.has_error()
    assert place.bytes_stored() < size(asked) + 2000
