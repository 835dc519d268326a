"""Exported models of runs predict what `fairbloom predict` does: by the libraries that they are for."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

import fairbloom
from fairbloom.errors import FairbloomError
from tests.experiments.helpers import fairbloom as command

from .readers import READERS, load_by_mlflow, needs
from .wards import CLASSES, COLUMNS, patients

WITHOUT_FAIRBLOOM = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "fairbloom":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
"""

MODELS = [("last", "south"), ("best", "south"), ("personal", "south")]


def held_out(count: int = 60, **options: bool) -> pandas.DataFrame:
    """Return rows that no site has trained on, one of an unknown ward; in another order of columns."""
    frame = patients(1, 400, **options).tail(count).drop(columns="outcome").reset_index(drop=True)
    frame.loc[3, "ward"] = "Z 9"
    return frame[["smoker", "dose", "ward", "age"]]


def check(run: fairbloom.Run, form: str, out: Path, frame: pandas.DataFrame, client: str, model: str) -> None:
    """Export, and compare what the form's own library makes of the rows with what we do."""
    expected = run.predict(frame, client=client, model=model)
    folder = run.export(form, client=client, model=model, out=out)
    values, numbers = READERS[form](folder, frame)
    if "probability_" + CLASSES[0] in expected:
        assert values == expected["predicted_outcome"].tolist()
        assert len(set(values)) == len(CLASSES)  # so that the comparison says something
        np.testing.assert_allclose(numbers, expected[[f"probability_{name}" for name in CLASSES]], atol=1e-5)
    else:
        assert expected["predicted_outcome"].std() > 1.0
        np.testing.assert_allclose(numbers, expected["predicted_outcome"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize(("model", "client"), MODELS)
def test_classes_and_probabilities_are_ours(
    run: fairbloom.Run, form: str, model: str, client: str, tmp_path: Path
) -> None:
    check(run, form, tmp_path / "out", held_out(), client, model)


@pytest.mark.parametrize("form", READERS)
def test_missing_values_are_filled_in_as_we_do(together: fairbloom.Run, form: str, tmp_path: Path) -> None:
    frame = held_out()
    frame.loc[[4, 9], "age"] = np.nan
    frame.loc[[5, 9], "ward"] = ""
    frame.loc[[6, 9], "smoker"] = "NA"
    check(together, form, tmp_path / "out", frame, "", "last")


@pytest.mark.slow
@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize("model", ["last", "personal"])
def test_a_quantity_is_in_its_own_unit(quantity: fairbloom.Run, form: str, model: str, tmp_path: Path) -> None:
    check(quantity, form, tmp_path / "out", held_out(quantity=True), "south", model)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "mlflow", "torch"])
