"""The control and runtime APIs as we serve them: nobody is answered without a credential."""

from __future__ import annotations

import hashlib
import hmac
import time
import tomllib
from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache, partial
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import iter_route_contexts
from fastapi.security.utils import get_authorization_scheme_param
from flwr.proto import control_pb2, runtime_pb2
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fairbloom.protocol.version import PROTOCOL

from ...server.overview import read_overview
from ...server.refusals import RefusalLog, log_event
from ...server.shared import Shared
from ...server.supervisor import SEEN, STARTED, is_newer
from .. import exchange_pb2
from ..whole import pack_parts
from . import tables
from .grid import COLLECT_PATH, SEND_PATH, batches

STATUS_PATH, HEALTH_PATH = "/fairbloom/server", "/health"
RUNTIME_PATHS, FLEET_PATHS = "/v1/runtime/", "/v1/fleet"
ACQUIRE_PATH = f"{RUNTIME_PATHS}acquire-task"
"""The SuperExec's call, which carries its secret; all others of the runtime API carry the token of a run's process."""

TASK_TOKEN_HEADER = "flwr-task-token"  # noqa: S105 (a header's name)

LONGEST_WAIT_SECONDS = 10.0
"""Longest time that a run's process is kept waiting for replies."""

LARGEST_SUPEREXEC_CALL = 1 << 20
LARGEST_HEAD = 1 << 16
"""Largest head of a call, in bytes."""

TOKEN_SECONDS = 10.0
"""How long a task's token counts as good after it was looked up."""

NOTED: Mapping[str, tuple[str, Any]] = {
    "/v1/control/start-run": ("run submitted", control_pb2.StartRunResponse),
    "/v1/control/stop-run": ("run stopped", control_pb2.StopRunResponse),
    "/v1/control/register-node": ("key registered", control_pb2.RegisterNodeResponse),
    "/v1/control/unregister-node": ("key unregistered", control_pb2.UnregisterNodeResponse),
    "/v1/control/start-automation": ("automation started", control_pb2.StartAutomationResponse),
    "/v1/control/stop-automation": ("automation stopped", control_pb2.StopAutomationResponse),
}
"""Calls of the control API that change something, what the log calls them, and what is answered to them."""


class Operators:
    """Those who may use the control API, by the SHA-256 of their credentials in operators.toml."""

    def __init__(self, file: Path, refusals: RefusalLog) -> None:
        self._file, self._refusals = file, refusals

    def find(self, token: str) -> str:
        """Return whose credential this is, "" for nobody's; all are nobody's while the file cannot be used."""
        given = hashlib.sha256(token.encode()).hexdigest()
        try:
            known = tomllib.loads(self._file.read_text())  # read each time: what is taken back counts at once
            for name, about in known.items():
                if about.keys() != {"sha256"}:  # what is meant by more, a narrower right say, is not known here
                    raise ValueError(f"{name} has {', '.join(sorted(about))}: write sha256 and nothing else")
            matching = [name for name, about in known.items() if hmac.compare_digest(about["sha256"], given)]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._refusals.note_event("operators.toml cannot be used, so nobody is let in", reason=str(error))
            return ""
        return matching[0] if matching else ""


@lru_cache(maxsize=10)
def paths(app: FastAPI) -> frozenset[str]:
    """Return the paths of all that an app answers."""
    contexts = [*iter_route_contexts(app.routes), *app.routes]
    return frozenset(getattr(one, "path", "") or getattr(getattr(one, "route", None), "path", "") for one in contexts)


