"""The calls by which a device joins with a token, and by which a client replaces its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from grpc import StatusCode

from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import TOKEN_HEADER

from ... import pki
from ...errors import RefusedDeviceError
from ...operator.federation import Federation
from ...operator.tokens import REMEDY
from ...server.joining import Enrolled, admit, renew
from ...server.refusals import RefusalLog
from .. import exchange_pb2
from .fleet_server import Call, Caller, RefusedCallError
from .registration import StateNodes

LARGEST_REQUEST = 1 << 12
"""Largest call of these, in bytes: a request has 350."""


class Joining:
    """Enrols devices, and renews their keys, within a federation's folder and the SuperLink's state."""

    def __init__(self, federation: Federation, nodes: StateNodes, refusals: RefusalLog) -> None:
        self._federation, self._nodes, self._refusals = federation, nodes, refusals

    def calls(self) -> Mapping[str, Call]:
        """Return both calls, by their paths."""
        join = Call(exchange_pb2.JoinRequest, self.join, LARGEST_REQUEST, admit=self.check_token)
        both = {"Join": join, "Renew": Call(exchange_pb2.RenewRequest, self.renew, LARGEST_REQUEST)}
        return {f"/fairbloom.exchange.v1.Exchange/{name}": call for name, call in both.items()}

    def check_token(self, head: Mapping[str, Any], peer: str) -> str:
        """Return the id of the token that the head of a call has; RefusedCallError where it has none of ours."""
        token = self._federation.tokens.find(str(head.get(TOKEN_HEADER, "")))
        if token is None:
            self._refusals.note("a join without a token of this federation", peer=peer)
            raise RefusedCallError(StatusCode.UNAUTHENTICATED, f"the server does not know this join token: {REMEDY}")
        return token.id

    def join(self, request: Any, caller: Caller) -> Any:
        """Enrol the device that calls, or have it wait."""
        return self._answer(
            "a join", request, caller, partial(admit, self._federation, self._nodes, caller.token, caller.peer)
        )

    def renew(self, request: Any, caller: Caller) -> Any:
        """Replace the key of the node that calls."""
        replace_key = self._nodes.replace_key
        return self._answer("a renewal", request, caller, partial(renew, self._federation, replace_key, caller.node_id))

    def _answer(self, what: str, request: Any, caller: Caller, enrol: Callable[[pki.Request], Enrolled | None]) -> Any:
        try:
            asked = pki.read_request(request.request, "the request of this device")
            if caller.token and pki.registered_form(asked.public) != caller.key:
                raise pki.PkiError("the request of this device is for another key than it has: repeat the command")
            enrolled = enrol(asked)
        except FairbloomError as error:
            by = {"token": caller.token} if caller.token else {"node-id": str(caller.node_id)}
            kind = error.kind if isinstance(error, RefusedDeviceError) else type(error).__name__
            self._refusals.note(what, reason=kind, **by, peer=caller.peer)
            raise RefusedCallError(StatusCode.FAILED_PRECONDITION, str(error)) from None
        if enrolled is None:
            return exchange_pb2.EnrolledResponse(waits=True)
        client, identity = enrolled
        if identity and not caller.token and pki.registered_form(asked.public) == caller.key:
            self._refusals.note_event("identity made again", client=client.name, peer=caller.peer)
        about = {"partition_id": client.partition_id, "expires": client.expires}
        return exchange_pb2.EnrolledResponse(identity=identity, **about)
