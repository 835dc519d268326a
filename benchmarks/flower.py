"""Real Flower processes on loopback, with separate homes and ports, ended with the test."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx

from .processes import free_port

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent
# seconds to wait for a certain event: machines differ, and may be busy
PATIENCE = 600.0


class Flower:
    """Flower's commands with a separate FLWR_HOME; `close` ends the processes that they leave.

    `scripts` is the folder of the commands, if they are not those of this environment.
    """

    def __init__(self, home: Path, scripts: Path = SCRIPTS) -> None:
        self.home = home
        self.scripts = scripts
        self.local_port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        home.mkdir()
        # The clients' processes inherit this environment: our marker finds those that Flower starts
        # by itself.
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self.local_port),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        }

    def start(
        self,
        *command: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        with (self.home / f"{command[0]}-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    shutil.which(command[0], path=self.environment["PATH"]) or command[0],
                    *command[1:],
                ],
                env=self.environment | (environment or {}),
                cwd=folder or self.home,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def log(self, process: subprocess.Popen[bytes]) -> str:
        command = self.processes.index(process)
        (file,) = self.home.glob(f"*-{command}.log")
        return file.read_text()

    def wait_for_end(
        self, process: subprocess.Popen[bytes], code: int = 0, seconds: float = PATIENCE
    ) -> None:
        """Wait until a process has ended, with this exit code."""
        ended = process.wait(timeout=seconds)
        assert ended == code, f"exit code {ended}:\n{self.log(process)[-3000:]}"

    def execute(self, program: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of the installed programs in the home folder to its end."""
        return subprocess.run(
            [self.scripts / program, *command],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def command(self, *command: str) -> str:
        return self.execute("flwr", *command).stdout

    def start_local(self) -> None:
        """Start a SuperLink that simulates, and wait until it answers: the connection `local`.

        `flwr run` starts one by itself, but gives up after 15 seconds, and starts another on the
        same port where the first one takes more than 0.4 seconds to answer.
        """
        address = f"127.0.0.1:{self.local_port}"
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n\n'
            f'[superlink.local]\naddress = "{address}"\ninsecure = true\n'
        )
        server = self.start(
            *("flower-superlink", "--insecure", "--simulation"),
            *("--host", "127.0.0.1", "--port", str(self.local_port)),
        )
        wait_until(
            lambda: server.poll() is not None or answers(f"http://{address}/health"),
            lambda: self.log(server)[-3000:],
        )
        assert server.poll() is None, self.log(server)[-3000:]

    def run(
        self,
        connection: str,
        run_config: Mapping[str, object],
        federation: str = "",
        app: Path = ROOT,
    ) -> str:
        """Submit an app, wait for its end and return its status."""
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in run_config.items())
        options = ["--federation-config", federation] if federation else []
        words = ("run", str(app), connection, "--format", "json", "--run-config", config)
        submitted = self.execute("flwr", *words, *options)
        # Flower exits with 0 also where it has started no run.
        if '"run-id"' not in submitted.stdout:
            raise RuntimeError(f"flwr run started no run:\n{submitted.stdout}{submitted.stderr}")
        run_id = str(json.loads(submitted.stdout)["run-id"])
        (self.home / "run.log").write_text(self.command("log", run_id, connection))
        listed = json.loads(
            self.command("list", connection, "--run-id", run_id, "--format", "json")
        )
        return str(listed["runs"][0]["status"])

    def close(self) -> None:
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._end_detached()

    def _end_detached(self) -> None:
        """End the local SuperLink, which Flower detaches from this process, and its children."""
        marker = f"FLWR_HOME={self.home}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if marker in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)


@contextlib.contextmanager
def flower(home: Path, scripts: Path = SCRIPTS) -> Iterator[Flower]:
    runtime = Flower(home, scripts)
    try:
        yield runtime
    finally:
        runtime.close()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0).is_success
    except httpx.HTTPError:
        return False


def wait_for_port(port: int) -> None:
    wait_until(lambda: listens(port), lambda: f"nothing listens on port {port}")


def wait_until(
    condition: Callable[[], bool],
    otherwise: Callable[[], str] = lambda: "not so",
    seconds: float = PATIENCE,
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds} s: {otherwise()}")
        time.sleep(0.05)
