"""Build the images and run a federation of containers: make test-docker.

Needs a Docker engine (DOCKER_HOST) with compose 2.20 or newer. TORCH and TORCH_INDEX choose the
images' PyTorch.

The files in docker/, checked without an engine.
"""

import fcntl
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from packaging.utils import canonicalize_name
from safetensors.numpy import load_file

from benchmarks.deployment import rounds
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.checkout import BESIDE, INSIDE, ROOT
from tests.experiments.helpers import fairbloom
from tests.simulation.helpers import assert_same_model, table
from tests.test_supply_chain import locked

CLIENTS = 4
SETTINGS: dict[str, Any] = {"method": "fedfv", "num-rounds": 5, "smallest-batch": 5}
CLIENT_LIMIT_GB = 1.45
TARGETS = ("client", "server")
STOCK_ROUNDS = 2
TITLE = "org.opencontainers.image.title"


def docker(*command: str) -> str:
    done = subprocess.run(["docker", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"docker {' '.join(command)}: {done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def images() -> None:
    if shutil.which("docker") is None:
        pytest.skip("no docker command here")
    asked = subprocess.run(
        ["docker", "compose", "version"], capture_output=True, text=True, check=False
    )
    there = subprocess.run(["docker", "version"], capture_output=True, text=True, check=False)
    if asked.returncode or there.returncode:
        pytest.skip(f"no Docker engine with compose: {asked.stderr} {there.stderr}")
    for target in TARGETS:
        started = time.monotonic()
        build(target)
        print(
            f"\nfairbloom-{target}: {size(target):.2f} GB unpacked, built in"
            f" {time.monotonic() - started:.0f} s"
        )


def build(target: str) -> None:
    names = ("TORCH", "TORCH_INDEX", "BASE")
    given = [f"--build-arg={name}={os.environ[name]}" for name in names if os.environ.get(name)]
    docker(
        *("build", "--network=host", f"--target={target}", f"--tag=fairbloom-{target}", *given),
        "--file",
        str(ROOT / "docker" / "Dockerfile"),
        str(ROOT),
    )


def left_over() -> set[str]:
    """Return our images that no longer have a name."""
    return {
        *docker(
            "images", "--quiet", "--filter", "dangling=true", "--filter", f"label={TITLE}"
        ).split()
    }


def size(target: str) -> float:
    return int(docker("image", "inspect", f"fairbloom-{target}", "--format", "{{.Size}}")) / 1e9


class Checkout:
    """The files of a fresh clone for `docker compose`; the folder's name is the project's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        (path / "runs").mkdir()
        shutil.copy(ROOT / "compose.yaml", path)
        project = f"{path.name}-test-{os.getpid()}"
        self.environment = os.environ | {"FLEET": "127.0.0.1:", "COMPOSE_PROJECT_NAME": project}

    def compose(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", "compose", "--ansi=never", *command],
            cwd=self.path,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def exec(self, service: str, *command: str) -> str:
        """Run a command in a container of a service; return its output."""
        return self.compose("exec", "-T", service, *command).stdout

    def first_round_of(self, run: Path, since: float) -> float:
        """Wait until the first round is on disk; return the seconds that took."""
        while time.monotonic() < since + 240:
            with suppress(FileNotFoundError):
                if len((run / "rounds.csv").read_text().splitlines()) > 1:
                    return time.monotonic() - since
            time.sleep(0.1)
        raise TimeoutError(f"no round in {run} after 240 s")


@pytest.fixture(scope="module")
def checkout(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    made = Checkout(tmp_path_factory.mktemp("docker") / "fairbloom")
    yield made
    made.compose("down", "--volumes", "--remove-orphans", "--timeout=5")


@contextmanager
def experiment(
    checkout: Checkout, name: str, settings: Mapping[str, Any], seconds: float
) -> Iterator[None]:
    """Submit a run during the block; it must complete within `seconds` after the block."""
    words = " ".join(f"{key}={value}" for key, value in {**settings, "out": f"runs/{name}"}.items())
    with (checkout.path / f"{name}.log").open("w") as log:
        submitted = subprocess.Popen(
            ["docker", "compose", "--ansi=never", "run", "--rm", "experiment"],
            cwd=checkout.path,
            env=checkout.environment | {"SETTINGS": words},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
            code = submitted.wait(timeout=seconds)
        finally:
            submitted.terminate()
            submitted.wait()
            print((checkout.path / f"{name}.log").read_text()[-2000:])
    assert code == 0


@pytest.fixture(scope="module")
def finished(checkout: Checkout) -> Path:
    """The folder of a run; its command also starts the federation."""
    started = time.monotonic()
    with experiment(checkout, "first", SETTINGS, seconds=240):
        pass
    print(f"from nothing to the table: {time.monotonic() - started:.0f} s")
    assert "client-3" in (checkout.path / "first.log").read_text()  # a row of the table
    return checkout.path / "runs" / "first"


@pytest.mark.docker
@pytest.mark.parametrize("target", ["client", "server"])
def test_images_are_small_unprivileged_and_without_tools(images: None, target: str) -> None:
    assert size("client") <= CLIENT_LIMIT_GB
    config = json.loads(docker("image", "inspect", f"fairbloom-{target}"))[0]["Config"]
    assert config["User"] == "1000:1000"
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    look = (
        "ls /venv/bin/pip /venv/bin/uv /usr/bin/gcc /usr/bin/make; find / -xdev -name '*.key'"
        " -o -name id_ecdsa"
    )
    found = docker(
        "run",
        "--rm",
        "--network=none",
        "--entrypoint=sh",
        f"fairbloom-{target}",
        "-c",
        f"{look}; true",
    )
    assert found == ""


@pytest.mark.docker
@pytest.mark.parametrize("target", ["client", "server"])
def test_an_image_lists_what_is_in_it_as_it_was_locked(target: str, images: None) -> None:
    path = f"/usr/share/sbom/fairbloom-{target}.cdx.json"
    listed = json.loads(
        docker("run", "--rm", "--network=none", "--entrypoint=cat", f"fairbloom-{target}", path)
    )
    have = {canonicalize_name(part["name"]): part["version"] for part in listed["components"]}
    pins = {
        name: pin.version
        for name, (pin, *_) in locked(target).items()
        if not pin.requirement.marker or pin.requirement.marker.evaluate()
    }
    del pins["uv"]  # removed from the image
    assert have == pins | {"torch": have["torch"], "fairbloom": have["fairbloom"]}


@pytest.mark.docker
def test_docker_compose_up_gives_the_run_in_process(finished: Path, tmp_path: Path) -> None:
    expected = simulate(Settings.of({**SETTINGS, "clients": CLIENTS, "out": str(tmp_path / "run")}))
    assert_same_model(finished, expected)
    model = load_file(finished / "model.safetensors")
    difference = max(
        float(np.abs(model[name] - array).max())
        for name, array in load_file(expected / "model.safetensors").items()
    )
    print(f"\nlargest difference of a weight: {difference:.1e}")
    columns = ("round", "client", "participated", "test_examples")
    rows = [[row[key] for key in columns] for row in table(finished / "clients.csv")]
    assert rows == [[row[key] for key in columns] for row in table(expected / "clients.csv")]
    assert len(rows) == CLIENTS * SETTINGS["num-rounds"]
    assert all(not row["refused"] and not row["missing"] for row in table(finished / "rounds.csv"))


@pytest.mark.docker
def test_secrets_are_their_owners_alone(checkout: Checkout, finished: Path) -> None:
    code = (
        "find /federation /clients -type f \\( -name key -o -name '*.key' \\) -printf '%p %m %U\\n'"
        " | sort"
    )
    listed = checkout.exec("server", "sh", "-c", code).splitlines()
    files = [
        "/federation/ca.key",
        "/federation/server.key",
        *(f"/clients/client-{i}/key" for i in range(CLIENTS)),
    ]
    assert listed == sorted(f"{file} 600 1000" for file in files)


@pytest.mark.docker
def test_the_experiment_exits_with_the_runs_status(checkout: Checkout, finished: Path) -> None:
    wrong = checkout.compose("run", "--rm", "experiment", SETTINGS="method=fedfvv num-rounds=1")
    assert wrong.returncode == 2
    assert (
        "SETTINGS: method = 'fedfvv': unknown method: did you mean FedFV?"
        in wrong.stdout + wrong.stderr
    )
    bad = checkout.compose("run", "--rm", "experiment", SETTINGS="num-rounds=1 out=/public/run")
    assert bad.returncode == 1, bad.stderr[-2000:]
    assert "failed (exit status 1)" in bad.stdout


@pytest.mark.docker
def test_a_run_outlives_kills_and_more_clients_take_part(
    checkout: Checkout, finished: Path
) -> None:
    checkout.environment["CLIENTS"] = str(CLIENTS + 1)
    checkout.compose("up", "--detach", "--no-build", "client")
    run = checkout.path / "runs" / "second"
    with experiment(checkout, "second", {"num-rounds": 15, "round-timeout": 120}, seconds=280):
        checkout.first_round_of(run, time.monotonic())
        for service in ("client", "server"):
            checkout.compose("kill", service)
            again = checkout.compose("up", "--detach", "--no-build", "--no-recreate", service)
            assert again.returncode == 0, again.stderr[-2000:]
    rows = table(run / "rounds.csv")
    assert len(rows) == 15
    assert {row["replies_used"] for row in rows} == {str(CLIENTS + 1)}


@pytest.mark.docker
def test_down_with_volumes_leaves_nothing_behind(checkout: Checkout) -> None:
    checkout.compose("down", "--volumes", "--remove-orphans", "--timeout=5")
    project = checkout.environment["COMPOSE_PROJECT_NAME"]
    assert docker("volume", "ls", "--quiet", "--filter", f"name={project}").split() == []


@pytest.mark.docker
def test_another_build_of_the_same_leaves_no_image_over(images: None) -> None:
    before = left_over()
    for target in TARGETS:
        build(target)
    assert left_over() == before


# docker/stock.yaml --------------------------------------------------------------------------------


@pytest.mark.docker
@pytest.mark.usefixtures("images")
def test_flowers_own_nodes_give_the_run_in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build("stock")
    monkeypatch.chdir(tmp_path)
    for folder in ("docker", "runs"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "docker" / "stock.yaml", tmp_path / "docker")
    environment = os.environ | {
        "COMPOSE_PROJECT_NAME": f"stock-test-{os.getpid()}",
        "SETTINGS": f"num-rounds={STOCK_ROUNDS}",
    }
    compose = ["docker", "compose", "--file", "docker/stock.yaml"]
    try:
        up = [*compose, "up", "--no-build", "--exit-code-from", "experiment"]
        done = subprocess.run(up, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout[-3000:]
    finally:
        subprocess.run(
            [*compose, "down", "--volumes", "--timeout=5"], env=environment, capture_output=True
        )
    assert [row["replies_used"] for row in rounds(tmp_path / "runs" / "stock")] == [
        str(CLIENTS)
    ] * STOCK_ROUNDS
    assert fairbloom("new", "my-app") == 0
    words = [f"clients={CLIENTS}", f"num-rounds={STOCK_ROUNDS}", f"out={tmp_path}/in-process"]
    subprocess.run([sys.executable, "-m", "my_app", *words], cwd=tmp_path / "my-app", check=True)
    assert_same_model(tmp_path / "runs" / "stock", tmp_path / "in-process")


DOCKER = ROOT / "docker"
TORCH = "torch==2.13.0+cpu"
COMPOSED = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSED["services"]


def script(name: str) -> dict[str, Any]:
    """Return the names that a container's script defines."""
    return runpy.run_path(str(DOCKER / f"{name}.py"))


@pytest.mark.parametrize(("name", "service"), SERVICES.items())
def test_every_service_is_confined(name: str, service: dict[str, Any]) -> None:
    assert set(SERVICES) == {"volumes", "server", "client", "experiment"}
    assert service["read_only"], name
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    root = service["user"] == "0:0"
    assert root == (name == "volumes")
    assert service.get("cap_add", []) == (["CHOWN"] if root else [])


def test_clients_reach_the_server_and_nothing_else() -> None:
    assert SERVICES["client"]["networks"] == ["fleet"]
    assert COMPOSED["networks"]["fleet"]["internal"]
    assert SERVICES["experiment"]["network_mode"] == "none"
    assert SERVICES["server"]["ports"] == ["${FLEET:-127.0.0.1:9092}:9092"]
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["server"]


def test_a_client_sees_no_volume_of_the_operator() -> None:
    assert SERVICES["client"]["volumes"] == ["clients:/clients"]
    assert "clients" not in str(SERVICES["experiment"]["volumes"])


def test_each_image_is_built_once() -> None:
    """If each service built its image, all but the last build would lose their name."""
    built = [service["image"] for service in SERVICES.values() if "build" in service]
    assert sorted(built) == ["fairbloom-client", "fairbloom-server"]
    assert {SERVICES[name]["pull_policy"] for name in ("volumes", "experiment")} == {"never"}


def test_the_gpu_file_reserves_devices() -> None:
    (name,) = (found := yaml.safe_load((DOCKER / "gpu.yaml").read_text())["services"])
    client = found["client"]
    assert name == "client"
    (device,) = client["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert "+cpu" not in client["build"]["args"]["TORCH"]


def test_the_dockerfile_names_no_host_and_one_torch() -> None:
    dockerfile = (DOCKER / "Dockerfile").read_text()
    assert "syntax=" not in dockerfile
    assert "://" not in dockerfile
    assert f"ARG TORCH={TORCH}\n" in dockerfile
    assert f"${{TORCH:-{TORCH}}}" in (ROOT / "compose.yaml").read_text()


@pytest.mark.parametrize(
    ("stage", "content", "seconds", "healthy"),
    [
        ("server", "{}", 0.0, True),
        ("server", "{}", 60.0, False),  # it hangs
        ("client", "0: 0100007F:9C40 0200007F:2384 01 ", 0.0, True),
        ("client", "0: 0100007F:9C40 0200007F:2384 02 ", 0.0, False),  # it connects
        ("client", "0: 0100007F:9C40 0200007F:2385 01 ", 0.0, False),
        ("client", "0: 0100007F:2384 0200007F:9C40 01 ", 0.0, False),
        ("server", None, 0.0, False),
        ("client", None, 0.0, False),
    ],
)
def test_an_image_knows_whether_it_is_healthy(
    tmp_path: Path, stage: str, content: str | None, seconds: float, healthy: bool
) -> None:
    """By the files that its check reads: 9092 is 2384 in hexadecimal."""
    if content is not None:
        (tmp_path / "read").write_text(content)
        os.utime(tmp_path / "read", (time.time() - seconds,) * 2)
    text = (DOCKER / "Dockerfile").read_text().partition(f" AS {stage}\n")[2]
    command = text.partition(" CMD ")[2].partition("\n")[0]
    for file in ("/federation/state/now.json", "/proc/net/tcp6", "/proc/net/tcp"):
        command = command.replace(file, str(tmp_path / "read"))
    assert (subprocess.run(["sh", "-c", command], check=False).returncode == 0) == healthy
    assert "test" not in SERVICES["server"]["healthcheck"]  # the image's


def test_wheel_bundle_and_images_have_every_package() -> None:
    """A package that is missing from one of these lists is missing where only that list is used."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    packages = {folder.parent.name for folder in ROOT.glob("*/__init__.py")} - {
        "tests",
        "benchmarks",
        "docs",
        "docker",
    }
    assert packages == {"fairbloom", *BESIDE}
    links = {path for path in (ROOT / "fairbloom").iterdir() if path.is_symlink()}
    assert {link.name: str(link.readlink()) for link in links} == {
        name: f"../{name}" for name in BESIDE
    }
    assert tool["hatch"]["build"]["targets"]["wheel"]["sources"] == {
        name: f"fairbloom/{name}" for name in BESIDE
    }
    # all but what is for commands and comparisons: what the server and the clients of a run need
    others = {"prediction", "simulation", "deploy", "experiments", "checks", "scaffold", "cli"}
    assert set(tool["flwr"]["app"]["fab-include"]) == {
        "fairbloom/*.py",
        *(f"fairbloom/{name}/**/*.py" for name in INSIDE - others),
        *(f"{name}/**/*.py" for name in BESIDE - others),
        "fairbloom/tasks/**/*.toml",
    }
    dockerfile = (DOCKER / "Dockerfile").read_text()
    assert set(re.findall(r"^COPY (\w+) \1$", dockerfile, re.M)) == packages
    assert packages <= set(re.findall(r"^!(\w+)$", (ROOT / ".dockerignore").read_text(), re.M))


def test_a_lost_federation_toml_deletes_nothing(tmp_path: Path) -> None:
    """The clients outside depend on its authority and registry."""
    (tmp_path / "clients").mkdir()
    kept = {tmp_path / "ca.key": b"key", tmp_path / "clients" / "a.toml": b"name"}
    for path, data in kept.items():
        path.write_bytes(data)
    opening = script("server")["open_federation"]
    opening.__globals__["FEDERATION"] = tmp_path
    with pytest.raises(FairbloomError, match="is not a federation's folder"):
        opening(["server"])
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_client_takes_the_first_free_folder_and_is_enrolled(tmp_path: Path) -> None:
    federation = Federation.init(tmp_path / "federation", ["server"], 9092)
    clients = tmp_path / "clients"
    clients.mkdir()
    take = script("client")["take_folder"]
    enroll = script("server")["enroll_requests"]
    take.__globals__["CLIENTS"] = enroll.__globals__["CLIENTS"] = clients
    first = take()
    second = take()
    assert [first.name, second.name] == ["client-0", "client-1"]
    with (second / "taken").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    take.__globals__["make"](second, second.name)
    enroll(federation)
    assert sorted(file.name for file in second.iterdir()) == [
        "ca.crt",
        "certificate",
        "client-1.request",
        "client.toml",
        "key",
        "taken",
    ]
    assert tomllib.loads((second / "client.toml").read_text())["server"] == "server:9092"
    assert [(member.name, member.partition) for member in federation.members()] == [("client-1", 1)]


@pytest.mark.parametrize(
    ("settings", "key"),
    [("held-out-clients=0.25", "held-out-clients"), ("pooled=true", "pooled")],
)
def test_settings_are_checked_before_anything_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: str, key: str
) -> None:
    monkeypatch.setenv("SETTINGS", settings)
    assert script("experiment")["main"]() == 2
    assert re.match(f"SETTINGS: .*{key}", capsys.readouterr().err)
