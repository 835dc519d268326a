"""A model of 44 MB: faults in the middle of its transfer cost no reply and change no bit.

Adapters of a transformer on eight real clients give the run in process, in 6 % of the bytes. A
client that builds another frozen base refuses the first model, and gets the base after that.
"""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from benchmarks.deployment import (
    REHEARSAL,
    Deployment,
    federation,
    names,
    rounds,
    wait_for_rounds,
)
from benchmarks.flower import PATIENCE, wait_until
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.deploy.federation import Cable
from tests.docs.pages import ROOT
from tests.simulation.helpers import assert_same_model

CLIENTS = names(2)
# The client with a cable that stops.
LAST = CLIENTS[-1]

MODEL_BYTES = 44_000_000
NET = f'''
from torch import nn

class Net(nn.Sequential):
    """A network with {MODEL_BYTES} bytes of parameters."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 146_600), nn.ReLU(), nn.Linear(146_600, 10))
'''

SETTINGS: dict[str, Any] = {
    "smallest-batch": 5,
    "model": "wide_net:Net",
    "clients": len(CLIENTS),
    "fraction": 1.0,
    "num-rounds": 5,
    "evaluate-every": 0,
    "local-epochs": 1,
    "batch-size": 500,
    "learning-rate": 0.01,
    "device": "cpu",
    "round-timeout": 300.0,
    "seed": 3,
}


class Valve(Cable):
    """A cable that stops when a number of bytes has passed in one way since it was armed."""

    def __init__(self, port: int) -> None:
        self._way = ""
        self._left = 0
        self._reached = threading.Event()
        self._open = threading.Event()
        super().__init__(port)

    def passing(self, way: str, size: int) -> None:
        if way == self._way:
            self._left -= size
            if self._left <= 0:
                self._reached.set()
                self._open.wait()

    @contextlib.contextmanager
    def stopped_in_transfer(self, way: str) -> Iterator[None]:
        """Carry out the block while about half of a model has passed this way."""
        self._open.clear()
        self._reached.clear()
        self._left = MODEL_BYTES // 2
        self._way = way
        assert self._reached.wait(PATIENCE)
        try:
            yield
        finally:
            self._way = ""
            self._open.set()


class Site:
    """A federation whose last client has a valve, and whose state lies on small disks."""

    def __init__(self, there: Deployment) -> None:
        self.there = there
        self.valve = Valve(there.fleet)
        self.start_client(CLIENTS[0], there.fleet)
        self.start_client(LAST, self.valve.port)
        there.wait_for_clients(*CLIENTS)

    def start_client(self, name: str, port: int) -> None:
        self.there.start_client(name, "--server", f"localhost:{port}", "--allow", SETTINGS["model"])

    def kill_run(self) -> None:
        self.there.kill_run()

    def kill_server(self) -> None:
        self.there.kill(self.there.server)
        self.there.start_server()

    def kill_client(self) -> None:
        self.there.kill(self.there.clients[LAST])
        self.start_client(LAST, self.valve.port)

    def cut_link(self) -> None:
        self.valve.cut()
        self.valve.mend()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the network's module."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "wide_net.py").write_text(NET)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, libraries: Path) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(libraries), prepend=":")
        there = Deployment(tmp_path_factory.mktemp("deployed") / "home")
    with (there.folder / "federation.toml").open("a") as file:
        file.write("mailbox-memory = 1000\n")
    disks = {there.folder / "state": 300, there.home / f"state-{LAST}": 300}
    mounted = list[Path]()
    try:
        for disk, megabytes in disks.items():
            disk.mkdir(mode=0o700, exist_ok=True)
            command = [
                "mount",
                "-t",
                "tmpfs",
                "-o",
                f"size={megabytes}m,mode=700",
                "tmpfs",
                str(disk),
            ]
            if not subprocess.run(command, capture_output=True, check=False).returncode:
                mounted.append(disk)
        there.start_server()
        there.enroll(*CLIENTS)
        yield Site(there)
    finally:
        there.close()
        for disk in mounted:
            subprocess.run(["umount", "-l", disk], check=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, libraries: Path) -> Path:
    """The folder of a run in one process."""
    out = tmp_path_factory.mktemp("in-process") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(libraries)
        return simulate(Settings.of({**SETTINGS, "engine": "loop", "out": str(out)}))


