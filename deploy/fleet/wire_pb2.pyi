"""Messages of the fleet port; made by protoc, which gives them no types."""

from typing import Any

def __getattr__(name: str) -> Any: ...
