"""The few names of Flower outside its documented API, and the behaviour without them."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    Message,
    MessageType,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from fairbloom import flower
from fairbloom.errors import FairbloomError
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.server.polling import is_temporary
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedAvg
from tests.checkout import ROOT, package_files
from tests.federation import quadratics, run

DOCUMENTED = (
    *("flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"),
    "flwr.cli.app",  # the command flwr as a module, which this Python is sure to have
)

# Most private names of Flower that the packages import or change.
MAX_NAMES = 6

app = ClientApp()


@app.train()
def train(message: Message, context: object) -> Message:
    metrics = MetricRecord({"num-examples": 1})
    return Message(
        RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message
    )


@app.evaluate()
def evaluate(message: Message, context: object) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


def hide(patch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        assert flower.FOUND[name] is not None
        patch.setitem(flower.FOUND, name, None)


def private_names(path: Path) -> list[str]:
    """Return the undocumented names of Flower that a file imports, or has as strings."""
    found = list[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [str(node.module)]
        elif isinstance(node, ast.Constant) and re.fullmatch(r"flwr\.[\w.]+", str(node.value)):
            found += [str(node.value)]
    return [name for name in found if name.startswith("flwr") and name not in DOCUMENTED]


def test_one_file_has_private_names_of_flower_and_few() -> None:
    found = {path: private_names(ROOT / path) for path in package_files()}
    with_names = {str(path): names for path, names in found.items() if names}
    assert list(with_names) == ["fairbloom/flower.py"]
    known = {*flower.NEEDED, *flower.OPTIONAL, *flower.BY_NAME}
    assert set(with_names["fairbloom/flower.py"]) == known
    assert len({*flower.NEEDED, *flower.OPTIONAL}) <= MAX_NAMES


def test_the_command_lists_each_name_of_the_installed_flower() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fairbloom.flower"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Flower {version('flwr')}\n")
    assert re.findall(r"^  (yes|NO ) +(flwr[\w.]+): ", done.stdout, re.MULTILINE) == [
        ("yes", name) for name in [*flower.NEEDED, *flower.OPTIONAL, *flower.BY_NAME]
    ]


def test_the_command_fails_if_a_name_without_substitute_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("flwr.supercore.task_identity.TaskIdentity")
    assert flower.main() == 1
    assert re.findall(r"NO +(\S+): ", capsys.readouterr().out) == [flower.IDENTITY]
    monkeypatch.undo()
    monkeypatch.delattr("flwr.supercore.run.Run")
    assert flower.main() == 0
    assert re.findall(r"NO +(\S+): ", capsys.readouterr().out) == [flower.RUN]


@pytest.mark.slow
def test_nothing_fails_to_import_without_any_of_the_names() -> None:
    """Modules that import the names are loaded while Flower lacks the names' modules."""
    modules = sorted({name.rpartition(".")[0] for name in flower.FOUND})
    program = f"""
import sys
import flwr.app, flwr.clientapp, flwr.serverapp
for module in {modules}:
    sys.modules[module] = None
from google.protobuf import descriptor_pool
import fairbloom.flower as flower
assert not any(flower.FOUND.values()), flower.FOUND
import fairbloom.client.fair, fairbloom.deploy.fleet.app_process, fairbloom.deploy.fleet.grid
import fairbloom.deploy.fleet.run_process, fairbloom.serverapp, fairbloom.clientapp
import fairbloom.server.run_folder.flower, fairbloom.simulation.grid, fairbloom.simulation.run
for call in (lambda: flower.to_proto(flwr.app.RecordDict()),
             lambda: flower.identify(run_id=1, node_id=1, task_id=1)):
    try:
        call()
    except flower.MissingNameError as error:
        print(error)
print(flower.empty_run(7).run_id, flower.main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert flower.TO_PROTO in lines[0]
    assert flower.IDENTITY in lines[1]
    assert lines[-1] == "7 1"


CALLS: dict[str, list[Callable[[], object]]] = {
    flower.TO_PROTO: [
        lambda: flower.to_proto(RecordDict()),
        lambda: flower.from_proto(b""),
    ],
    flower.FROM_PROTO: [lambda: flower.from_proto(b"")],
    flower.IDENTITY: [lambda: InProcessGrid(app, {}, 2)],
}


@pytest.mark.parametrize(
    ("name", "call"), [(name, call) for name, calls in CALLS.items() for call in calls]
)
def test_an_error_of_a_missing_name_lists_versions_with_it(
    name: str, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, name)
    words = (
        f"^Flower {version('flwr')} has no {name}, which Fairbloom needs {flower.NEEDED[name]}.*"
        r"from 1\.39 to 1\.42, as in pip install 'flwr~=1\.42\.0'"
    )
    with pytest.raises(FairbloomError, match=words):
        call()


def test_an_id_that_flower_keeps_elsewhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the id and each reply would be lost without an error."""
    InProcessGrid(app, {}, 1)  # gives this process an identity
    message = Message(RecordDict(), 1, MessageType.QUERY)
    monkeypatch.setattr(Metadata, "message_id", property(lambda self: vars(self).get("_id", "")))
    with pytest.raises(flower.MissingNameError, match=r"no flwr.app.Metadata._message_id, which"):
        flower.set_message_id(message, "1")
    assert not flower.has_name(flower.MESSAGE_ID)


def test_a_strategy_needs_none_of_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Flower's grid, Flower itself writes ids, identities and bytes."""
    hide(monkeypatch, *flower.FOUND)
    result, rounds = run(FedAvg(), quadratics(3), 2)
    assert [len(each.coefficients) for each in rounds] == [3, 3]
    assert result.arrays


def test_an_app_in_one_process_needs_no_run_of_flowers(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, flower.RUN, flower.PUSH_ERROR, flower.TO_PROTO, flower.FROM_PROTO)
    grid = InProcessGrid(app, {}, 2)
    assert grid.run.run_id > 0
    assert FedAvg().start(grid, ArrayRecord({"w": Array(np.zeros(2, np.float32))}), 1).arrays
    assert not is_temporary(ValueError("no"))
    assert is_temporary(flower.TransportError("away"))


@pytest.mark.parametrize("place", [flower.NODE, "flwr.proto.Elsewhere"])
def test_a_node_has_its_id_and_name_without_flowers_message(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(flower, "NODE", place)
    node = flower.node_info(3, "site-a")
    assert (node.node_id, node.name) == (3, "site-a")
    assert type(node).__module__.startswith("flwr") == (place == "flwr.proto.NodeInfo")


@pytest.mark.parametrize("code", ErrorCode)
def test_the_codes_of_errors_are_flowers(code: ErrorCode) -> None:
    theirs = flower.find("flwr.common.constant.ErrorCode")
    assert getattr(theirs, code.name, code.value) == code.value
    assert f"error {ErrorCode.NODE_UNAVAILABLE}" == "error 5"
