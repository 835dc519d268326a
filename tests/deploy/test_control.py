"""The door of the control and runtime APIs: nobody is answered without a credential, whatever is asked and however."""

import asyncio
import hashlib
import logging
import os
import time
import warnings
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fastapi.routing import iter_route_contexts
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.runtime_pb2 import AcquireTaskRequest, AcquireTaskResponse, GetNodesRequest
from flwr.server.superlink.linkstate import linkstate_factory
from flwr.supercore.constant import TASK_TOKEN_HEADER, TaskType
from flwr.supercore.object_store import object_store_factory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from fairbloom.deploy import pki
from fairbloom.deploy.flower.server import superlink
from fairbloom.deploy.flower.server.control import (
    ACQUIRE_PATH,
    FLEET_PATHS,
    HEALTH_PATH,
    LARGEST_SUPEREXEC_CALL,
    NOTED,
    STATUS_PATH,
)
from fairbloom.deploy.flower.server.run_state import RunState, RunStore
from fairbloom.deploy.server.connections import Connections
from fairbloom.deploy.server.refusals import RefusalLog
from fairbloom.deploy.server.shared import Shared
from fairbloom.deploy.server.supervisor import STARTED
from tests.deploy.logged import read_events
from tests.deploy.peer import signed_head
from tests.deploy.state import empty_database, submit

TOKEN, SECRET = "an operator's credential", bytes(range(32))
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()
BEARER = {"authorization": f"Bearer {TOKEN}"}
SUPEREXEC = {"authorization": f"Bearer {SECRET.hex()}"}
LIST_RUNS, GET_NODES = "/v1/control/list-runs", "/v1/runtime/get-nodes"
ACQUIRE = ACQUIRE_PATH


