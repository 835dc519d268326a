"""The control and runtime APIs as we serve them: nobody is answered without a credential."""

from __future__ import annotations

import hashlib
import hmac
import time
import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.routing import iter_route_contexts
from fastapi.security.utils import get_authorization_scheme_param
from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.common.event_log_plugin import EventLogWriterPlugin
from flwr.supercore.auth import compute_superexec_signature, derive_auth_secret, verify_superexec_signature
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.constant import (
    SUPEREXEC_AUTH_BODY_SHA256_HEADER,
    SUPEREXEC_AUTH_NONCE_HEADER,
    SUPEREXEC_AUTH_SIGNATURE_HEADER,
    SUPEREXEC_AUTH_TIMESTAMP_HEADER,
    TASK_TOKEN_HEADER,
)
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.dependencies.account import AccountAccessDependency
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fairbloom.logs import log
from fairbloom.protocol.version import PROTOCOL

from ...operator import audit
from ...server.connections import Connections
from ...server.long_poll import LongPoll
from ...server.overdue import Overdue
from ...server.overview import read_overview
from ...server.refusals import RefusalLog
from ...server.supervisor import SEEN, STARTED, is_newer

STATUS_PATH, HEALTH_PATH = "/fairbloom/server", "/health"
RUNTIME_PATHS = "/v1/runtime/"
SUPEREXEC_CALLS: Mapping[str, str] = {
    RUNTIME_PATHS + "acquire-task": "/flwr.proto.Runtime/AcquireTask",
    RUNTIME_PATHS + "pull-pending-tasks": "/flwr.proto.Runtime/PullPendingTasks",
    RUNTIME_PATHS + "claim-task": "/flwr.proto.Runtime/ClaimTask",
}
"""Calls of the SuperExec, with the names under which they are signed; all others carry the token of a run's process."""

LARGEST_SUPEREXEC_CALL = 1 << 20
LARGEST_HEAD = 1 << 16
"""Largest head of a call, in bytes."""

TOKEN_SECONDS = 10.0
"""How long a task's token counts as good after it was looked up."""

NOTED: Mapping[str, str] = {
    "/v1/control/start-run": "run submitted",
    "/v1/control/stop-run": "run stopped",
    "/v1/control/register-node": "key registered",
    "/v1/control/unregister-node": "key unregistered",
    "/v1/control/start-automation": "automation started",
    "/v1/control/stop-automation": "automation stopped",
}
"""Calls of the control API that change something, and what the audit log calls them."""


class Operators:
    """Those who may use the control API, by the SHA-256 of their credentials in operators.toml."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def name_of(self, token: str) -> str:
        """Return whose credential this is, "" for nobody's; all are nobody's while the file cannot be used."""
        given = hashlib.sha256(token.encode()).hexdigest()
        try:
            known = tomllib.loads(self._file.read_text())  # read each time: what is taken back counts at once
            matching = [name for name, about in known.items() if hmac.compare_digest(about["sha256"], given)]
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.error("%s cannot be used, so nobody is let in: %s", self._file, error)
            return ""
        return matching[0] if matching else ""


class OperatorsPlugin(NoOpControlAuthnPlugin):
    """Flower's way to ask who calls the control API; there is nothing to log in to."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    def validate_tokens_in_metadata(self, metadata: Any) -> tuple[bool, AccountInfo | None]:
        """Return whether the bearer token is an operator's; to Flower all operators are one account."""
        token = str(dict(metadata).get(ACCESS_TOKEN_KEY, ""))
        if not token or not self._operators.name_of(token):
            return False, None
        return True, AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=NOOP_ACCOUNT_NAME)

    def refresh_tokens(self, metadata: Any) -> tuple[None, None]:
        """Refuse: an operator's credential does not change by itself."""
        return None, None


class OperatorAccess(AccountAccessDependency):
    """Asks a call for an operator's credential, and notes the operator's name for the audit log."""

    def __init__(self, operators: Operators) -> None:
        super().__init__(OperatorsPlugin(operators))
        self._operators = operators

    def __call__(self, request: Request) -> AccountInfo:
        """Return the account of a call; answer 401 where it has none."""
        account = super().__call__(request)
        _, token = get_authorization_scheme_param(request.headers["authorization"])
        request.state.operator = self._operators.name_of(token)
        return account


