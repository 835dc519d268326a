"""The services of docker/stock.yaml as processes on loopback: the same commands, keys and TLS."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from benchmarks.flower import ROOT, Flower, wait_for_port
from benchmarks.processes import free_port

SERVICES = yaml.safe_load((ROOT / "docker" / "stock.yaml").read_text())["services"]
NODES = tuple(name for name in SERVICES if name.startswith("supernode"))


class Stock(Flower):
    """A federation of Flower's own processes; `runs` replaces the volume /runs."""

    def __init__(self, home: Path, scripts: Path) -> None:
        super().__init__(home, scripts)
        self.port = free_port()
        self.keys = home / "keys"
        self.runs = home / "runs"
        for folder in (self.keys, self.runs, home / "state"):
            folder.mkdir()
        make = [
            sys.executable,
            ROOT / "docker" / "stock.py",
            self.keys,
            "127.0.0.1",
            str(len(NODES)),
        ]
        subprocess.run(make, check=True)
        self.services: dict[str, subprocess.Popen[bytes]] = {}
        (home / "config.toml").write_text(
            f'[superlink.real]\naddress = "127.0.0.1:{self.port}"\nroot-certificates ='
            f' "{self.keys}/operator/ca.crt"\n'
        )

    def begin(self, service: str, settings: str = "") -> subprocess.Popen[bytes]:
        """Start a service of the composition in the folder that it sees as /keys."""
        words = [
            self._here(word)
            for word in (*SERVICES[service]["entrypoint"], *SERVICES[service]["command"])
        ]
        if service in NODES:
            words += ["--port", str(free_port())]
        folder = self.keys / (service if (self.keys / service).is_dir() else "operator")
        environment = {"FLWR_HOME": str(folder)} if folder.name == "operator" else {}
        self.services[service] = self.start(
            *words, folder=folder, environment=environment | {"SETTINGS": settings}
        )
        return self.services[service]

    def carry_out(self, service: str, settings: str = "") -> None:
        """Start a service that ends by itself, and wait until it has succeeded."""
        self.wait_for_end(self.begin(service, settings))

    def _here(self, word: str) -> str:
        """Return a word of a command with this machine's paths and port."""
        for old, new in (
            ("/tmp", str(self.home)),
            ("/state", str(self.home / "state")),
            ("'/runs", f"'{self.runs}"),
            ("superlink:8000", f"127.0.0.1:{self.port}"),
            ("0.0.0.0", "127.0.0.1"),
            ("$$", "$"),
        ):
            if not word.startswith(str(self.home)):
                word = word.replace(old, new)
        return str(self.port) if word == "8000" else word


@contextmanager
def stock(home: Path, scripts: Path) -> Iterator[Stock]:
    """Give the federation with registered and started nodes."""
    runtime = Stock(home, scripts)
    try:
        runtime.begin("superlink")
        wait_for_port(runtime.port)
        runtime.carry_out("register")
        for service in ("superexec", *NODES):
            runtime.begin(service)
        yield runtime
    finally:
        runtime.close()