class Place:
    """A guarded SuperLink's HTTP side, and those who call it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.operators = folder, folder / "operators.toml"
        self.operators.write_text(f'[anna]\nsha256 = "{DIGEST}"\n')
        (folder / "runtime.secret").write_bytes(SECRET)
        (folder / "superlink.db").write_bytes(empty_database())
        federation: Any = SimpleNamespace(
            path=folder,
            state=folder,
            operators=self.operators,
            runtime_secret=folder / "runtime.secret",
            database=folder / "superlink.db",
            control="127.0.0.1:8000",
        )
        refusals = RefusalLog()
        self.connections = Connections({8000: 100}, 1000, refusals)
        self.shared = Shared(federation, self.connections, refusals)
        # Alembic warns; the fleet's port has tests of its own.
        with warnings.catch_warnings(action="ignore"), patch.object(superlink, "FleetPort"):
            self.app = superlink.make_app(self.shared)
        self.state: Any = self.app.state.linkstate_factory.state()

    def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="https://localhost:8000") as client:
                return await client.request(method, path, **given)

        return asyncio.run(ask())

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.request("GET", path, **given)

    def call(self, path: str, request: Any, headers: Any = BEARER) -> httpx.Response:
        sent = httpx.Headers({"content-type": PROTOBUF_MEDIA_TYPE})
        sent.update(headers)
        return self.request("POST", path, content=request.SerializeToString(), headers=sent)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(linkstate_factory, "SqlLinkState", RunState)
    monkeypatch.setattr(object_store_factory, "SqlObjectStore", RunStore)
    return Place(tmp_path)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One place for all who are turned away: nothing of it changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linkstate_factory, "SqlLinkState", RunState)
        patch.setattr(object_store_factory, "SqlObjectStore", RunStore)
        yield Place(tmp_path_factory.mktemp("closed"))


def routes(app: Any) -> list[tuple[str, str]]:
    """Return method and path of all that the app answers, and of all methods that it might."""
    contexts = [*iter_route_contexts(app.routes), *app.routes]
    paths = {getattr(one, "path", "") or getattr(getattr(one, "route", None), "path", "") for one in contexts} - {""}
    assert paths >= {"/health", "/docs", "/openapi.json", STATUS_PATH, LIST_RUNS, ACQUIRE, "/v1/runtime/responses"}
    return [(method, path) for path in sorted(paths) for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE")]


# The control API ----------------------------------------------------------------------------------------------------


def test_no_route_answers_without_a_credential(closed: Place) -> None:
    asked = routes(closed.app)
    assert len(asked) > 300
    for method, path in asked:
        answer = closed.request(method, path, headers={"content-type": PROTOBUF_MEDIA_TYPE})
        assert answer.status_code == (401 if path != HEALTH_PATH else 200 if method in ("GET", "HEAD") else 405), path


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer wrong")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer")],
        [("authorization", "")],
        [("authorization", f"Basic {TOKEN}")],
        [("authorization", TOKEN)],
        [("authorization", f"Bearer {DIGEST}")],
        [("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")],
        [("authorization", "Bearer wrong"), ("authorization", f"Bearer {TOKEN}")],
        [("authorization", f"Bearer {TOKEN}x")],
        [("authorization", f"Bearer {TOKEN[:-1]}")],
        [("authorization", "Bearer ÿ".encode("latin-1"))],
        [("x-authorization", f"Bearer {TOKEN}"), ("cookie", f"access-token={TOKEN}")],
        [(TASK_TOKEN_HEADER, TOKEN)],
    ],
)
@pytest.mark.parametrize("path", [LIST_RUNS, STATUS_PATH, "/docs", "/v1/control/get-login-details", ACQUIRE])
def test_what_is_nearly_a_credential_is_none(closed: Place, path: str, headers: Any) -> None:
    sent = [("content-type", PROTOBUF_MEDIA_TYPE), *headers]
    assert closed.request("POST", path, headers=sent).status_code == 401


def test_an_operators_credential_works_until_it_is_taken_back(place: Place) -> None:
    assert place.call(LIST_RUNS, ListRunsRequest()).status_code == 200
    assert place.get(STATUS_PATH, headers=BEARER).json()["database_bytes"] > 0
    place.operators.write_text(f'[eve]\nsha256 = "{"0" * 64}"\n')
    assert place.call(LIST_RUNS, ListRunsRequest()).status_code == 401
    assert place.get(STATUS_PATH, headers=BEARER).status_code == 401


@pytest.mark.parametrize(
    "damage",
    [
        "[anna",
        "",
        "anna = 5",
        'anna = "text"',
        "[anna]",
        "[anna]\nsha256 = 7",
        '[anna]\nsha256 = ""',
        '[anna]\nsha256 = "ü"',
        f'[anna]\nsha256 = "{TOKEN}"',
        f'[anna]\nsha256 = "{DIGEST}"\nmay = "read"',  # a right that nobody knows
        b"\xff\xfe",
        None,
    ],
)
def test_a_damaged_list_of_operators_lets_nobody_in_and_is_named(
    closed: Place, caplog: pytest.LogCaptureFixture, damage: str | bytes | None
) -> None:
    closed.operators.unlink(missing_ok=True)
    if damage is not None:
        closed.operators.write_bytes(damage.encode() if isinstance(damage, str) else damage)
    with caplog.at_level(logging.WARNING, "flwr"):
        for headers in (BEARER, {"authorization": "Bearer "}, {}):
            assert closed.call(LIST_RUNS, ListRunsRequest(), headers).status_code == 401
            assert closed.get(STATUS_PATH, headers=headers).status_code == 401
    readable = damage in ("", '[anna]\nsha256 = ""', f'[anna]\nsha256 = "{TOKEN}"')
    assert caplog.text.count("operators.toml cannot be used, so nobody is let in") == (not readable)  # once


@pytest.mark.parametrize(
    "path",
    [
        f"/{LIST_RUNS}",
        f"//{LIST_RUNS}",
        LIST_RUNS.replace("/list", "//list"),
        LIST_RUNS.upper(),
        f"{LIST_RUNS}/",
        f"{LIST_RUNS}?x=/health",
        f"{LIST_RUNS}%3Fx",
        f"{LIST_RUNS};/health",
        "/health/../v1/control/list-runs",
        "/health/%2e%2e/v1/control/list-runs",
        "/health%2f..%2fv1/control/list-runs",
        "/v1/control/get-login-details/../list-runs",
        "/v1%2fcontrol%2flist-runs",
        "/v1/runtime/../control/list-runs",
        "/v1/runtime/acquire-task/../../control/list-runs",
        f"{ACQUIRE}/",
        f"{ACQUIRE}%00",
        "/health/",
        "/health%00",
        "/",
        "*",
    ],
)
@pytest.mark.parametrize("host", ["a", "a/health?", "a/v1/runtime/acquire-task?", "a/v1/control/get-login-details#"])
def test_no_writing_of_a_path_gets_by(closed: Place, path: str, host: str) -> None:
    for method in ("GET", "POST", "HEAD", "OPTIONS"):
        assert raw(closed, method, path, [(b"host", host.encode())], b"") == 401


def raw(place: Place, method: str, target: str, headers: Any, body: bytes) -> int:
    """Call the app as the web server does with a request whose path is written so; return the status."""
    from urllib.parse import unquote

    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"content-type", PROTOBUF_MEDIA_TYPE.encode()), *headers],
        "client": ("192.0.2.7", 4711),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }
    statuses = []

    async def receive() -> Any:
        if isinstance(body, bytes):
            return {"type": "http.request", "body": body, "more_body": False}
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    asyncio.run(place.app(scope, receive, send))
    return int(statuses[0])


# The runtime API ----------------------------------------------------------------------------------------------------

UNREAD: Any = None
"""A body that must not be read."""


@pytest.mark.parametrize(
    "path", ["/v1/runtime/push-object", "/v1/runtime/push-logs", LIST_RUNS, "/v1/control/start-run"]
)
@pytest.mark.parametrize("length", [[(b"content-length", b"900000000000")], [(b"transfer-encoding", b"chunked")], []])
def test_no_body_is_read_without_a_credential(closed: Place, path: str, length: Any) -> None:
    assert raw(closed, "POST", path, length, UNREAD) == 401


@pytest.mark.parametrize(
    "length",
    [
        [],
        [(b"transfer-encoding", b"chunked")],
        [(b"content-length", b"10"), (b"transfer-encoding", b"chunked")],
        [(b"content-length", str(LARGEST_SUPEREXEC_CALL + 1).encode())],
        [(b"content-length", b"-1")],
        [(b"content-length", "²".encode("latin-1"))],
    ],
)
def test_no_large_body_of_a_superexec_is_read(closed: Place, length: Any) -> None:
    assert raw(closed, "POST", ACQUIRE, [*length, known(SECRET.hex())], UNREAD) == 401


def known(secret: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {secret}".encode("latin-1")


def test_no_body_is_read_of_a_superexec_without_the_secret(closed: Place) -> None:
    small = (b"content-length", b"10")
    right = known(SECRET.hex())
    for wrong in ([], [known("x")], [known(bytes(32).hex())], [known("ÿ" * 64)], [known(TOKEN)], [right, right]):
        assert raw(closed, "POST", ACQUIRE, [small, *wrong], UNREAD) == 401
    assert raw(closed, "POST", ACQUIRE, [small, right], UNREAD) == 500  # it was read, where there is none


@pytest.mark.parametrize(
    "call",
    [
        *("register-node", "activate-node", "deactivate-node", "unregister-node", "send-node-heartbeat"),
        *("pull-messages", "push-messages", "get-run", "get-fab", "push-object", "pull-object"),
        "confirm-message-received",
    ],
)
def test_nobody_gets_to_flowers_own_fleet_api_whatever_the_credential(closed: Place, call: str) -> None:
    """It has none of the bounds of our port."""
    key, path = ec.generate_private_key(ec.SECP384R1()), f"{FLEET_PATHS}/{call}"
    if not closed.state.get_node_id_by_public_key(public_key_to_bytes(key.public_key())):
        closed.state.create_node("", "", public_key_to_bytes(key.public_key()), 30)
    assert ("POST", path) in routes(closed.app)
    shown = {name.removesuffix("-bin"): value for name, value in signed_head(key).items()}
    node = {name: b64encode(value).decode() if isinstance(value, bytes) else value for name, value in shown.items()}
    for headers in ({}, BEARER, SUPEREXEC, node, node | BEARER):
        given = [(name.encode(), value.encode()) for name, value in headers.items()]
        assert raw(closed, "POST", path, given, UNREAD) == 401


def test_no_switch_of_flowers_opens_a_port_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would know no credentials: what obeys these switches is not there."""
    for switch in ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"):
        monkeypatch.setenv(switch, "1")
    assert isinstance(Place(tmp_path).app.state.superlink_lifespan, Mock)


