"""What can be said of the files in docker/ without an engine."""

import os
import re
import runpy
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
KEEP = [sys.executable, str(DOCKER / "keep.py")]
TORCH = "torch==2.13.0+cpu"


def services() -> dict[str, dict[str, Any]]:
    """All services; where both files have something to say of one, the first."""
    files = [yaml.safe_load((DOCKER / name).read_text())["services"] for name in ("clients.yaml", "compose.yaml")]
    return {**files[0], **files[1]}


def test_clients_yaml_is_as_written_for_four() -> None:
    script = DOCKER / "clients.py"
    code = f"import runpy; print(runpy.run_path({str(script)!r})['render'](4), end='')"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == (DOCKER / "clients.yaml").read_text()


def test_clients_are_named_as_the_tasks_name_them() -> None:
    code = f"import runpy; print(runpy.run_path({str(DOCKER / 'clients.py')!r})['render'](12), end='')"
    written = yaml.safe_load(subprocess.check_output([sys.executable, "-c", code], text=True))
    names = [f"client-{i:02d}" for i in range(12)]
    assert written["services"]["experiment"]["environment"]["CLIENTS"].split() == names
    assert written["services"]["certificates"]["environment"]["CLIENTS"].split() == names
    assert [written["services"][name]["command"][-1] for name in names] == [str(i) for i in range(12)]


