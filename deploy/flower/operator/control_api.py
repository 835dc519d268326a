"""Calls of a SuperLink's control API over one connection, in place of one of Flower's commands for each.

A start of Flower's command takes a second or more; a call takes milliseconds. What Flower's commands do beside the call
(to pack a run's app, to stream a log) is still theirs: commands.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import httpx

from ...errors import DeployError, UnauthorizedError, UnreachableError
from ...operator.federation import Federation
from ..gate import check_version

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient

Nodes = Mapping[str, Mapping[str, str]]
"""Nodes by their ids, each with `status` and `offline-at`."""


@dataclass(frozen=True)
class ControlApi:
    """The control API of a federation's SuperLink, called by Flower's client with the operator's credential."""

    federation: Federation
    client: ControlHttpClient

    def register(self, name: str, public_key: bytes) -> str:
        """Register a client's public key, in OpenSSH format; return the number of its node."""
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        key = load_ssh_public_key(public_key)
        if not isinstance(key, EllipticCurvePublicKey):
            raise DeployError(f"the public key of client {name} is of another kind than a node's")
        request = RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name)
        return str(self._answered("register a client", lambda: self.client.RegisterNode(request)).node_id)

    def unregister(self, node_id: str) -> None:
        """Strike a node off."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        request = UnregisterNodeRequest(node_id=int(node_id))
        self._answered("unregister a client", lambda: self.client.UnregisterNode(request))

    def nodes(self) -> Nodes:
        """Return all nodes that were ever registered."""
        from flwr.proto.control_pb2 import ListNodesRequest

        found = self._answered("list the clients", lambda: self.client.ListNodes(ListNodesRequest()))
        return {
            str(node.node_id): {"status": node.status, "offline-at": _moment(node.last_deactivated_at)}
            for node in found.nodes_info
        }

    def runs(self, run_id: str = "") -> list[dict[str, Any]]:
        """Return what the SuperLink knows of one run, or of all, the latest first."""
        from flwr.cli.run_utils import format_runs
        from flwr.common.serde import run_from_proto
        from flwr.proto.control_pb2 import ListRunsRequest

        request = ListRunsRequest(run_id=int(run_id)) if run_id else ListRunsRequest()
        found = self._answered("list the runs", lambda: self.client.ListRuns(request))
        rows = format_runs([run_from_proto(run) for run in found.run_dict.values()], found.now)
        return [
            {
                "run-id": str(row.run_id),
                "status": row.status_text,
                "status-details": _details(row.details),
                "elapsed": row.elapsed,
                "fab-id": row.fab_id,
            }
            for row in rows
        ]

    def _answered(self, what: str, call: Callable[[], Any]) -> Any:
        """Return the answer to a call; DeployError says what would help when the SuperLink is silent or refuses."""
        try:
            return call()
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                raise credential_refused(self.federation) from None
            raise DeployError(f"the SuperLink does not {what}: {_reason(error.response)}") from None
        except (httpx.RequestError, OSError) as error:
            raise unreachable(self.federation) from error


@contextlib.contextmanager
def connected(federation: Federation) -> Iterator[ControlApi]:
    """Give the control API of a federation's SuperLink; the connection is opened by the first call."""
    check_version("operator")
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

    token = federation.read_token()

    def with_credential(context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers["Authorization"] = f"Bearer {token}"
        return call_next(context)

    try:
        client = ControlHttpClient.from_server_address(
            server_address=federation.control,
            insecure=False,
            root_certificates=federation.authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor("fairbloom deploy"), _Interceptor(with_credential)],
        )
    except (OSError, ValueError) as error:
        raise DeployError(f"{federation.authority} cannot be used: {error}; bring it back from a copy") from None
    with contextlib.closing(client):
        yield ControlApi(federation, client)


@dataclass(frozen=True)
class _Interceptor:
    """What Flower's client calls around each request."""

    intercept: Callable[[Any, Callable[[Any], httpx.Response]], httpx.Response]


def unreachable(federation: Federation) -> UnreachableError:
    """Return the error for a control API that does not answer."""
    from ...operator.doctor import find_obstacle

    place = f"the SuperLink's control API at {federation.control} cannot be reached"
    if obstacle := find_obstacle(federation):
        return UnreachableError(f"{place}: {obstacle}")
    return UnreachableError(
        f"{place}: is fairbloom server up there? "
        f"fairbloom deploy doctor --dir {federation.path} says what is in the way"
    )


def credential_refused(federation: Federation) -> UnauthorizedError:
    """Return the error for a control API that does not know the operator's credential."""
    return UnauthorizedError(
        f"the control API at {federation.control} does not accept the credential in {federation.operator_token}: "
        "is it the one that operators.toml on the server is for?"
    )


def _reason(response: httpx.Response) -> str:
    """Return why a call was refused, in Flower's words where it has them."""
    from flwr.supercore.error import FlowerError

    refusal = FlowerError.from_json(response.text)
    if refusal is None:
        return f"it answers with {response.status_code}: see the server's log"
    return " ".join(filter(None, (f"[code: {refusal.code}]", refusal.message, refusal.public_details)))


def _details(text: str) -> str:
    """Return why a run ended, without what Flower puts before the words of its app or for none."""
    return "" if text == "N/A" else text.removeprefix("ServerApp failed with exception: ")


def _moment(text: str) -> str:
    """Return a time to the second, as Flower's commands print it; "" for none."""
    return datetime.fromisoformat(text).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z") if text else ""
