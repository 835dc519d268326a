"""The configs in the messages of a user's app, which hooks may change from round to round."""

from collections.abc import Mapping, MutableMapping
from typing import Any

BYTES = "bytes"
"""A value of bytes is, in a checkpoint, a mapping with this key."""


class ChangingConfig:
    """A config of the user's that messages carry, and the changes that hooks have made in it since the run began."""

    def __init__(self, config: MutableMapping[str, Any]) -> None:
        self._config = config
        self._given = {**config}

    def state_dict(self) -> dict[str, Any]:
        """Return what is other than as given, {} where nothing is; bytes as texts in a mapping."""
        changed = {
            key: _as_text(value)
            for key, value in self._config.items()
            if self._given.get(key) != value
        }
        removed = [key for key in self._given if key not in self._config]
        return {"changed": changed, "removed": removed} if changed or removed else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Change the config as it had been."""
        self._config.update(
            {key: _as_bytes(value) for key, value in state.get("changed", {}).items()}
        )
        for key in state.get("removed", ()):
            self._config.pop(key, None)


def _as_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_text(each) for each in value]
    return {BYTES: value.hex()} if isinstance(value, bytes) else value


def _as_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_bytes(each) for each in value]
    return bytes.fromhex(value[BYTES]) if isinstance(value, Mapping) else value
