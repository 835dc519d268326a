"""`fairbloom data DIR --leaves` prints what is on the wire, compared with the messages of a run of the ServerApp."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from fairbloom.client.app import app
from fairbloom.client.settings import accepted_settings
from fairbloom.rounds.flower import unpack_content
from fairbloom.server.app import app as server
from fairbloom.server.run_folder.files import MODEL
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.rehearsal import rehearse
from tests.experiments.helpers import fairbloom
from tests.simulation.helpers import table
from tests.tasks.tables import csv_of

RUNS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedfv": {"method": "fedfv", "validation-share": 0.2},
    "personal models": {"method": "ditto"},
    "snapshots": {"method": "deltafl"},
    "moments": {"csv.standardise": "together", "method": "afl"},
    "a quantity": {"csv.target": "dose", "csv.ignore": "target", "method": "semivred"},
    "counts of two groups": {"csv.group": "age>=50", "method": "fairfed"},
    "a disparity": {"csv.group": "age>=50", "method": "fcfl"},
}


class Wire(InProcessGrid):
    """Carries messages as bytes and keeps them; each client has a data folder of its own."""

    def __init__(self, config: Mapping[str, Any], folders: Mapping[str, Path]) -> None:
        super().__init__(app, accepted_settings(config, list(map(str, config.values()))), len(folders))
        self.bytes: dict[str, list[tuple[str, bytes]]] = {name: [] for name in folders}
        self._folders = list(folders)
        for context, (name, folder) in zip(self.contexts.values(), folders.items(), strict=True):
            context.node_config = {"partition-id": 0, "name": name, "data-dir": str(folder)}
            context.node_config["state-dir"] = f"{folder}-state"

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        name = self._folders[message.metadata.dst_node_id - min(self.contexts)]
        sent = (
            reply.error.reason.encode() if reply.has_error() else recorddict_to_proto(reply.content).SerializeToString()
        )
        self.bytes[name].append((message.metadata.message_type, sent))
        return reply


def devices(folder: Path, **texts: str) -> dict[str, Path]:
    for name, text in texts.items():
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.csv").write_text(text)
    return {name: folder / name for name in texts}


def kinds(content: RecordDict) -> dict[str, Any]:
    """Return all that a content holds: its arrays' kinds, its words and numbers as they are."""
    found: dict[str, Any] = {}
    for name, record in content.items():
        for key, value in record.items():
            if name in content.array_records:
                values = content.array_records[name][key].numpy()
                value = f"{values.dtype}, {'×'.join(map(str, values.shape))}"
            found[f"{name}/{key}"] = json.loads(str(value)) if key == "about" else value
    return found


def listed(content: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}/{key}": value for name, record in content.items() for key, value in record.items()}


@pytest.mark.parametrize("which", RUNS)
def test_all_that_a_client_sends_in_a_run_is_what_was_shown(tmp_path: Path, which: str) -> None:
    rare = csv_of(60, 1).replace("west", "hospice", 3)
    there = devices(tmp_path / "devices", lund=rare, oslo=csv_of(60, 2))
    asked = {"task": "csv", "device": "cpu", "fraction": 1.0, **RUNS[which]}
    run = Settings.of({**asked, "num-rounds": 3, "clients": 2, "out": str(tmp_path / "run")})
    wire = Wire(run.run_config(), there)
    server(wire, Context(1, 1, {}, RecordDict(), run.run_config()))
    for name, folder in there.items():
        shown = {each.asked: listed(each.content) for each in rehearse(Settings.of({**asked, "data-dir": str(folder)}))}
        assert set(shown) == {"query", "about", "train", "evaluate", "keep"}
        for asked_for, sent in wire.bytes[name]:
            content = unpack_content(recorddict_from_proto(ProtoRecordDict.FromString(sent)))
            found = kinds(content)
            what = "about" if "client/about" in found else "keep" if "client/kept" in found else asked_for
            if what == "keep":
                assert found["client/kept"] in ("", MODEL.read_checksum(tmp_path / "run"))
                continue
            of_model = [key for key in found if key.startswith(("arrays/", "arrays-disparity/", "snapshot/"))]
            assert set(found) - {"client/packs"} == set(shown[what]) - {"client/packs"}
            for key, value in found.items():
                if key.startswith("metrics/") and key != "metrics/num-examples":
                    assert isinstance(value, int | float)  # of another round, or of a model from other clients, too
                elif key not in of_model or what != "train":
                    assert value == shown[what].get(key, True)
        assert b"hospice" not in b"".join(sent for _, sent in wire.bytes[name])


