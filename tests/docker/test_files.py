"""The files in docker/, checked without an engine."""

import fcntl
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairbloom.deploy.fleet.federation import Federation
from fairbloom.errors import FairbloomError

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
TORCH = "torch==2.13.0+cpu"
COMPOSED = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSED["services"]


def script(name: str) -> dict[str, Any]:
    """Return the names that a container's script defines."""
    return runpy.run_path(str(DOCKER / f"{name}.py"))


def test_every_service_is_confined(subtests: pytest.Subtests) -> None:
    assert set(SERVICES) == {"volumes", "server", "client", "experiment"}
    for name, service in SERVICES.items():
        with subtests.test(name=name, service=service):
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


def test_wheel_bundle_and_images_have_every_package() -> None:
    """A package that is missing from one of these lists is missing where only that list is used."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    packages = {folder.parent.name for folder in ROOT.glob("*/__init__.py")} - {
        "tests",
        "benchmarks",
        "docs",
        "docker",
    }
    links = {
        link.name: str(link.readlink())
        for link in (ROOT / "fairbloom").iterdir()
        if link.is_symlink()
    }
    assert links == {name: f"../{name}" for name in packages - {"fairbloom"}}
    # the packages that the server and the clients of a run need
    others = {"prediction", "simulation", "deploy", "experiments", "checks", "scaffold", "cli"}
    bundled = packages - others
    assert set(tool["flwr"]["app"]["fab-include"]) == {
        *(f"{name}/**/*.py" for name in bundled),
        "tasks/**/*.toml",
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


def test_settings_are_checked_before_anything_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    for settings, key in (("attack=sign-flip attackers=0.25", "attack"), ("pooled=true", "pooled")):
        with subtests.test(settings=settings, key=key):
            monkeypatch.setenv("SETTINGS", settings)
            assert script("experiment")["main"]() == 2
            assert re.match(f"SETTINGS: .*{key}", capsys.readouterr().err)