def test_a_connection_is_kept_by_a_credential_and_closed_without_one(place: Place) -> None:
    kept, closed = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    place.connections.admit = lambda *given: kept.append(given)  # type: ignore[method-assign, assignment]
    place.connections.dismiss = lambda *given: closed.append(given)  # type: ignore[method-assign]
    assert place.get(HEALTH_PATH).status_code == 200
    assert (kept, closed) == ([], [])
    answer = place.get(STATUS_PATH)
    assert (answer.status_code, answer.headers["connection"]) == (401, "close")
    assert (kept, closed) == ([], [(8000, "127.0.0.1", 123)])
    assert place.get(STATUS_PATH, headers=BEARER).status_code == 200
    assert (kept, closed) == ([(8000, "127.0.0.1", 123)], [(8000, "127.0.0.1", 123)])


def test_the_superexec_is_known_by_its_secret(place: Place) -> None:
    request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
    assert place.call(ACQUIRE, request, SUPEREXEC).status_code == 200
    assert place.call(ACQUIRE, request, {"authorization": f"Bearer {bytes(32).hex()}"}).status_code == 401
    assert place.call(ACQUIRE, request).status_code == 401  # an operator is no SuperExec
    assert place.call(GET_NODES, GetNodesRequest(), SUPEREXEC).status_code == 401  # nor is a SuperExec a run
    assert place.call(LIST_RUNS, ListRunsRequest(), SUPEREXEC).status_code == 401