def test_a_single_clients_first_round_is_shown_to_the_number(tmp_path: Path) -> None:
    there = devices(tmp_path / "devices", lund=csv_of(60, 1))
    asked = {"task": "csv", "device": "cpu", "fraction": 1.0}
    run = Settings.of({**asked, "num-rounds": 1, "clients": 1, "out": str(tmp_path / "run")})
    wire = Wire(run.run_config(), there)
    server(wire, Context(1, 1, {}, RecordDict(), run.run_config()))
    sent = [
        kinds(unpack_content(recorddict_from_proto(ProtoRecordDict.FromString(each)))) for _, each in wire.bytes["lund"]
    ]
    shown = rehearse(Settings.of({**asked, "data-dir": str(there["lund"])}))
    real_ones = [each for place, each in enumerate(sent) if each not in sent[:place]]  # its name is asked for twice
    for real, found in zip(real_ones, shown, strict=True):
        assert {**real, "client/packs": True} == {**listed(found.content), "client/packs": True}


def test_faults_of_data_are_shown_as_the_server_sees_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = devices(tmp_path / "devices", lund=csv_of(60).replace("age", "47", 1))
    asked = {
        "task": "csv",
        "device": "cpu",
        "fraction": 1.0,
        "num-rounds": 1,
        "clients": 1,
        "out": str(tmp_path / "run"),
    }
    wire = Wire(Settings.of(asked).run_config(), there)
    with pytest.raises(Exception, match="line 1 may hold values"):
        server(wire, Context(1, 1, {}, RecordDict(), Settings.of(asked).run_config()))
    assert fairbloom("data", there["lund"], "--leaves") == 1
    said = capsys.readouterr()
    real = wire.bytes["lund"][-1][1].decode().removeprefix("ReportableError: ")
    assert f"Before the first round, it sends the error {real!r}" in said.out
    assert "lund.csv" not in said.out.replace(str(tmp_path), "")


def test_it_is_read_in_sentences_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rare = csv_of(160, 1).replace("west", "hospice", 3)
    there = devices(tmp_path / "devices", lund=rare)["lund"]
    assert (
        fairbloom("data", there, "--leaves", "--set", "csv.standardise=together", "--set", "csv.smallest-category=26")
        == 0
    )
    said = capsys.readouterr().out
    for sentence in (
        "it sends its name, lund, and how many examples it trains on, 128.",
        "it sends the names of its columns and what they hold: age (numbers), dose (numbers), ward (categories).",
        "the categories of its column ward: north, other, south, west, where other stands for those of fewer than 26",
        "of its column age.",
        "it sends the classes of its target: 0, 1.",
        "it sends the trained model: 1.weight (float32, 2×6), 1.bias (float32, 2).",
        "these numbers: num-examples = 128, loss-before = ",
        "When the run is over, it sends the checksum of the final model, which it keeps.",
        "No row is sent.",
    ):
        assert sentence in said
    assert "hospice" not in said
    assert fairbloom("data", there, "--leaves", "--json", "--set", "csv.standardise=together") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["client"] == "lund"
    assert [each["asked"] for each in found["messages"]] == ["query", "about", "train", "evaluate", "keep", "keep"]


@pytest.mark.parametrize(
    ("method", "sentences"),
    [
        ("fairfed", ["positives-0 = 33, positives-1 = 31", "hits-0 = ", "accuracy-before = "]),
        (
            "fcfl",
            [
                "it sends the received model one step further down the disparity between its groups: 1.weight",
                "disparity =",
                "disparity-hard =",
            ],
        ),
    ],
)
def test_what_a_method_between_groups_sends_is_shown(
    method: str, sentences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = devices(tmp_path / "devices", lund=csv_of(160, 1))["lund"]
    asked = ("data", there, "--leaves", "--set", "csv.group=age>=50", "--set", f"method={method}")
    assert fairbloom(*asked) == 0
    said = capsys.readouterr().out
    assert all(sentence in said for sentence in sentences), said
    assert fairbloom(*asked, "--set", "smallest-group=90") == 0
    held_back = capsys.readouterr().out
    assert ("disparity = 0," if method == "fcfl" else "hits-0 = 0, hits-1 = 0,") in held_back


def test_every_client_of_a_folder_is_shown_as_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("lund", 1), ("oslo", 2)):
        (tmp_path / f"{name}.csv").write_text(csv_of(60, seed))
    assert fairbloom("data", tmp_path, "--leaves", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["client"] for each in found] == ["lund", "oslo"]
    assert [len(each["messages"]) for each in found] == [6, 6]