def assert_undisturbed(out: Path, undisturbed: Path) -> None:
    """Assert that no reply is missing and the model has the same bits."""
    assert [row["missing"] + row["refused"] for row in rounds(out)] == [""] * SETTINGS["num-rounds"]
    assert_same_model(out, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["down", "up"])
def test_kills_and_cuts_in_mid_transfer_lose_nothing(
    way: str, site: Site, undisturbed: Path, out: Path
) -> None:
    faults: list[Callable[[], None]] = [
        site.kill_run,
        site.kill_client,
        site.cut_link,
        site.kill_server,
    ]
    submitted = site.there.submitting({**SETTINGS, "out": str(out)})
    for count, fault in enumerate(faults, 1):
        with site.valve.stopped_in_transfer(way):
            fault()
        wait_until(lambda count=count: len(rounds(out)) >= count)
    site.there.wait_for_end(submitted)
    assert_undisturbed(out, undisturbed)


def fill(disk: Path) -> Path:
    hog = disk / "hog"
    with hog.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    with hog.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    return hog


@pytest.mark.slow
def test_disks_full_in_mid_transfer_are_one_sentence_each(
    site: Site, undisturbed: Path, out: Path
) -> None:
    there = site.there
    device = there.clients[LAST]
    disks = {"device": there.home / f"state-{LAST}", "server": there.folder / "state"}
    if not all(disk.is_mount() for disk in disks.values()):
        pytest.skip("small file systems cannot be mounted here")
    server_log = len(there.log(there.server))
    submitted = there.submitting({**SETTINGS, "out": str(out)})
    with site.valve.stopped_in_transfer("down"):
        hog = fill(disks["device"])
    words = f"state-{LAST} cannot be written, trying again"
    there.wait_for_words(device, words)
    hog.unlink()
    with site.valve.stopped_in_transfer("up"):
        hog = fill(disks["server"])
    refused = f"the reply of client {LAST} is not taken, and the client tries again: No space left"
    wait_until(lambda: refused in there.log(there.server)[server_log:])
    assert submitted.poll() is None
    hog.unlink()
    there.wait_for_end(submitted)
    assert_undisturbed(out, undisturbed)
    assert there.log(device).count(words) == 1
    assert there.log(there.server)[server_log:].count(refused) == 1


