"""A federation of real processes on loopback: server, clients and operator's commands."""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairbloom.deploy.fleet.session import CONNECTED
from fairbloom.server.run_folder.files import ROUNDS

from .flower import PATIENCE, SCRIPTS, Flower, wait_until
from .processes import family, free_port

# What owners set so that a run equals one process, if the smallest batch does, too.
REHEARSAL = '[limits]\norder = "run"\n'


class Deployment(Flower):
    """The server and clients of a federation, enrolled by the operator's commands."""

    def __init__(self, home: Path, scripts: Path = SCRIPTS) -> None:
        super().__init__(home, scripts)
        self.folder = home / "fed"
        self.fleet = free_port()
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self.environment["FAIRBLOOM_FEDERATION"] = str(self.folder)
        self.environment["OMP_NUM_THREADS"] = "1"
        self.fairbloom(
            "deploy", "init", str(self.folder), "--host", "localhost", "--port", str(self.fleet)
        )

    def start_server(self, *before: str) -> None:
        """Start the server, by a command that starts another one if one is given."""
        self.server = self.start(*before, "fairbloom", "server")
        self.wait_for_words(self.server, "fairbloom server: ready")

    def enroll(self, *names: str, options: Sequence[str] = ()) -> None:
        """Enroll clients that take their rows in the order of one process, by owner.toml."""
        self.fairbloom("deploy", "enroll", *names, *options)
        for name in names:
            owners = self.bundle(name) / "owner.toml"
            if not owners.exists():
                owners.write_text(REHEARSAL)

    def bundle(self, name: str) -> Path:
        return self.folder / "bundles" / name

    def start_client(self, name: str, *options: str) -> None:
        settings = str(self.bundle(name) / "client.toml")
        self.clients[name] = self.start(
            "fairbloom",
            "client",
            settings,
            "--state-dir",
            str(self.home / f"state-{name}"),
            *options,
        )

    def start_clients(self, *names: str) -> None:
        """Start clients and wait until they are online."""
        for name in names:
            self.start_client(name)
        self.wait_for_clients(*names)

    def fairbloom(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = self.execute("fairbloom", *command)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def submitting(
        self, run_config: Mapping[str, object], app: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the submission of an app, by default of the installed Fairbloom."""
        words = [
            word
            for key, value in run_config.items()
            for word in ("--set", f"{key}={json.dumps(value)}")
        ]
        self.submitted = self.start(
            "fairbloom", "deploy", "submit", *(("--app", str(app)) if app else ()), *words
        )
        return self.submitted

    def submit(
        self, run_config: Mapping[str, object], app: Path | None = None, code: int = 0
    ) -> None:
        """Submit an app and wait until the submission ends with this exit code."""
        self.wait_for_end(self.submitting(run_config, app), code)

    def submitted_run(self) -> str:
        """Return the id of the run that was submitted last."""
        said = re.compile(r"^run (\d+)$", re.MULTILINE)
        wait_until(lambda: bool(said.search(self.log(self.submitted))))
        return said.findall(self.log(self.submitted))[0]

    def status(self) -> dict[str, Any]:
        """Return the output of fairbloom deploy status --json."""
        found: dict[str, Any] = json.loads(self.fairbloom("deploy", "status", "--json").stdout)
        return found

    def online(self) -> set[str]:
        return {
            name for name, client in self.status()["clients"].items() if client["state"] == "online"
        }

    def wait_for_clients(self, *names: str, seconds: float = PATIENCE) -> None:
        """Wait until these clients have logged a connection since they were started."""
        for name in names:
            self.wait_for_words(self.clients[name], CONNECTED, seconds=seconds)

    def wait_for_words(
        self, process: subprocess.Popen[bytes], *words: str, seconds: float = PATIENCE
    ) -> None:
        def said() -> bool:
            text = self.log(process)
            return all(word in text for word in words)

        wait_until(said, lambda: f"not all of {words} in:\n{self.log(process)}", seconds)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and all processes that it started, as a power cut does."""
        os.killpg(process.pid, signal.SIGKILL)
        for child in self.offspring(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.wait()

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Stop a process by SIGTERM."""
        process.terminate()
        process.wait(timeout=30)

    def stop_runs(self) -> None:
        assert "is stopped" in self.fairbloom("deploy", "stop").stdout

    def kill_run(self) -> None:
        """Kill the process of the current run."""
        for pid in self.run_processes():
            os.kill(pid, signal.SIGKILL)

    def offspring(self, process: subprocess.Popen[bytes]) -> list[int]:
        """Return the ids of processes below this one, including clients' workers."""
        return family(process.pid)[1:]

    def run_processes(self) -> list[int]:
        return [
            pid
            for pid in self.offspring(self.server)
            if b"fairbloom.deploy.fleet.run_process" in cmdline(pid)
        ]


@contextlib.contextmanager
def federation(home: Path, clients: int = 0, scripts: Path = SCRIPTS) -> Iterator[Deployment]:
    """A federation with enrolled `clients`, named as in the digits task; all are stopped."""
    runtime = Deployment(home, scripts)
    try:
        runtime.start_server()
        if clients:
            runtime.enroll(*names(clients))
        yield runtime
    finally:
        runtime.close()


def names(clients: int) -> list[str]:
    width = len(str(clients - 1))
    return [f"client-{i:0{width}d}" for i in range(clients)]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def rounds(folder: Path) -> list[dict[str, str]]:
    return ROUNDS.read(folder)


def wait_for_rounds(folder: Path, number: int, seconds: float = PATIENCE) -> None:
    wait_until(
        lambda: len(rounds(folder)) >= number,
        lambda: f"{len(rounds(folder))} rounds in {folder}",
        seconds,
    )
