"""A device's first model is the seed's, with weights of a file only if its owner has accepted them."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from safetensors.torch import save_file

from fairbloom.client.app import app
from fairbloom.client.guard.accepted_settings import accepted_settings
from fairbloom.client.guard.disclosure import guarded
from fairbloom.client.guard.initial_weights import (
    ACCEPTED,
    FOLDER,
    accept_weights,
    check_first_model,
)
from fairbloom.client.guard.log_files import read_entries
from fairbloom.client.local import LocalClient
from fairbloom.client.messages import digest_record
from fairbloom.errors import FairbloomError, reportable
from fairbloom.protocol.bfloat16 import narrow, widen
from fairbloom.recorddict import deserialize, serialize
from fairbloom.server.settings import Settings
from fairbloom.tasks import load_task
from fairbloom.tasks.models.weights import digest_weights
from tests.experiments.helpers import fairbloom

from ..hospital import RUN, SCHEMA, write_hospital

State = dict[str, torch.Tensor]


class Node:
    """A deployed client, asked with the settings of a run."""

    def __init__(self, folder: Path, **node: Any) -> None:
        self.state = folder / "state"
        self.state.mkdir()
        self._node = {"data-dir": str(folder / "data"), "state-dir": str(self.state), **node}

    def ask(
        self, arrays: State, kind: str = MessageType.TRAIN, number: int = 1, **settings: Any
    ) -> RecordDict:
        config = accepted_settings(Settings.of({**RUN, **settings}).run_config())
        content = RecordDict(
            {
                "arrays": ArrayRecord({name: Array(each.numpy()) for name, each in arrays.items()}),
                "config": ConfigRecord({"server-round": number}),
            }
        )
        context = Context(1, 2, self._node, RecordDict(), config)
        return app(Message(content, dst_node_id=2, message_type=kind), context).content


@pytest.fixture
def node(tmp_path: Path) -> Node:
    write_hospital(tmp_path / "data")
    return Node(tmp_path)


def seeds(**settings: Any) -> State:
    return load_task(Settings.of({**RUN, **settings}).run_config()).model().state_dict()


def planted(folder: Path, **settings: Any) -> tuple[State, dict[str, Any]]:
    """Write a file of other weights; return them, and the settings of a run that begins with them."""
    arrays = {name: torch.randn_like(each) for name, each in seeds(**settings).items()}
    save_file(arrays, folder / "planted.safetensors")
    digest = digest_weights(str(folder / "planted.safetensors"))
    return arrays, {"initial-weights": "planted.safetensors", "weights-digest": digest}


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE, MessageType.QUERY])
def test_a_run_with_weights_is_refused_before_its_first_message(
    node: Node, tmp_path: Path, kind: str
) -> None:
    """A loss of planted weights tells who is a patient of a site that does not even train."""
    arrays, settings = planted(tmp_path)
    with pytest.raises(FairbloomError, match="client accept --weights FILE") as refused:
        node.ask(arrays, kind, **settings)
    assert "client accept --weights FILE" in reportable(refused.value)
    with pytest.raises(FairbloomError, match="first model's"):
        node.ask(arrays)  # a server that does not say it


def test_accepted_weights_are_those_of_one_file_schema_and_model(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays, settings = planted(tmp_path)
    other = tmp_path / "other.safetensors"
    save_file(seeds(), other)
    words = ("client", "accept", node.state, "--weights")
    assert fairbloom(*words, tmp_path / "planted.safetensors") == 2
    assert "no run that was refused" in capsys.readouterr().err
    with pytest.raises(FairbloomError, match="not accepted"):
        node.ask(arrays, **settings)
    assert fairbloom(*words, other) == 2
    assert "holds other weights" in capsys.readouterr().err
    assert fairbloom(*words, tmp_path / "planted.safetensors") == 0
    assert node.ask(arrays, **settings)["metrics"]
    assert node.ask(arrays, MessageType.EVALUATE, **settings)["metrics"]
    for change in ({"model": "mlp"}, {"schema": SCHEMA.replace("fill", "drop")}):
        with pytest.raises(FairbloomError, match="not accepted"):
            node.ask(seeds(**change), **settings, **change)
    with pytest.raises(FairbloomError, match="first model's"):
        node.ask(seeds(), **settings)  # others than the file's
    with pytest.raises(FairbloomError, match="first model's"):
        node.ask(arrays)  # or than the seed's
    assert fairbloom(*words, tmp_path / "planted.safetensors") == 0  # for the schema refused last
    assert node.ask(arrays, **settings, **change)["metrics"]
    assert fairbloom(*words, tmp_path / "planted.safetensors") == 2
    assert len(json.loads((node.state / FOLDER / ACCEPTED).read_text())) == 2


@pytest.mark.parametrize(("share", "fits"), [(0.9e-5, True), (1.1e-5, False), (-1.1e-5, False)])
def test_a_first_model_may_differ_by_rounding(node: Node, share: float, fits: bool) -> None:
    """Of each array's largest number; later models are the server's."""
    arrays = seeds()
    name, whole = next((name, each) for name, each in arrays.items() if each.abs().max() > 0)
    moved = {**arrays, name: whole.double()}
    moved[name].view(-1)[-1] += share * whole.double().abs().max()
    if fits:
        assert node.ask(moved)["metrics"]
    else:
        with pytest.raises(FairbloomError, match=f"first model's {name}"):
            node.ask(moved)
    assert node.ask(moved, number=2)["metrics"]
    assert node.ask({**moved, name: whole + 1.0}, MessageType.EVALUATE)["metrics"]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_first_model_is_finite(node: Node, wrong: float) -> None:
    arrays = {name: each.clone() for name, each in seeds().items()}
    next(iter(arrays.values())).view(-1)[0] = wrong
    with pytest.raises(FairbloomError, match="first model's"):
        node.ask(arrays)


@pytest.mark.parametrize(("units", "fits"), [(0, True), (1, True), (3, False)])
def test_a_first_model_in_bfloat16_may_differ_by_one_unit(
    node: Node, units: int, fits: bool
) -> None:
    config = Settings.of({**RUN, "model": "mlp"}).run_config()
    local = guarded(
        LocalClient.of({**config, "data-dir": str(node.state.parent / "data")}, 0, "lund"), 5
    )
    bits = {name: narrow(each.numpy()) for name, each in seeds(model="mlp").items()}
    name = next(iter(bits))
    bits[name].reshape(-1)[0] += units
    received = {each: torch.from_numpy(widen(array)) for each, array in bits.items()}
    if fits:
        check_first_model(local, received, rounded=True)
    else:
        with pytest.raises(FairbloomError, match=f"first model's {name}"):
            check_first_model(local, received, rounded=True)


def test_a_stock_nodes_owner_accepts_a_digest(tmp_path: Path) -> None:
    write_hospital(tmp_path / "data")
    arrays, settings = planted(tmp_path)
    node = Node(tmp_path, weights=settings["weights-digest"])
    assert node.ask(arrays, **settings)["metrics"]
    with pytest.raises(FairbloomError, match="first model's"):
        node.ask({name: each + 0.1 for name, each in arrays.items()}, **settings)
    with pytest.raises(FairbloomError, match="not accepted"):
        node.ask(arrays, **{**settings, "weights-digest": "0" * 64})
    assert node.ask(seeds())["metrics"]  # a run without a file


def test_the_log_has_the_digest_of_each_received_model(node: Node) -> None:
    arrays = seeds()
    for number, model in ((1, arrays), (2, arrays), (3, {n: a + 1.0 for n, a in arrays.items()})):
        node.ask(model, number=number)
    first, second, third = (each["received"]["arrays"] for each in read_entries(node.state))
    assert first == second != third
    assert first.startswith("blake3 ")


def test_the_log_reads_a_model_without_a_copy() -> None:
    array = Array(np.ones(1 << 20))
    received = deserialize(
        serialize(RecordDict({"arrays": ArrayRecord({"weights": array})}))
    ).array_records["arrays"]
    written = digest_record(ArrayRecord({"weights": array}))
    tracemalloc.start()
    assert digest_record(received) == written
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_floor_of_one_row_takes_any_model(tmp_path: Path) -> None:
    write_hospital(tmp_path / "data")
    arrays = {name: each + 1.0 for name, each in seeds().items()}
    assert Node(tmp_path, **{"limit-rows": 1}).ask(arrays)["metrics"]


@pytest.mark.parametrize("how", ["missing", "of another shape"])
def test_a_first_model_has_all_arrays(node: Node, how: str) -> None:
    arrays = seeds()
    first = next(iter(arrays))
    if how == "missing":
        del arrays[first]
    else:
        arrays[first] = arrays[first].reshape(-1)
    with pytest.raises(FairbloomError, match=f"first model's {first}"):
        node.ask(arrays)


def test_tied_weights_are_accepted(node: Node, tmp_path: Path) -> None:
    tied = torch.ones(2, 2)
    torch.save({"a": tied, "b": tied}, tmp_path / "tied.pth")
    digest = digest_weights(str(tmp_path / "tied.pth"))
    with pytest.raises(FairbloomError, match="not accepted"):
        node.ask(seeds(), **{"initial-weights": "tied.pth", "weights-digest": digest})
    accept_weights(node.state, tmp_path / "tied.pth")
    assert (node.state / FOLDER / f"{digest}.safetensors").exists()


def test_a_node_without_a_state_folder_reads_no_folder_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in the working directory was accepted by nobody."""
    write_hospital(tmp_path / "data")
    arrays, settings = planted(tmp_path)
    digest = settings["weights-digest"]
    (tmp_path / FOLDER).mkdir()
    save_file(seeds(), tmp_path / FOLDER / f"{digest}.safetensors")
    monkeypatch.chdir(tmp_path)
    node = Node(tmp_path, **{"state-dir": "", "weights": digest})
    assert node.ask(arrays, **settings)["metrics"]
    with pytest.raises(FairbloomError, match="first model's"):
        node.ask({name: each + 1.0 for name, each in arrays.items()}, **settings)