def run_with_token(place: Place) -> tuple[int, str]:
    _, task = submit(place.state)
    return task, place.state.claim_task(task)


def test_a_runs_token_opens_its_own_calls_and_no_longer_than_the_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, token = run_with_token(place)
    nodes = GET_NODES
    assert place.call(nodes, GetNodesRequest(), {TASK_TOKEN_HEADER: token}).status_code == 200
    for other in ("", token[:-1], TOKEN, token.upper()):
        assert place.call(nodes, GetNodesRequest(), {TASK_TOKEN_HEADER: other}).status_code == 401
    assert place.call(LIST_RUNS, ListRunsRequest(), {TASK_TOKEN_HEADER: token}).status_code == 401
    assert place.call(LIST_RUNS, ListRunsRequest(), {"authorization": f"Bearer {token}"}).status_code == 401
    assert place.state.finish_task(task, "stopped", "")
    assert place.call(nodes, GetNodesRequest(), {TASK_TOKEN_HEADER: token}).status_code == 401


def test_a_good_token_is_looked_up_now_and_then(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairbloom.deploy.flower.server import control

    _, token = run_with_token(place)
    given: Any = (place.app, place.shared, None, place.app.state.linkstate_factory)
    door = control.CredentialCheck(*given)
    looked, find = [], place.state.is_task_token
    monkeypatch.setattr(place.state, "is_task_token", lambda token: looked.append(token) or find(token))
    clock = [time.monotonic()]
    monkeypatch.setattr(control.time, "monotonic", lambda: clock[0])

    async def ask(times: int) -> None:
        for _ in range(times):
            assert await door._has_task(token)

    for expected in (1, 2, 3):
        asyncio.run(ask(5))
        assert len(looked) == expected
        clock[0] += control.TOKEN_SECONDS + 1


def test_a_new_superexec_gets_the_runs_that_the_one_before_had_taken(place: Place) -> None:
    task, token = run_with_token(place)
    request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])

    def acquired() -> int:
        answer = AcquireTaskResponse()
        answer.ParseFromString(place.call(ACQUIRE, request, SUPEREXEC).content)
        return int(answer.task.task_id)

    (place.folder / STARTED).touch()
    assert acquired() == task
    assert place.state.get_task_by_token(token) is None
    assert acquired() == 0  # the same SuperExec: it has the run
    later = time.time_ns() + 10**9
    os.utime(place.folder / STARTED, ns=(later, later))
    assert acquired() == task
    seen = place.get(STATUS_PATH, headers=BEARER).json()["superexec_seen"]
    assert 0 <= seen < 60