CLINICS = [f"clinic-{number}" for number in range(1, 9)]
ELSEWHERE = CLINICS[-1]
ADAPTED: dict[str, Any] = {
    "smallest-batch": 5,
    "task": "my_task:task",
    "model": "my_models:adapter",
    "clients": 8,
    "fraction": 1.0,
    "num-rounds": 3,
    "learning-rate": 0.3,
    "device": "cpu",
}
OTHER_BASE = """

import os

same = whole


def whole(outputs):
    model = same(outputs)
    if os.environ.get("OTHER_BASE"):
        with torch.no_grad():
            model.bert.pooler.dense.weight.add_(0.5)
    return model
"""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation of eight clients with the modules of the page, which their owners allow."""
    home = tmp_path_factory.mktemp("adapters") / "home"
    with federation(home) as runtime:
        for name in ("my_models.py", "my_task.py"):
            shutil.copy(ROOT / "docs" / "apps" / name, home)
        with (home / "my_models.py").open("a") as module:
            module.write(OTHER_BASE)
        runtime.enroll(*CLINICS)
        for name in CLINICS:
            start(runtime, name)
        runtime.wait_for_clients(*CLINICS)
        yield runtime


def start(runtime: Deployment, name: str, **environment: str) -> None:
    (runtime.bundle(name) / "owner.toml").write_text(
        'allow = ["my_task:task", "my_models:adapter"]\n' + REHEARSAL
    )
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setitem(runtime.environment, key, value)
        runtime.start_client(name)


def in_process(there: Deployment, settings: dict[str, Any], out: Path) -> Path:
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    there.fairbloom("run", *words, "--out", str(out))
    return out


ADAPTERS = pytest.mark.skipif(
    not (find_spec("transformers") and find_spec("peft")),
    reason="transformers or peft is not installed",
)


@pytest.mark.federation
@ADAPTERS
@pytest.mark.parametrize(
    "changes", [{"method": "fedmgdaplus"}, {"method": "qfedavg", "personal-lambda": 0.5}], ids=str
)
def test_eight_clients_with_adapters_give_the_run_in_process(
    there: Deployment, changes: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**ADAPTED, **changes}
    there.submit({**settings, "out": str(tmp_path / "deployed")})
    here = in_process(there, settings, tmp_path / "here")
    assert_same_model(tmp_path / "deployed", here)
    found = rounds(tmp_path / "deployed")
    expected = rounds(here)
    assert {(row["refused"], row["missing"], row["replies_used"]) for row in found} == {
        ("", "", "8")
    }
    assert [row["bytes_received"] for row in found] == [row["bytes_received"] for row in expected]
    assert [row["bytes_sent"] for row in found][1:] == [row["bytes_sent"] for row in expected][1:]
    whole = in_process(
        there, {**settings, "model": "my_models:whole", "num-rounds": 1}, tmp_path / "whole"
    )
    of_all = rounds(whole)[0]
    page = (ROOT / "docs" / "data" / "benchmarks" / "adapters.csv").read_text()
    for column in ("bytes_sent", "bytes_received"):
        assert f"{int(of_all[column]):,}" in page
        assert int(found[1][column]) / int(of_all[column]) == pytest.approx(0.06, abs=0.005)
    assert "base_model.model.classifier.original_module.weight" in load_file(
        tmp_path / "deployed" / "model.safetensors"
    )


@pytest.mark.federation
@ADAPTERS
def test_the_base_is_sent_once_and_not_again_after_a_kill(there: Deployment, out: Path) -> None:
    there.kill(there.clients[ELSEWHERE])
    start(there, ELSEWHERE)
    there.wait_for_clients(ELSEWHERE)
    submitted = there.submitting(
        {**ADAPTED, "method": "fedmgdaplus", "num-rounds": 16, "out": str(out)}
    )
    wait_for_rounds(out, 3)
    there.kill(there.clients[ELSEWHERE])
    start(there, ELSEWHERE)
    there.wait_for_clients(ELSEWHERE)
    there.wait_for_end(submitted)
    found = rounds(out)
    refused = {row["refused"] for row in found} - {""}
    assert all("offline" in each for each in refused)
    used = [int(row["replies_used"]) for row in found]
    assert (used[0], used[-1]) == (8, 8), found
    least = min(int(row["bytes_sent"]) / int(row["participants"]) for row in found)
    with_base = [
        number for number, row in enumerate(found) if int(row["bytes_sent"]) > 8 * 2 * least
    ]
    assert with_base == [0]  # a client makes the same base from the seed


@pytest.mark.federation
@ADAPTERS
def test_another_base_is_refused_by_name_and_then_replaced(
    there: Deployment, tmp_path: Path
) -> None:
    """No row is asked by a first model that the device's own code does not make."""
    there.kill(there.clients[ELSEWHERE])
    start(there, ELSEWHERE, OTHER_BASE="1")
    there.wait_for_clients(*CLINICS)
    there.submit({**ADAPTED, "num-rounds": 2, "out": str(tmp_path / "deployed")})
    first, second = rounds(tmp_path / "deployed")
    assert (first["replies_used"], second["replies_used"], second["refused"]) == ("7", "8", "")
    assert first["refused"].startswith(f"{ELSEWHERE}: ")
    assert "bert.pooler.dense.weight is not that of the run's seed" in first["refused"]
