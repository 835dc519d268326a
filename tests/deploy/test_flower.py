"""What is relied on inside Flower: in one room, in one list, behind one gate."""

import ast
import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.flower import gate, relied_on
from fairbloom.deploy.flower.__main__ import main as report
from fairbloom.deploy.flower.gate import (
    UNTESTED,
    Deployed,
    FlowerVersionError,
    check_flower,
    check_version,
    fits,
    needed,
    start,
)
from fairbloom.deploy.flower.relied_on import RELIED_ON, Need, count_names, look_up, missing, replace
from fairbloom.deploy.flower.retries import Retries
from fairbloom.deploy.operator.federation import Federation
from fairbloom.system.supervise import CANNOT_RUN
from tests.deploy.flower import ROOT
from tests.deploy.processes import free_port

PACKAGES = (
    *("fairbloom", "system", "protocol", "tasks", "rounds", "strategies", "client", "server", "prediction"),
    *("simulation", "experiments", "deploy", "scaffold", "docker", "docs"),
)
ROOM, ONE_PROCESS = ROOT / "deploy" / "flower", ROOT / "fairbloom" / "flower.py"
"""Where names inside Flower may be used: what is deployed, and what runs in one process as well."""

DOCUMENTED = {
    "flwr.app",
    *("flwr.clientapp", "flwr.clientapp.mod", "flwr.clientapp.typing"),
    *("flwr.serverapp", "flwr.serverapp.strategy"),
}
BY_PYTHON = {*vars(type("Empty", (), {})), "__init__", "__annotations__", "_abc_impl", "__abstractmethods__"}
NAMES = {name for need in RELIED_ON for name in need.names}
built_for = pytest.mark.skipif(not fits("server"), reason=f"Flower {version('flwr')} is installed")
MOST_NAMES = 74


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (file for file in (ROOT / package).rglob("*.py") if "_build" not in file.parts)


def in_room(file: Path) -> bool:
    return file == ONE_PROCESS or file.is_relative_to(ROOM)


def private(file: Path) -> set[str]:
    """Return the names inside Flower that a file imports, as module:name, beside those that Flower documents."""
    found = set[str]()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {f"{each.name}:" for each in node.names if each.name.partition(".")[0] == "flwr"}
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "flwr":
            module = str(node.module)
            documented = importlib.import_module(module) if module in DOCUMENTED else None
            found |= {f"{module}:{each.name}" for each in node.names if not is_documented(documented, each.name)}
    modules = {name for name in found if not name.endswith(("_pb2", "_pb2_grpc")) and module_of(name)}
    return found - modules | {used for name in modules for used in attributes(file, *name.split(":"))}


def module_of(name: str) -> bool:
    """Return whether what is imported by a name is a module, of which attributes are used."""
    try:
        return importlib.util.find_spec(name.replace(":", ".")) is not None
    except ModuleNotFoundError:
        return False


def attributes(file: Path, package: str, module: str) -> set[str]:
    """Return the attributes of a module that a file uses."""
    nodes = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute))
    used = {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == module}
    return {f"{package}.{module}:{name}" for name in used}


def is_documented(module: ModuleType | None, name: str) -> bool:
    return module is not None and not name.startswith("_") and name in getattr(module, "__all__", vars(module))


def modules_of_room() -> Iterator[tuple[Path, ModuleType]]:
    yield ONE_PROCESS, importlib.import_module("fairbloom.flower")
    for file in sorted(ROOM.rglob("*.py")):
        parts = [part for part in file.relative_to(ROOT).with_suffix("").parts if part != "__init__"]
        yield file, importlib.import_module(".".join(["fairbloom", *parts]))


def replaced(file: Path, module: ModuleType) -> set[str]:
    """Return what a file looks up or replaces, by `look_up(MODULE, "name")` with a constant of the list's."""
    calls = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    found = set[str]()
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id in ("look_up", "replace") and len(call.args) > 1:
            place, name = call.args[:2]
            assert isinstance(place, ast.Name), ast.unparse(call)
            assert isinstance(name, ast.Constant), ast.unparse(call)
            found.add(f"{getattr(module, place.id)}:{name.value}")
    return found