@pytest.mark.parametrize("name", services())
def test_every_service_is_confined(name: str) -> None:
    service = services()[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    root = service["user"] == "0:0"
    assert root == (name == "certificates")
    assert service.get("cap_add", []) == (["CHOWN", "SETUID", "SETGID"] if root else [])
    if root:
        assert service["network_mode"] == "none"


def test_no_client_is_on_the_network_of_the_control_api() -> None:
    clients = {name: service for name, service in services().items() if name.startswith("client-")}
    assert len(clients) == 8  # four, and a twin with a GPU each
    assert all(service["networks"] == ["fleet"] for service in clients.values())
    server = services()["server"]
    assert server["networks"]["control"] == {"aliases": ["control"]}
    assert 'control="control:8000"' in (DOCKER / "certificates.py").read_text()
    assert server["ports"] == ["${FLEET:-127.0.0.1:9092}:9092"]  # the fleet's alone
    published = {name for name, service in services().items() if "ports" in service}
    assert published == {"server"}
    networks = yaml.safe_load((DOCKER / "compose.yaml").read_text())["networks"]
    assert networks["fleet"]["internal"]
    assert networks["control"]["internal"]


def test_a_client_sees_its_own_part_of_the_volume_and_no_other() -> None:
    for name, service in services().items():
        if name.startswith("client-"):
            own = {"type": "volume", "source": "clients", "target": "/client"}
            own["volume"] = {"subpath": name.removesuffix("-gpu")}
            assert service["volumes"] == [own, "signals:/signals:ro"]


def test_the_server_has_neither_authority_key_nor_credential() -> None:
    mounted = [str(volume) for volume in services()["server"]["volumes"]]
    assert all("federation" not in volume or "'subpath': 'clients'" in volume for volume in mounted)
    copied = re.findall(r"^(?:PUBLIC|PRIVATE) = \((.+)\)$", (DOCKER / "certificates.py").read_text(), re.M)
    names = set(re.findall(r'"([^"]+)"', "".join(copied)))
    assert names == {
        *("federation.toml", "ca.crt", "server.crt"),
        *("server.key", "operators.toml", "runtime.secret"),
    }


def test_each_image_is_built_once() -> None:
    """Built for each service that has it, all but the last would be left over without a name."""
    built = [service["image"] for service in services().values() if "build" in service]
    assert sorted(built) == ["fairbloom-client", "fairbloom-server"]
    ours = [service for service in services().values() if service["image"].startswith("fairbloom")]
    assert all(service["pull_policy"] == "never" for service in ours)


def test_the_gpu_twins_reserve_devices() -> None:
    twins = {name: service for name, service in services().items() if name.endswith("-gpu")}
    for name, twin in twins.items():
        assert twin["profiles"] == ["gpu"]
        [device] = twin["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        waits = services()[name.removesuffix("-gpu")]["depends_on"][name]
        assert waits == {"condition": "service_started", "required": False}


def test_the_dockerfile_names_no_host_and_one_torch() -> None:
    dockerfile = (DOCKER / "Dockerfile").read_text()
    assert "syntax=" not in dockerfile
    assert "://" not in dockerfile
    assert f"ARG TORCH={TORCH}\n" in dockerfile
    assert all(f"${{TORCH:-{TORCH}}}" in (DOCKER / name).read_text() for name in ("compose.yaml", "clients.yaml"))


def test_wheel_bundle_and_images_have_every_package() -> None:
    """A package that one of these lists lacks is missing where only that one is used."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    packages = {folder.parent.name for folder in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks", "docs", "docker"}
    links = {link.name: str(link.readlink()) for link in (ROOT / "fairbloom").iterdir() if link.is_symlink()}
    assert links == {name: f"../{name}" for name in packages - {"fairbloom"}}
    # Those that server and clients of a run need.
    bundled = packages - {"prediction", "simulation", "deploy", "experiments", "scaffold"}
    assert set(tool["flwr"]["app"]["fab-include"]) == {f"{name}/**/*.py" for name in bundled}
    dockerfile = (DOCKER / "Dockerfile").read_text()
    assert set(re.findall(r"^COPY (\w+) \1$", dockerfile, re.M)) == packages
    assert set(re.findall(r"^COPY (\w+) /app/\1$", dockerfile, re.M)) == bundled
    assert packages <= set(re.findall(r"^!(\w+)$", (ROOT / ".dockerignore").read_text(), re.M))


def test_keep_hands_on_exit_code_and_signal(tmp_path: Path) -> None:
    assert subprocess.run([*KEEP, "--", "sh", "-c", "exit 7"], check=False).returncode == 7
    assert subprocess.run([*KEEP, "--", "sh", "-c", "kill -9 $$"], check=False).returncode == 137
    kept = subprocess.Popen([*KEEP, "--", "sh", "-c", f"trap 'exit 3' TERM; touch {tmp_path / 'up'}; sleep 30 & wait"])
    wait_for(tmp_path / "up")
    kept.terminate()
    assert kept.wait(timeout=60) == 3


def test_keep_ends_when_the_experiment_is_over(tmp_path: Path) -> None:
    end = tmp_path / "ended"
    for lock in ("running", "serving"):
        (tmp_path / lock).touch()
    environment = os.environ | {"ENDS_WITH": str(end)}
    up, farewell = tmp_path / "up", tmp_path / "farewell"
    leave = f"until [ -e {farewell} ]; do sleep 0.1; done; exit"
    words = ["sh", "-c", f"trap '{leave}' TERM; touch {up}; sleep 60 & wait"]
    client = subprocess.Popen([*KEEP, "--", *words], env=environment)
    server = subprocess.Popen([*KEEP, "--last", "--", "sleep", "60"], env=environment)
    wait_for(up)
    for kept in (client, server):
        with pytest.raises(subprocess.TimeoutExpired):
            kept.wait(timeout=1.0)
    end.touch()
    with pytest.raises(subprocess.TimeoutExpired):  # a server outlives its clients, which take their leave of it
        server.wait(timeout=2.0)
    farewell.touch()
    assert client.wait(timeout=60) == 0
    assert server.wait(timeout=60) == 0


def test_keep_gives_way_to_who_holds_the_lock(tmp_path: Path) -> None:
    lock, up = tmp_path / "lock", tmp_path / "up"
    first = subprocess.Popen([*KEEP, "--lock", str(lock), "--", "sh", "-c", f"touch {up}; exec sleep 60"])
    try:
        wait_for(up)
        second = subprocess.run(
            [*KEEP, "--lock", str(lock), "--", "sh", "-c", "exit 9"], capture_output=True, text=True, check=False
        )
        assert second.returncode == 0
        assert "another container holds" in second.stdout
    finally:
        first.terminate()
        first.wait()


def wait_for(path: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.05)


def test_a_lost_federation_toml_deletes_nothing(tmp_path: Path) -> None:
    """Authority and registry are those of all clients outside."""
    (tmp_path / "clients").mkdir()
    kept = {tmp_path / "ca.key": b"key", tmp_path / "clients" / "a.toml": b"name"}
    for path, data in kept.items():
        path.write_bytes(data)
    script = runpy.run_path(str(DOCKER / "certificates.py"))
    script["certify"].__globals__["FEDERATION"] = tmp_path
    with pytest.raises(SystemExit, match=r"federation\.toml is missing"):
        script["certify"](["server"])
    assert {path: path.read_bytes() for path in kept} == kept


def test_settings_are_checked_as_those_of_a_deployed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    check = runpy.run_path(str(DOCKER / "certificates.py"))["check_settings"]
    monkeypatch.setenv("CLIENTS", "a b c d")
    for settings, key in (("attack=sign-flip attackers=0.25", "attack"), ("pooled=true", "pooled")):
        monkeypatch.setenv("SETTINGS", settings)
        with pytest.raises(SystemExit, match=key):
            check()
    monkeypatch.setenv("SETTINGS", "task=csv csv.target=sick min-clients=2")
    check()
