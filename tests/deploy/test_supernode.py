"""The parts of a warm client that need no federation: the node's own port, its waits."""

import contextlib
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.flower.device import supernode as warm
from fairbloom.deploy.flower.device.supernode import PollPause

# The node's own port ------------------------------------------------------------------------------------------------


def listening(pid: int) -> list[str]:
    """Return the local addresses on which a process listens."""
    held = set[str]()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as files are that are being read
            held.add(str(file.readlink()))
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"bundles": "any"}, {"isolated": True}], ids=str)
def test_a_node_serves_no_api_on_its_device(options: dict[str, Any], tmp_path: Path) -> None:
    """Whoever can connect to Flower's may take a message and answer it in the client's name."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        client = ClientSettings(superlink=address, insecure=True, state_dir=str(tmp_path), **options)
        node = subprocess.Popen(client.command(), env=client.environment(), stderr=subprocess.PIPE, text=True)
        assert node.stderr is not None
        try:
            silent.settimeout(120)
            silent.accept()[0].close()  # the loop has begun: Flower's API would be there by now
            assert listening(node.pid) == []
        finally:
            node.kill()
            node.wait()
            node.stderr.close()


# Waits --------------------------------------------------------------------------------------------------------------


def test_a_busy_node_waits_little_and_an_idle_one_never_more_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = PollPause()
    pace.sleep(3.0)
    while clock.now < 5.0:
        pace.sleep(3.0)
    assert clock.slept[0] == warm.SHORTEST_SECONDS
    assert 0.4 < clock.slept[-1] < 0.5
    while clock.now < 3600.0:
        pace.sleep(3.0)
    assert clock.slept[-1] == warm.LONGEST_SECONDS
    pace.worked()
    pace.sleep(3.0)
    pace.sleep(0.01)
    assert clock.slept[-2:] == [warm.SHORTEST_SECONDS, 0.01]


class Clock:
    """A clock that sleeping and `now` move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slept = 0.0, list[float]()
        monkeypatch.setattr(warm, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
