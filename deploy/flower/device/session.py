"""A client while it is connected: it asks for messages, lets its worker answer them, and sends the replies."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping

from flwr.proto import message_pb2, run_pb2

from fairbloom.flower import ErrorCode
from fairbloom.logs import colour_on_terminals_alone
from fairbloom.protocol.names import DROP_HEADER

from ...device.client import ClientSettings
from ...device.contexts import Contexts
from ...device.instance import Instance
from ...device.outage import CONNECTED, Outage
from .fleet import (
    ANSWER_SECONDS,
    HEARTBEAT_SECONDS,
    ClosedError,
    Fleet,
    PartMissingError,
    RefusedError,
    RunOverError,
    UnknownNodeError,
)
from .messages import Answer, Task, pack_error
from .worker import CrashedError, DroppedError, Worker

SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 1.0
"""Shortest and longest pause between polls for work, where the SuperLink does not hold the call until there is some."""

IDLE_SECONDS = 60.0
"""A worker that has had nothing to do for so long is ended if its run is over."""

REMEDIES: Mapping[str, str] = {
    "[code: 2004]": "the SuperLink does not admit this key. Ask the federation's operator: it is not registered "
    "(fairbloom deploy enroll), or was revoked (enroll the client again), or a node with it is connected already: "
    "one that was killed counts as connected for a minute",
    "UNAUTHENTICATED": "the SuperLink refuses this node's signature: the key was revoked by the federation's "
    "operator, or this device's clock is more than 5 s ahead or 5 min behind (timedatectl)",
}
"""What would help, by a sign in a refusal."""

log = logging.getLogger("flwr")


class PollPause:
    """How long a node waits before it asks for work again: a tenth of the time it has been idle.

    Busy nodes answer within hundredths of a second; the polls of a node that waits for hours cost next to nothing.
    """

    def __init__(self) -> None:
        self._idle_since = time.monotonic()

    def worked(self) -> None:
        """Note that a message was answered just now."""
        self._idle_since = time.monotonic()

    @property
    def seconds(self) -> float:
        """The pause."""
        return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, (time.monotonic() - self._idle_since) / 10))


class Session:
    """One connection of a client, made by `connect`; the worker that answers its messages outlives it."""

    def __init__(self, fleet: Fleet, worker: Worker, contexts: Contexts) -> None:
        self._fleet, self._worker, self._contexts = fleet, worker, contexts
        self._pace, self._asked = PollPause(), time.monotonic()
        self._run, self._bundle = run_pb2.Run(), b""
        self._refusal: RefusedError | None = None

    def connect(self) -> None:
        """Make the node known, and give signs of life from now on."""
        self._fleet.connect()
        log.info("%s %s", CONNECTED, self._fleet.node.node_id)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def serve(self) -> None:
        """Answer messages until the SuperLink refuses this node, which is raised."""
        try:
            while True:
                if self._answer_next():
                    self._pace.worked()
                    self._asked = time.monotonic()
                else:
                    self._end_idle_worker()
                    self._fleet.wait(self._pace.seconds)
        except ClosedError:
            raise self._refusal or ClosedError from None

    # Heartbeat ------------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        pause = 0.0
        while not self._fleet.wait(pause):
            working = self._worker.working
            try:
                said = self._fleet.beat(working)
            except ClosedError:
                return
            except Exception as error:  # without heartbeat the node is taken for dead
                self._refusal = RefusedError(f"the heartbeat was refused: {error}")
                self._fleet.close()
                self._worker.drop(working, str(error))
            else:
                if reason := said.get(DROP_HEADER):
                    self._worker.drop(working, reason)
            pause = (HEARTBEAT_SECONDS - ANSWER_SECONDS) * random.uniform(0.7, 0.9)  # noqa: S311 (no secret)

    # Messages -------------------------------------------------------------------------------------------------------

    def _answer_next(self) -> bool:
        """Receive, answer and send; return whether there was a message."""
        if (pulled := self._fleet.pull()) is None:
            return False
        head, tree, parts = pulled
        about = head.metadata
        name = f"{about.message_type} message {about.message_id[:8]} of run {about.run_id}"
        try:
            run = self._find_run(about.run_id)
            parts = parts or self._fleet.receive(about.run_id, about.message_id, tree)
            log.info("received %s%s", name, f", round {about.group_id}" if about.group_id else "")
            began = time.monotonic()
            answer = self._answer(head, run, parts)
            missing = self._fleet.push(answer.head, answer.tree, answer.parts, time.monotonic() - began)
        except RunOverError:
            log.info("run %s is over: its %s is left", about.run_id, name)
        except UnknownNodeError:
            raise
        except (RefusedError, PartMissingError) as error:
            log.error("the %s is not answered: %s", name, error)
            return False
        else:
            log.info("answered %s", name)
            if missing:
                log.warning("the SuperLink did not store %d parts of the reply: it has them, or refuses them", missing)
        return True

    def _find_run(self, run_id: int) -> run_pb2.Run:
        """Return a run, and have its bundle; the worker ends where the bundle is not the one before."""
        if self._run.run_id != run_id:
            run = self._fleet.get_run(run_id)
            bundle = self._fleet.get_bundle(run)
            if bundle != self._bundle:
                self._worker.end()
            self._run, self._bundle = run, bundle
        return self._run

    def _answer(self, head: message_pb2.Message, run: run_pb2.Run, parts: Mapping[str, bytes]) -> Answer:
        about, place = head.metadata, run.series_id or run.run_id
        task = Task(
            node=self._fleet.node.node_id,
            run=run.SerializeToString(),
            bundle=self._bundle,
            message_id=about.message_id,
            parts=parts,
            state=self._contexts.load(place),
        )
        try:
            answer: Answer = self._worker.answer(task, f"{about.run_id}/{about.message_id}")
        except DroppedError as error:
            code, reason = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"the client has dropped this work: {error}"
        except CrashedError as error:
            code, reason = ErrorCode.CLIENT_APP_CRASHED, str(error)
        else:
            if answer.state is not None:
                self._contexts.save(place, answer.state)
            return answer
        log.error("answered with error %d: %s", code, reason)
        return pack_error(head, code, reason)

    def _end_idle_worker(self) -> None:
        """End a worker that has nothing to do, once its run is over."""
        if self._worker.runs and time.monotonic() - self._asked > IDLE_SECONDS:
            self._asked = time.monotonic()
            try:
                self._fleet.get_run(self._run.run_id)
            except (RunOverError, RefusedError):
                self._worker.end()


def serve(client: ClientSettings, instance: Instance, worker: Worker, contexts: Contexts, outage: Outage) -> str:
    """Be connected as this client until the SuperLink refuses it; return why, with what would help."""
    colour_on_terminals_alone()
    fleet = Fleet(client.superlink, client.ca, client.key, instance.name, outage)
    session = Session(fleet, worker, contexts)
    try:
        session.connect()
        session.serve()
    except RefusedError as error:
        fleet.close()
        remedies = [remedy for sign, remedy in REMEDIES.items() if sign in str(error)]
        return ": ".join([f"the SuperLink ended the connection ({error})", *remedies])
    finally:
        fleet.disconnect()
    return "the connection ended"