class CredentialCheck:
    """Refuses calls without a credential before their body is read, and notes what operators change.

    Flower checks some calls only once the body is in memory, and others not at all: API descriptions and log-in. Its
    fleet API, which it answers here as well, has none of our bounds: nobody gets to it, whatever the credential.
    """

    def __init__(self, app: ASGIApp, shared: Shared, superexec: SuperExecWatch, state_factory: Any) -> None:
        self._app, self._superexec, self._state_factory = app, superexec, state_factory
        self._refusals, self._connections = shared.refusals, shared.connections
        self._secret = shared.federation.runtime_secret.read_bytes()
        self._operators = Operators(shared.federation.operators, shared.refusals)
        self._good: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a call on, or answer 401."""
        if scope["type"] == "http":
            request = Request(scope)
            if not await self._is_allowed(request):
                await self._refuse(request, receive, send)
                self._say_of(scope, self._connections.dismiss)
                return
            if scope["path"] != HEALTH_PATH:
                self._say_of(scope, self._connections.admit)
            if scope["path"] in NOTED:
                await self._note_outcome(request, receive, send)
                return
        await self._app(scope, receive, send)

    async def _refuse(self, request: Request, receive: Receive, send: Send) -> None:
        """Answer 401, and note the attempt."""
        scope = request.scope
        api = next((name for name in ("runtime", "fleet") if scope["path"].startswith(f"/v1/{name}")), "control")
        what = f"a call of the {api} API without the credential"
        call = scope["path"] if scope["path"] in paths(scope["app"]) else "other"  # what is made up fills logs
        peer = request.client.host if request.client else ""
        await run_in_threadpool(partial(self._refusals.note, what, call=call, peer=peer))
        answer = JSONResponse({"detail": "not authenticated"}, HTTPStatus.UNAUTHORIZED, {"connection": "close"})
        await answer(scope, receive, send)

    async def _note_outcome(self, request: Request, receive: Receive, send: Send) -> None:
        """Hand on a call that changes something, and note what came of it."""
        sent = list[MutableMapping[str, Any]]()

        async def watch(message: MutableMapping[str, Any]) -> None:
            sent.append(message)
            await send(message)

        await self._app(request.scope, receive, watch)
        event, kind = NOTED[request.scope["path"]]
        asked = getattr(request.state, "protobuf_request", None)
        failed = [str(status) for message in sent if (status := message.get("status", HTTPStatus.OK)) != HTTPStatus.OK]
        answered = None if failed else kind.FromString(b"".join(message.get("body", b"") for message in sent))
        about = {"operator": request.state.operator}
        for message, key in ((asked, "run_id"), (answered, "run_id"), (asked, "node_id"), (answered, "node_id")):
            if value := getattr(message, key, 0):
                about[key.replace("_", "-")] = str(value)
        if name := getattr(asked, "name", ""):
            about["client"] = str(name)
        if failed:
            about["failed"] = failed[0]
        log_event(event, **about)

    @staticmethod
    def _say_of(scope: Scope, tell: Callable[[int, str, int], None]) -> None:
        """Tell by what connection a call came, unless the peer has hung up already."""
        if scope["client"] and scope["server"]:
            tell(scope["server"][1], *scope["client"])

    async def _is_allowed(self, request: Request) -> bool:
        path = request.scope["path"]
        if path == ACQUIRE_PATH:
            return await self._is_superexec(request)
        if path.startswith(RUNTIME_PATHS):
            return await self._has_task(request.headers.get(TASK_TOKEN_HEADER, ""))
        if path.startswith(FLEET_PATHS):
            return False
        if path == HEALTH_PATH:
            return True
        token = bearer_token(request)
        request.state.operator = await run_in_threadpool(self._operators.find, token) if token else ""
        return bool(request.state.operator)

    async def _is_superexec(self, request: Request) -> bool:
        length = request.headers.get("content-length", "")
        is_small = length.isdecimal() and int(length) <= LARGEST_SUPEREXEC_CALL
        if not is_small or "transfer-encoding" in request.headers:
            return False
        is_known = hmac.compare_digest(bearer_token(request).encode(), self._secret.hex().encode())
        if is_known:
            await run_in_threadpool(self._superexec.note_asked)
        return is_known

    async def _has_task(self, token: str) -> bool:
        """Return whether a token is that of a run's process."""
        if time.monotonic() - self._good.get(token, -TOKEN_SECONDS) < TOKEN_SECONDS:
            return True
        good = bool(token) and await run_in_threadpool(self._state_factory.state().is_task_token, token)
        if good:
            self._good = {**dict(list(self._good.items())[-100:]), token: time.monotonic()}
        return good


def bearer_token(request: Request) -> str:
    """Return the bearer token of a call, "" where it has none, or more than one."""
    given = request.headers.getlist("authorization")
    scheme, token = get_authorization_scheme_param(given[0]) if len(given) == 1 else ("", "")
    return token if scheme.lower() == "bearer" else ""


class SuperExecWatch:
    """Knows when a SuperExec asked for work.

    A SuperExec's processes end with it. When a new one asks for work, the runs of the one before are handed out again
    at once; Flower would wait for a minute of silence. Each SuperExec leaves a file in the state folder when it starts.
    """

    def __init__(self, folder: Path, state_factory: Any) -> None:
        self._started, self._seen, self._state_factory = folder / STARTED, folder / SEEN, state_factory
        self._asked: float | None = None

    def note_asked(self) -> None:
        """Note that a SuperExec asks for work."""
        if not is_newer(self._seen, self._started):
            self._state_factory.state().release_runs()
            self._seen.touch()
        self._asked = time.monotonic()

    @property
    def seconds_ago(self) -> float | None:
        """Seconds since a SuperExec asked for work, None where none has."""
        return None if self._asked is None else time.monotonic() - self._asked