def test_a_superexec_that_never_asked_was_never_seen(place: Place) -> None:
    assert place.get(STATUS_PATH, headers=BEARER).json()["superexec_seen"] is None
    place.call(ACQUIRE, AcquireTaskRequest(), {})
    assert place.get(STATUS_PATH, headers=BEARER).json()["superexec_seen"] is None


# What is noted ------------------------------------------------------------------------------------------------------


def test_refused_calls_are_logged_once_a_minute_with_how_often(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fairbloom.deploy.server import refusals

    for _ in range(5):
        place.call(LIST_RUNS, ListRunsRequest(), {})
    monkeypatch.setattr(refusals, "SECONDS", 0.0)
    place.call(LIST_RUNS, ListRunsRequest(), {})
    assert [(line["event"], line["call"], line.get("times")) for line in read_events(caplog.messages)] == [
        ("refused: a call of the control API without the credential", LIST_RUNS, times) for times in (None, "5")
    ]


def test_calls_by_made_up_paths_are_logged_as_one(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(50):
        assert place.get(f"/made-up-{number}").status_code == 401
    place.call(LIST_RUNS, ListRunsRequest(), {})
    assert [line["call"] for line in read_events(caplog.messages)] == ["other", LIST_RUNS]


def test_what_operators_change_is_logged_with_their_names(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    key = serialization.load_ssh_public_key(pki.make_node_key().public).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    registered = place.call("/v1/control/register-node", RegisterNodeRequest(public_key=key, name="site-a"))
    assert registered.status_code == 200
    (node,) = place.state.get_node_info()
    assert place.call("/v1/control/unregister-node", UnregisterNodeRequest(node_id=node.node_id)).status_code == 200
    run, _ = submit(place.state)
    assert place.call("/v1/control/stop-run", StopRunRequest(run_id=run)).status_code == 200
    place.call("/v1/control/stop-run", StopRunRequest(run_id=1))
    place.call("/v1/control/start-run", StartRunRequest())
    place.call(LIST_RUNS, ListRunsRequest())
    about = [line for line in read_events(caplog.messages) if line["event"] in dict(NOTED.values())]
    node_id = str(node.node_id)
    assert about[:3] == [
        {"event": "key registered", "operator": "anna", "node-id": node_id, "client": "site-a"},
        {"event": "key unregistered", "operator": "anna", "node-id": node_id},
        {"event": "run stopped", "operator": "anna", "run-id": str(run)},
    ]
    assert [(line["event"], "failed" in line) for line in about[3:]] == [("run stopped", True), ("run submitted", True)]


def test_what_is_logged_exists(closed: Place) -> None:
    paths = {path for _, path in routes(closed.app)}
    assert set(NOTED) <= paths
    assert paths >= {ACQUIRE_PATH, f"{FLEET_PATHS}/push-object"}
