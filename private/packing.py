"""Values as bytes: the same value always gives the same bytes, so that they can be signed and hashed."""

import base64
import json
from typing import Any

BYTES = "b64"


def pack(value: Any) -> bytes:
    """Return a value of dicts, lists, texts, numbers and bytes as canonical JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_encode).encode()


def unpack(content: bytes) -> Any:
    """Return the value that `pack` was given; ValueError where the bytes are damaged."""
    return json.loads(content, object_hook=_decode)


def binary(value: object) -> bytes:
    """Return a value that is bytes; TypeError for others: of a number, `bytes` would make as many zeros."""
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} in place of bytes")
    return value


def _encode(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {BYTES: base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} cannot be packed")


def _decode(found: dict[str, Any]) -> Any:
    return base64.b64decode(found[BYTES], validate=True) if found.keys() == {BYTES} else found