def test_on_a_device_client_toml_says_where_data_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = devices(tmp_path / "devices", lund=csv_of(60, 1))["lund"]
    (tmp_path / "client.toml").write_text(
        f'superlink = "a:1"\ninsecure = true\nname = "site-a"\ndata-dir = {json.dumps(str(there))}\n'
    )
    assert fairbloom("data", tmp_path / "client.toml", "--leaves") == 0
    assert re.search(r"its name, site-a, and how many examples it trains on, 48", capsys.readouterr().out)


def test_arrays_are_shown_by_shape_and_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "lund.npz", x=np.zeros((40, 8, 8), np.uint8), y=np.arange(40) % 3)
    assert fairbloom("data", tmp_path, "--task", "npz", "--leaves") == 0
    said = capsys.readouterr().out
    assert "it sends the shape of its examples: 1×8×8." in said
    assert "it sends the classes of its target: 0, 1, 2." in said


def test_a_client_with_too_few_rows_is_listed_without_scores(tmp_path: Path) -> None:
    there = devices(tmp_path / "devices", lund=csv_of(60, 1), oslo=csv_of(20, 2))
    asked = {"task": "csv", "device": "cpu", "clients": 2, "num-rounds": 2, "out": str(tmp_path / "run")}
    wire = Wire(Settings.of(asked).run_config(), there)
    server(wire, Context(1, 1, {}, RecordDict(), Settings.of(asked).run_config()))
    rows = {row["client"]: row for row in table(tmp_path / "run" / "clients.csv")}
    assert float(rows["lund"]["test_accuracy_of_global_model"]) > 0.0
    assert (rows["oslo"]["test_accuracy_of_global_model"], rows["oslo"]["test_loss_of_global_model"]) == ("", "")
    assert fairbloom("show", tmp_path / "run") == 0
    assert fairbloom("report", tmp_path / "run") == 0


def test_nothing_is_left_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = devices(tmp_path / "devices", lund=csv_of(60, 1))["lund"]
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert fairbloom("data", there, "--leaves") == 0
    assert list((tmp_path / "work").iterdir()) == []
    assert [path.name for path in there.iterdir()] == ["lund.csv"]


def test_a_client_whose_loss_is_counted_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("clients=10", "fraction=1", "method=deltafl", "weighting=uniform", "privacy=counts")
    assert fairbloom("data", "--task", "digits", "--leaves", *(word for each in given for word in ("--set", each))) == 0
    assert "sums alone are opened: the number of its examples, the length of its update, the bins of" in (
        capsys.readouterr().out.replace("\n", " ")
    )


def test_a_client_whose_angles_are_opened_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("data", "--task", "digits", "--leaves", "--set", "clients=2", "--set", "method=fedmgda", "--set")
    assert fairbloom(*words, "privacy=angles") == 0
    said = capsys.readouterr().out
    assert "sends shares, encrypted for each other client of the round, of its update." in said
    assert "the length of each update, and of the angle between each two, which are opened by name" in said
    assert "tested in, it sends shares, encrypted for each other client of the round, of numbers of which sums" in said


def test_a_private_client_sends_shares_and_a_masked_update(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("data", "--task", "digits", "--leaves", "--set", "clients=2", "--set", "method=term", "--set")
    assert fairbloom(*words, "privacy=sums") == 0
    said = capsys.readouterr().out
    shares = "sends shares, encrypted for each other client of the round, of numbers of which sums alone are opened: "
    assert f"trains in, it {shares}the number of its examples, the length of its update, loss-before." in said
    assert f"tested in, it {shares}the number of its test examples, and loss, accuracy with their squares." in said
    assert "masked so that only sums over at least five clients can be read" in said
    assert "When the run is over, it sends the checksum of the final model" in said
    assert "the trained model" not in said
    assert "these numbers" not in said
    assert "how many examples" not in said
    assert fairbloom(*words, "privacy=none") == 0
    said = capsys.readouterr().out
    assert "the trained model" in said
    assert "encrypted" not in said
