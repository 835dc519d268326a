"""What a node says of itself when it connects: which version of Fairbloom it runs."""

from __future__ import annotations

from typing import Any

from flwr.supercore.interceptors import RuntimeVersionClientInterceptor

from fairbloom import __version__
from fairbloom.protocol.names import VERSION_HEADER

CALL = "/ActivateNode"
"""End of the name of the call by which a node connects."""


class Introduction(RuntimeVersionClientInterceptor):
    """Sends the version of Fairbloom when a node connects, beside Flower's, which Flower sends with every call."""

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Add our version to the call by which a node connects."""
        details = client_call_details
        if details.method.endswith(CALL):
            details = details._replace(metadata=[*(details.metadata or ()), (VERSION_HEADER, __version__)])
        return super().intercept_unary_unary(continuation, details, request)