class AuditPlugin(EventLogWriterPlugin):
    """Notes what operators change by the control API, and what came of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def compose_log_before_event(self, request: Any, context: Any, account_info: Any, method_name: str) -> Any:
        """Return nothing: only outcomes are noted."""
        return None

    def compose_log_after_event(
        self, request: Any, context: Any, account_info: Any, method_name: str, response: Any
    ) -> Any:
        """Return what is noted of a call, None for one that changes nothing."""
        if method_name not in NOTED:
            return None
        about: dict[str, str] = {"operator": str(getattr(context.state, "operator", ""))}
        for message, key in ((request, "run_id"), (response, "run_id"), (request, "node_id"), (response, "node_id")):
            if value := getattr(message, key, 0):
                about[key.replace("_", "-")] = str(value)
        if name := getattr(request, "name", ""):
            about["client"] = str(name)
        if isinstance(response, BaseException):
            about["failed"] = type(response).__name__
        return NOTED[method_name], about

    def write_log(self, log_entry: Any) -> None:
        """Append to the audit log."""
        if log_entry is not None:
            what, about = log_entry
            audit.note(self._folder, what, **about)


@lru_cache(maxsize=10)
def paths(app: FastAPI) -> frozenset[str]:
    """Return the paths of all that an app answers."""
    contexts = [*iter_route_contexts(app.routes), *app.routes]
    return frozenset(getattr(one, "path", "") or getattr(getattr(one, "route", None), "path", "") for one in contexts)


class CredentialCheck:
    """Refuses calls without a credential before their body is read, whatever they ask for.

    Flower checks some calls only once the body is in memory, and others not at all: API descriptions and log-in.
    """

    def __init__(
        self,
        app: ASGIApp,
        door: OperatorAccess,
        secret: bytes,
        state_factory: Any,
        refusals: RefusalLog,
        connections: Connections,
    ) -> None:
        self._app, self._door, self._state_factory, self._refusals = app, door, state_factory, refusals
        self._secret, self._connections = derive_auth_secret(secret), connections
        self._good: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a call on, or answer 401."""
        if scope["type"] == "http":
            request = Request(scope)
            runtime = scope["path"].startswith(RUNTIME_PATHS)
            if not await (self._may_run(request) if runtime else run_in_threadpool(self._may_control, request)):
                what = f"a call of the {'runtime' if runtime else 'control'} API without the credential"
                peer = request.client.host if request.client else ""
                call = scope["path"] if scope["path"] in paths(scope["app"]) else "other"  # what is made up fills logs
                await run_in_threadpool(self._refusals.note, what, call=call, peer=peer)
                refusal = JSONResponse({"detail": "not authenticated"}, 401, headers={"connection": "close"})
                await refusal(scope, receive, send)
                self._say_of(scope, self._connections.dismiss)
                return
            if scope["path"] != HEALTH_PATH:
                self._say_of(scope, self._connections.admit)
        await self._app(scope, receive, send)

    @staticmethod
    def _say_of(scope: Scope, tell: Callable[[int, str, int], None]) -> None:
        """Tell by what connection a call came, unless the peer has hung up already."""
        if scope["client"] and scope["server"]:
            tell(scope["server"][1], *scope["client"])

    def _may_control(self, request: Request) -> bool:
        if request.scope["path"] == HEALTH_PATH:
            return True
        try:
            self._door(request)
        except HTTPException:
            return False
        return True

    async def _may_run(self, request: Request) -> bool:
        if request.scope["path"] in SUPEREXEC_CALLS:
            length = request.headers.get("content-length", "")
            whole = length.isdecimal() and "transfer-encoding" not in request.headers
            return whole and int(length) <= LARGEST_SUPEREXEC_CALL and self._is_signed(request)
        token = request.headers.get(TASK_TOKEN_HEADER, "")
        if time.monotonic() - self._good.get(token, -TOKEN_SECONDS) < TOKEN_SECONDS:
            return True
        good = bool(token) and await run_in_threadpool(self._state_factory.state().get_task_by_token, token) is not None
        if good:
            self._good = {**dict(list(self._good.items())[-100:]), token: time.monotonic()}
        return good

    def _is_signed(self, request: Request) -> bool:
        """Return whether the head of a SuperExec's call is signed; that the body is the one it names, Flower checks."""
        names = (SUPEREXEC_AUTH_TIMESTAMP_HEADER, SUPEREXEC_AUTH_NONCE_HEADER, SUPEREXEC_AUTH_BODY_SHA256_HEADER)
        timestamp, nonce, body = (request.headers.get(name, "") for name in names)
        try:
            expected = compute_superexec_signature(
                auth_secret=self._secret,
                method=SUPEREXEC_CALLS[request.scope["path"]],
                timestamp=int(timestamp),
                nonce=nonce,
                body_sha256=body,
            )
            return verify_superexec_signature(expected, request.headers.get(SUPEREXEC_AUTH_SIGNATURE_HEADER, ""))
        except (ValueError, TypeError):  # no number, or a signature of other characters than ASCII
            return False