class WholeMessages:
    """Takes all messages of a round from a run's process in one call, and hands out all replies in one.

    Nothing is lost with a call that fails, or whose answer is lost: replies are handed out until their receipt is
    confirmed.
    """

    def __init__(self, state_factory: Any) -> None:
        self._state_factory = state_factory

    def send(self, request: Any, task: Any) -> Any:
        """Take messages once all their parts are here; before that, take parts and say which are missing."""
        given = {part.id: part.content for part in request.parts}
        sent = runtime_pb2.PushAppMessagesRequest.FromString(request.sent)
        ids, missing = self._state_factory.state().store_round(task.run_id, sent, given)
        answer = runtime_pb2.PushAppMessagesResponse(message_ids=ids, objects_to_push=missing)
        return exchange_pb2.SendResponse(sent=answer.SerializeToString())

    def collect(self, request: Any, task: Any) -> Any:
        """Wait until enough replies are here, or hand out those that are, or parts of them."""
        state = self._state_factory.state()
        if request.received:
            state.forget_answered(request.messages, request.received)
            return exchange_pb2.CollectResponse()
        if request.wait_for:
            state.wait_for_answers(request.messages, request.wait_for, min(request.seconds, LONGEST_WAIT_SECONDS))
            return exchange_pb2.CollectResponse()
        answer, names = runtime_pb2.PullAppMessagesResponse(), dict.fromkeys(request.parts, 0)
        if request.messages:
            for head, tree in state.find_replies(request.messages, task.run_id):
                answer.messages_list.append(head)
                answer.message_object_trees.append(tree)
            names = state.store.sizes(tree.object_id for tree in answer.message_object_trees)
        elif names:
            names = {name: size for name, size in state.store.sizes(names).items() if name in names}
        return exchange_pb2.CollectResponse(
            replies=answer.SerializeToString(),
            parts=pack_parts(state.store.contents(next(batches(names)))),
        )

    async def answer(self, request: Request) -> Response:
        """Answer a call."""
        kind, function = {
            SEND_PATH: (exchange_pb2.SendRequest, self.send),
            COLLECT_PATH: (exchange_pb2.CollectRequest, self.collect),
        }[request.scope["path"]]
        asked = kind.FromString(await request.body())
        answer = await run_in_threadpool(self._of_run, request.headers[TASK_TOKEN_HEADER], function, asked)
        return Response(answer, media_type="application/protobuf")

    def _of_run(self, token: str, function: Callable[[Any, Any], Any], asked: Any) -> bytes:
        (row,) = self._state_factory.state().query(tables.RUN_OF_TOKEN, {"token": token})
        return bytes(function(asked, SimpleNamespace(run_id=tables.unsigned(row["run_id"]))).SerializeToString())


def guard(app: FastAPI, shared: Shared) -> None:
    """Put Flower's HTTP app behind credentials, and add the server's own status."""
    federation, states = shared.federation, app.state.linkstate_factory
    superexec = SuperExecWatch(federation.state, states)
    app.add_middleware(CredentialCheck, shared=shared, superexec=superexec, state_factory=states)

    def status() -> dict[str, Any]:
        """Return who is there to run the server's side, the database's size, versions, and what goes on."""
        files = federation.database.parent.glob(f"{federation.database.name}*")
        nodes = states.state().versions()
        return {
            "superexec_seen": superexec.seconds_ago,
            "database_bytes": sum(file.stat().st_size for file in files),
            "refused_attempts": shared.refusals.attempts,
            "calls_under_way": shared.turns.under_way,
            "version": version("fairbloom"),
            "protocol": PROTOCOL,
            "nodes": {str(node_id): found for node_id, found in nodes.items()},
            "overdue": {str(node_id): run_id for node_id, run_id in shared.overdue.copy().items()},
            **read_overview(federation.state),
        }

    whole = WholeMessages(states)
    app.add_api_route(STATUS_PATH, status, methods=["GET"])
    for path in (SEND_PATH, COLLECT_PATH):
        app.add_api_route(path, whole.answer, methods=["POST"])