def test_the_lines_of_the_card_predict_without_fairbloom(together: fairbloom.Run, form: str, tmp_path: Path) -> None:
    needs({"onnx": "onnxruntime", "mlflow": "mlflow", "torch": "torch"}[form])
    folder = together.export(form, out=tmp_path / "out")
    frame = held_out(8)
    frame[[*COLUMNS]].to_csv(folder / "new.csv", index=False)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(WITHOUT_FAIRBLOOM)
    card = (folder / "README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```python\n(.*?)```", card, flags=re.S)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "path"), "PYTHONIOENCODING": "utf-8"}
    ours = subprocess.run([sys.executable, "-c", "import fairbloom"], cwd=folder, env=environment, capture_output=True)
    assert b"ModuleNotFoundError" in ours.stderr
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=folder, env=environment, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    if form == "torch":
        assert "tensor([[" in done.stdout
        return
    for predicted in together.predict(frame)["predicted_outcome"]:
        assert predicted in done.stdout


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_names_the_folder(run: fairbloom.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("export", run.folder, "--to", "safetensors", "--client", "old town", "--model", "personal") == 0
    folder = run.folder / "exports" / "safetensors-personal-old town"
    assert capsys.readouterr().out == f"exported: {folder}\n"
    assert {"model.safetensors", "config.json", "preprocessing.json", "README.md"} <= {p.name for p in folder.iterdir()}
    record = json.loads((folder / "export.json").read_text())
    assert (record["client"], record["model"], record["rows"]) == ("old town", "personal", 256)
    assert record["largest_difference"] <= record["tolerance"]


def test_a_client_must_be_named_where_each_has_its_own_means(
    run: fairbloom.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("export", run.folder, "--to", "onnx") == 2
    assert "--client with one of north, old town, south, west" in capsys.readouterr().err
    assert not (run.folder / "exports" / "onnx-last").exists()


def test_an_earlier_export_is_replaced_and_nothing_else(run: fairbloom.Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run.export("safetensors", client="south", out=out)
    (out / "left.txt").write_text("of the earlier one")
    run.export("safetensors", client="north", model="personal", out=out)
    assert json.loads((out / "export.json").read_text())["client"] == "north"
    assert not (out / "left.txt").exists()
    (out / "export.json").unlink()
    with pytest.raises(FairbloomError, match="holds no export: name another folder by --out"):
        run.export("safetensors", client="south", out=out)
    run.export("safetensors", client="south", out=tmp_path / "another")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", "out"]


def test_an_unknown_form_is_refused_with_those_there_are(run: fairbloom.Run, tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match="did you mean onnx"):
        run.export("onxx", client="south", out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_deployed_client_exports_what_it_keeps(run: fairbloom.Run, tmp_path: Path) -> None:
    """Its folder has model, settings and its own preprocessing, and neither tables nor other clients."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (own,) = run.folder.glob("clients/*/south")
    for file in (run.folder / "config.toml", run.folder / "agreed.json", run.folder / "model.safetensors"):
        (kept / file.name).write_bytes(file.read_bytes())
    for file in own.iterdir():
        (kept / file.name).write_bytes(file.read_bytes())
    for model in ("last", "personal"):
        assert command("export", kept, "--to", "torch", "--model", model) == 0
        folder = kept / "exports" / f"torch-{model}-south"
        values, _ = READERS["torch"](folder, held_out())
        assert values == run.predict(held_out(), client="south", model=model)["predicted_outcome"].tolist()
        assert "in the run folder on the server" in (folder / "README.md").read_text(encoding="utf-8")


# Inputs that are no tables --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    out = tmp_path_factory.mktemp("digits") / "run"
    return fairbloom.run(
        "digits", model="cnn", clients=3, rounds=2, engine="loop", device="cpu", out=out, progress=False
    )


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """Three clients whose .npz files hold grey images in bytes."""
    folder = tmp_path_factory.mktemp("arrays")
    (folder / "data").mkdir()
    random = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        x = random.integers(0, 256, (40, 8, 8), dtype=np.uint8)
        np.savez(folder / "data" / f"{name}.npz", x=x, y=np.where(x[:, :, :4].mean(axis=(1, 2)) > 127, "left", "right"))
    return fairbloom.run(
        "npz",
        data_dir=folder / "data",
        model="cnn",
        rounds=2,
        engine="loop",
        device="cpu",
        out=folder / "run",
        progress=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("made", ["digits", "arrays"])
def test_a_network_of_images_gives_our_probabilities(made: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    needs("onnxruntime", "onnxscript", "mlflow")
    import onnxruntime
    import torch

    run = request.getfixturevalue(made)
    images = np.random.default_rng(1).random((11, 1, 8, 8), np.float32)
    predictor = run.predictor()
    expected = predictor.preprocessing.decode(predictor.outputs(torch.from_numpy(images)))
    session = onnxruntime.InferenceSession(run.export("onnx", out=tmp_path / "onnx") / "model.onnx")
    values, probabilities = session.run(None, {"inputs": images})
    served = load_by_mlflow(run.export("mlflow", out=tmp_path / "mlflow")).predict(images)
    program = torch.export.load(run.export("torch", out=tmp_path / "torch") / "model.pt2").module()
    run.export("safetensors", out=tmp_path / "safetensors")
    for found in (probabilities, served.to_numpy()[:, 1:].astype(float), program(torch.from_numpy(images)).detach()):
        np.testing.assert_allclose(found, expected.probabilities, atol=1e-5)
    assert list(values) == list(served.iloc[:, 0]) == list(expected.values)


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    out = tmp_path_factory.mktemp("sequences") / "run"
    task = "tests.prediction.export.sequences:sentences"
    return fairbloom.run(task, rounds=2, engine="loop", device="cpu", out=out, progress=False)


def test_a_model_of_several_tensors_keeps_their_names_and_types(sequences: fairbloom.Run, tmp_path: Path) -> None:
    needs("onnxruntime", "onnxscript", "mlflow")
    import onnxruntime
    import torch

    random = np.random.default_rng(3)
    raw = {"input_ids": random.integers(0, 12, (17, 6)), "attention_mask": random.integers(0, 2, (17, 6))}
    inputs = {name: torch.from_numpy(each) for name, each in raw.items()}
    expected = sequences.predictor().outputs(inputs).softmax(dim=1).numpy()
    assert np.ptp(expected[:, 0]) > 0.01
    session = onnxruntime.InferenceSession(sequences.export("onnx", out=tmp_path / "onnx") / "model.onnx")
    values, probabilities = session.run(None, raw)
    served = load_by_mlflow(sequences.export("mlflow", out=tmp_path / "mlflow")).predict(raw)
    program = torch.export.load(sequences.export("torch", out=tmp_path / "torch") / "model.pt2").module()
    sequences.export("safetensors", out=tmp_path / "safetensors")
    for found in (probabilities, served.to_numpy()[:, 1:].astype(float), program(*inputs.values()).detach()):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    named = [("low", "high")[place] for place in expected.argmax(axis=1)]
    assert list(values) == list(served["predicted_target"]) == named


EXPORT_AND_TRAIN = """
import sys, fairbloom
fairbloom.load(sys.argv[1]).export("torch", client="south", out="export")
for engine in ("stacked", "workers"):
    fairbloom.run("digits", clients=3, rounds=1, engine=engine, out=engine, progress=False)
"""


@pytest.mark.slow
def test_forked_processes_train_after_an_export(run: fairbloom.Run, tmp_path: Path) -> None:
    command_line = [sys.executable, "-c", EXPORT_AND_TRAIN, str(run.folder)]
    ended = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "workers" / "model.safetensors").exists()
