"""Calls of a SuperLink's control API over one connection, in place of one of Flower's commands for each.

A start of Flower's command takes a second or more; a call takes milliseconds. What Flower's commands do beside the call
(to pack a run's app, to stream a log) is still theirs: commands.py.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx

from ...device.connectivity import tls_context
from ...errors import ClientError, DeployError, UnauthorizedError, UnreachableError
from ...operator.federation import Federation
from ...pki import registered_form
from ..gate import check_version

Nodes = Mapping[str, Mapping[str, str]]
"""Nodes by their ids, each with `status` and `offline-at`."""


@dataclass(frozen=True)
class ControlApi:
    """The control API of a federation's SuperLink, called with the operator's credential."""

    federation: Federation
    client: httpx.Client

    def register(self, name: str, public_key: bytes) -> str:
        """Register a client's public key, in OpenSSH format; return the number of its node."""
        written = registered_form(public_key)
        return str(self._answered("register a client", "RegisterNode", public_key=written, name=name).node_id)

    def unregister(self, node_id: str) -> None:
        """Strike a node off."""
        self._answered("unregister a client", "UnregisterNode", node_id=int(node_id))

    def nodes(self) -> Nodes:
        """Return all nodes that were ever registered."""
        return {
            str(node.node_id): {"status": node.status, "offline-at": _moment(node.last_deactivated_at)}
            for node in self._answered("list the clients", "ListNodes").nodes_info
        }

    def runs(self, run_id: str = "") -> list[dict[str, Any]]:
        """Return what the SuperLink knows of one run, or of all, the latest first."""
        found = self._answered("list the runs", "ListRuns", **({"run_id": int(run_id)} if run_id else {}))
        return [
            {
                "run-id": str(run.run_id),
                "status": ":".join(filter(None, (run.status.status, run.status.sub_status))),
                "status-details": run.status.details.removeprefix("ServerApp failed with exception: "),
                "elapsed": _elapsed(run.running_at, run.finished_at or found.now).total_seconds(),
                "fab-id": run.fab_id,
            }
            for run in sorted(found.run_dict.values(), key=lambda run: run.pending_at, reverse=True)
        ]

    def _answered(self, what: str, call: str, **request: Any) -> Any:
        """Return the answer to a call; DeployError says what would help when the SuperLink is silent or refuses."""
        from flwr.proto import control_pb2

        path = "-".join(re.findall("[A-Z][a-z]+", call)).lower()
        body = getattr(control_pb2, f"{call}Request")(**request).SerializeToString()
        try:
            answer = self.client.post(f"/v1/control/{path}", content=body).raise_for_status()
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                raise credential_refused(self.federation) from None
            raise DeployError(f"the SuperLink does not {what}: {_reason(error.response)}") from None
        except (httpx.RequestError, OSError) as error:
            raise unreachable(self.federation) from error
        return getattr(control_pb2, f"{call}Response").FromString(answer.content)


@contextlib.contextmanager
def connected(federation: Federation) -> Iterator[ControlApi]:
    """Give the control API of a federation's SuperLink; the connection is opened by the first call."""
    check_version("operator")
    head = {"content-type": "application/protobuf", "authorization": f"Bearer {federation.read_token()}"}
    try:
        context = tls_context(str(federation.authority))
    except ClientError as error:
        raise DeployError(f"{federation.authority} cannot be used: bring it back from a copy") from error
    place = f"https://{federation.control}"
    with httpx.Client(base_url=place, headers=head, verify=context, timeout=60.0) as client:
        yield ControlApi(federation, client)


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
    try:
        said = json.loads(response.text)
        return " ".join(filter(None, (f"[code: {said['code']}]", said["detail"], said.get("extra"))))
    except (ValueError, KeyError, TypeError):
        return f"it answers with {response.status_code}: see the server's log"


def _elapsed(begun: str, over: str) -> timedelta:
    """Return how long a run has been running, which is not at all as long as it has not begun."""
    return datetime.fromisoformat(over) - datetime.fromisoformat(begun) if begun else timedelta()


def _moment(text: str) -> str:
    """Return a time to the second, as Flower's commands print it; "" for none."""
    return datetime.fromisoformat(text).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z") if text else ""
