"""A device's files other than its key, which the operator makes for its bundle."""

from pathlib import Path

import tomli_w

UNIT = Path(__file__).with_name("edge") / "fairbloom-client.service"
"""The systemd unit of a client."""


def device_files(superlink: str, authority: bytes, name: str, partition_id: int) -> dict[str, bytes]:
    """Return the files by their names, which all may read."""
    settings = {"superlink": superlink, "ca": "ca.crt", "key": "key", "name": name, "partition-id": partition_id}
    return {"ca.crt": authority, UNIT.name: UNIT.read_bytes(), "client.toml": tomli_w.dumps(settings).encode()}
