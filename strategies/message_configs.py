"""The configs in the messages of a user's app, which hooks may change from round to round."""

from collections.abc import Mapping, MutableMapping
from typing import Any

# In a checkpoint, bytes are a mapping with this key.
BYTES = "bytes"


class ChangingConfig:
    """A user's config for messages, and the hooks' changes to it since the run began."""

    def __init__(self, config: MutableMapping[str, Any]) -> None:
        self._config = config
        self._given = {**config}

    def changes(self) -> dict[str, Any]:
        """Return the changes, {} if there are none; bytes become a mapping with their hex text."""
        changed = {
            key: _encode_bytes(value)
            for key, value in self._config.items()
            if self._given.get(key) != value
        }
        removed = [key for key in self._given if key not in self._config]
        return {} if not changed and not removed else {"changed": changed, "removed": removed}

    def repeat(self, changes: Mapping[str, Any]) -> None:
        """Repeat the changes that `changes` returned."""
        changed = changes.get("changed", {})
        self._config.update({key: _decode_bytes(value) for key, value in changed.items()})
        for key in changes.get("removed", ()):
            self._config.pop(key, None)


def _encode_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_encode_bytes(item) for item in value]
    return {BYTES: value.hex()} if isinstance(value, bytes) else value


def _decode_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode_bytes(item) for item in value]
    return bytes.fromhex(value[BYTES]) if isinstance(value, Mapping) else value