class WatchedHandlers:
    """Flower's handlers of the runtime API, which also watch the SuperExec and hold the calls of waiting nodes.

    A SuperExec's processes end with it. When a new one asks for work, the runs of the one before are handed out again
    at once; Flower would wait for a minute of silence. Each SuperExec leaves a file in the state folder when it starts.
    """

    def __init__(self, handlers: Any, folder: Path, long_poll: LongPoll) -> None:
        self._handlers, self._long_poll = handlers, long_poll
        self._started, self._seen = folder / STARTED, folder / SEEN
        self._asked: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handlers, name)

    def acquire_task(self, request: Any, state: Any) -> Any:
        """Hand out a task to the SuperExec."""
        if not is_newer(self._seen, self._started):
            state.release_runs()
            self._seen.touch()
        self._asked = time.monotonic()
        return self._handlers.acquire_task(request, state)

    def pull_messages(self, request: Any, state: Any, task: Any) -> Any:
        """Hand out replies, again as well where their receipt was not confirmed: the answer may not have arrived."""
        with state.session(), state.keeping_answered():
            state.show_again(set(request.message_ids))
            return self._handlers.pull_messages(request, state, task)

    def confirm_message_received(self, request: Any, state: Any, task: Any) -> Any:
        """Forget a reply that a run has received whole, and the message that it answers."""
        with state.session():
            state.forget_answered(request.message_object_id)
            return self._handlers.confirm_message_received(request, state, task)

    def push_messages(self, request: Any, state: Any, task: Any) -> Any:
        """Take messages, all or nothing."""
        with state.session():
            taken = self._handlers.push_messages(request, state, task)
        self._tell(state, taken.session_id)
        return taken

    def push_object(self, request: Any, state: Any, task: Any) -> Any:
        """Take a part of messages; with the last one, the calls of nodes that wait are answered."""
        taken = self._handlers.push_object(request, state, task)
        self._tell(state, request.session_id)
        return taken

    def _tell(self, state: Any, session_id: str) -> None:
        if not state.is_under_way(session_id):
            self._long_poll.wake()

    @property
    def seconds_ago(self) -> float | None:
        """Seconds since a SuperExec asked for work, None where none has."""
        return None if self._asked is None else time.monotonic() - self._asked


def guard(
    app: FastAPI,
    operators: Operators,
    state_folder: Path,
    database: Path,
    refusals: RefusalLog,
    long_poll: LongPoll,
    connections: Connections,
    overdue: Overdue | None = None,
) -> None:
    """Put Flower's HTTP app behind credentials, note what is changed, and add the server's own status."""
    app.state.account_access_dep = door = OperatorAccess(operators)
    app.state.control_event_log_plugin = AuditPlugin(state_folder)
    app.state.runtime_handlers = watched = WatchedHandlers(app.state.runtime_handlers, state_folder, long_poll)
    app.add_middleware(
        CredentialCheck,
        door=door,
        secret=app.state.superexec_auth_secret,
        state_factory=app.state.linkstate_factory,
        refusals=refusals,
        connections=connections,
    )

    def status() -> dict[str, Any]:
        """Return who is there to run the server's side, the database's size, versions, and what goes on."""
        size = sum(file.stat().st_size for file in database.parent.glob(f"{database.name}*"))
        about: dict[str, Any] = {
            "superexec_seen": watched.seconds_ago,
            "database_bytes": size,
            "version": version("fairbloom"),
        }
        nodes = app.state.linkstate_factory.state().versions()
        about |= {"protocol": PROTOCOL, "nodes": {str(node_id): found for node_id, found in nodes.items()}}
        about["overdue"] = {} if overdue is None else dict(overdue.runs)
        return about | read_overview(state_folder)

    app.add_api_route(STATUS_PATH, status, methods=["GET"])