def inherited(file: Path, module: ModuleType) -> set[tuple[type, str]]:
    """Return the attributes of Flower's classes that ours override, or use of themselves."""
    found = set[tuple[type, str]]()
    for node in ast.walk(ast.parse(file.read_text())):
        ours: Any = getattr(module, node.name, None) if isinstance(node, ast.ClassDef) else None
        if inspect.isclass(ours):
            used = vars(ours).keys() | {
                each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and is_self(each.value)
            }
            found |= {by for name in used - BY_PYTHON if (by := defined(ours, name))[0].__module__.startswith("flwr.")}
    return found


def defined(ours: type, name: str) -> tuple[type, str]:
    """Return the class above that defines an attribute first, Flower's classes looked at alone; `object` for none."""
    theirs = (base for base in inspect.getmro(ours) if base.__module__.startswith("flwr.") and name in vars(base))
    return next(theirs, object), name


def is_self(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id == "self"


def listed_attributes() -> set[tuple[type, str]]:
    """Return the attributes of classes that are in the list, by the class that defines them."""
    parts = [name.rpartition(".") for name in NAMES if "." in name.partition(":")[2]]
    return {defined(relied_on._object(place), name) for place, _, name in parts}


def is_listed(name: str) -> bool:
    """Return whether a name is in the list, or an attribute of it."""
    return any(each == name or each.startswith(f"{name}.") for each in NAMES)


# One room -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", PACKAGES)
def test_names_inside_flower_are_used_in_one_room(folder: str) -> None:
    outside = [file for file in sources() if file.is_relative_to(ROOT / folder) and not in_room(file)]
    assert {str(file.relative_to(ROOT)): names for file in outside if (names := private(file))} == {}


def test_no_text_outside_the_room_names_a_module_or_a_variable_of_flowers() -> None:
    for file in (file for file in sources() if not in_room(file)):
        for node in ast.walk(ast.parse(file.read_text())):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            assert not re.match(r"flwr\.\w+(\.|:)\w+[\w.:]*$|FLWR_[A-Z_]+$", text), f"{file}: {text}"


# One list -----------------------------------------------------------------------------------------------------------


@built_for
def test_whatever_the_room_uses_is_in_the_list() -> None:
    attributes = listed_attributes()
    for file, module in modules_of_room():
        assert {name for name in private(file) | replaced(file, module) if not is_listed(name)} == set(), file
        assert inherited(file, module) - attributes == set(), file


@built_for
def test_whatever_is_in_the_list_is_used() -> None:
    used = set[str]().union(*(private(file) | replaced(file, module) for file, module in modules_of_room()))
    words = set[str]()
    for file in (file for file in sources() if file != Path(relied_on.__file__).resolve()):
        for node in ast.walk(ast.parse(file.read_text())):
            words |= {node.attr} if isinstance(node, ast.Attribute) else set()
            words |= {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()
    for name in NAMES - {"flwr.app:Metadata"}:  # whose parameters are set after it was made
        is_attribute = "." in name.partition(":")[2] and name.rpartition(".")[2] in words
        assert name in used or is_attribute, f"{name} is listed and not used"


def test_few_names_are_relied_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert sum(count_names().values()) == len(NAMES) <= MOST_NAMES
    assert report(["--count"]) == 0
    assert capsys.readouterr().out.startswith(f"{len(NAMES)} names: library ")


def test_a_name_that_is_not_in_the_list_cannot_be_replaced() -> None:
    for call in (lambda: look_up("flwr.app", "Message"), lambda: replace("flwr.app", "Message", None)):
        with pytest.raises(KeyError, match=r"flwr\.app:Message is not in RELIED_ON"):
            call()


# One gate -----------------------------------------------------------------------------------------------------------


@built_for
def test_this_flower_has_all_that_is_relied_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert missing() == {}
    for user in gate.COMMANDS:
        check_flower(user)
    assert report([]) == 0
    said = capsys.readouterr().out
    assert all(need.without in said for need in RELIED_ON)


@pytest.mark.parametrize(
    ("names", "texts", "lacking"),
    [
        ({"flwr.no_such_module:thing": ""}, {}, "flwr.no_such_module:thing"),
        ({"flwr.app:NoSuchThing": ""}, {}, "flwr.app:NoSuchThing"),
        ({"flwr.app:Message.no_such_method": "content"}, {}, "flwr.app:Message.no_such_method"),
        ({"flwr.app:Message": "content colour"}, {}, "flwr.app:Message(colour)"),
        ({"flwr.common.constant:ErrorCode": "INVALID_FAB HUE"}, {}, "flwr.common.constant:ErrorCode(HUE)"),
        ({}, {"flwr.app.message": ("no such words",)}, "flwr.app.message: 'no such words'"),
        ({}, {"flwr.no_such_module.there": ("words",)}, "flwr.no_such_module.there: 'words'"),
    ],
)
def test_what_flower_lacks_is_named_with_what_it_is_for(
    names: dict[str, str], texts: dict[str, tuple[str, ...]], lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = Need("server", "doors that close", names, texts)
    assert missing([need])["doors that close"][0].endswith(lacking)
    monkeypatch.setattr(gate, "RELIED_ON", (need,))
    with pytest.raises(FlowerVersionError) as refusal:
        check_flower("server")
    for part in (version("flwr"), "doors that close", lacking, f'pip install "{needed("server")}"', "fairbloom server"):
        assert part in str(refusal.value)
    check_flower("client")  # which does without


@built_for
@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("server.superlink", ("fairbloom.deploy.flower.server.superlink", "main")),
        ("server.superexec", ("fairbloom.deploy.flower.server.superexec", "main")),
    ],
)
def test_without_a_name_no_program_of_flowers_is_started(
    module: str, command: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's own control API would be open to everybody."""
    started = list[bool]()
    monkeypatch.setattr(importlib.import_module(command[0]), command[1], lambda: started.append(True))
    for need in (need for need in RELIED_ON if need.user in ("library", "server") and need.names):
        lacking = Need(need.user, need.without, {f"{next(iter(need.names))}s": ""})
        monkeypatch.setattr(gate, "RELIED_ON", (lacking,))
        with pytest.raises(SystemExit) as end:
            start("server", module, os.getpid())
        assert end.value.code == CANNOT_RUN
    assert not started


@built_for
def test_the_words_by_which_a_connection_is_known_are_in_the_list() -> None:
    texts = {module: words for need in RELIED_ON for module, words in need.texts.items()}
    assert {*Retries.ATTEMPTS, Retries.SUCCESS} <= set(texts[relied_on.HTTP_RETRY])


@pytest.mark.parametrize(
    ("other", "user", "is_refused"),
    [
        *[("1.38.2", user, True) for user in gate.COMMANDS],
        *[("1.39.4", user, user == "server") for user in gate.COMMANDS],
        *[("1.42.1", user, False) for user in gate.COMMANDS],
        *[("1.43.0", user, user == "server") for user in gate.COMMANDS],
        *[("2.0.0", user, user == "server") for user in gate.COMMANDS],
    ],
)
def test_versions_that_are_too_old_or_untested_are_refused_though_they_have_all_names(
    other: str, user: Deployed, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "version", lambda package: other)
    monkeypatch.setattr(gate, "missing", lambda needs: {})
    assert fits(user) == (not is_refused)
    words = f"Flower {other} is installed, and {gate.COMMANDS[user]} needs {needed(user)}"
    for check in (check_version, check_flower):
        with pytest.raises(FlowerVersionError, match=re.escape(words)) if is_refused else contextlib.nullcontext():
            check(user)


def test_a_server_may_run_with_an_untested_flower_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "version", lambda package: "1.43.0")
    with pytest.raises(FlowerVersionError, match=f", or give {UNTESTED}$"):
        check_version("server")
    check_version("server", untested=True)
    monkeypatch.setattr(gate, "version", lambda package: "1.40.0")
    with pytest.raises(FlowerVersionError, match=r"Remedy: pip install \S+$"):
        check_version("server", untested=True)  # too old is no matter of tests


def test_a_client_warns_of_a_flower_that_was_not_tested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for other, warns in (("1.41.0", False), ("1.42.9", False), ("1.43.0", True)):
        monkeypatch.setattr(gate, "version", lambda package, other=other: other)
        gate.warn_if_untested()
        assert (f"Flower {other} is installed, and 1.42 is the newest" in capsys.readouterr().err) == warns


def run(python: list[str], before: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with a folder before all others on its path, to its end."""
    environment = {**os.environ, "PYTHONPATH": str(before)}
    return subprocess.run(
        [sys.executable, "-P", *python], env=environment, capture_output=True, text=True, timeout=300, **options
    )


def flower_of(folder: Path, version: str) -> Path:
    """Return a folder by which Flower is of this version to all who ask."""
    about = folder / f"flwr-{version}.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text(f"Metadata-Version: 2.1\nName: flwr\nVersion: {version}\n")
    return folder


@pytest.fixture
def other_flower(tmp_path: Path) -> Path:
    return flower_of(tmp_path / "other", "1.38.0")


@pytest.fixture
def lacking_flower(tmp_path: Path) -> Path:
    """A folder by which Flower, of the right version, lacks one name that servers and clients rely on."""
    folder = tmp_path / "lacking"
    folder.mkdir()
    lines = ["import flwr.common.serde as serde", "del serde.recorddict_to_proto"]
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    return folder


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation.init(tmp_path / "federation", ["localhost"], free_port(), f"127.0.0.1:{free_port()}", 30)


def refused(ended: subprocess.CompletedProcess[str], flower: str, command: str, user: Deployed) -> None:
    assert ended.returncode == CANNOT_RUN, ended.stderr
    assert ended.stderr.count(f"Flower {flower} is installed, and {command} needs {needed(user)}") == 1
    assert f'Remedy: pip install "{needed(user)}"' in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_server_does_not_start_with_another_flower(federation: Federation, other_flower: Path) -> None:
    """Before, it started its SuperLink again and again, for ever."""
    ended = run(["-m", "fairbloom.deploy.server", str(federation.path)], other_flower)
    refused(ended, "1.38.0", "fairbloom server", "server")


def test_a_client_does_not_start_with_another_flower(other_flower: Path) -> None:
    ended = run(["-m", "fairbloom.deploy", "client", "--superlink", "127.0.0.1:1", "--insecure"], other_flower)
    refused(ended, "1.38.0", "fairbloom client", "client")


@pytest.mark.slow
def test_a_run_is_not_submitted_with_another_flower(federation: Federation, other_flower: Path) -> None:
    for command in (["submit"], ["status"]):
        ended = run(["-m", "fairbloom.deploy", *command, "--dir", str(federation.path)], other_flower, cwd=ROOT)
        assert ended.returncode not in (0, None)
        assert "Flower 1.38.0 is installed, and fairbloom deploy needs" in " ".join(ended.stderr.split())


@built_for
def test_a_server_ends_where_its_flower_lacks_a_name(federation: Federation, lacking_flower: Path) -> None:
    """Its SuperLink finds that out, and nobody starts it again."""
    ended = run(["-m", "fairbloom.deploy.server", str(federation.path)], lacking_flower)
    refused(ended, version("flwr"), "fairbloom server", "server")
    assert "messages, rounds and runs of any kind: flwr.common.serde:recorddict_to_proto" in ended.stderr


def test_a_client_ends_where_its_flower_lacks_a_name(lacking_flower: Path, tmp_path: Path) -> None:
    client = ClientSettings(superlink="127.0.0.1:1", insecure=True, state_dir=str(tmp_path / "state"))
    code = (
        "from fairbloom.deploy.device import supervisor; supervisor.connection_fault = lambda client: None; "
        "supervisor.main()"
    )
    ended = run(["-c", code, json.dumps(asdict(client))], lacking_flower)
    refused(ended, version("flwr"), "fairbloom client", "client")
