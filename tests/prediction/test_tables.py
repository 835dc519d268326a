"""Predictions for new rows of a table equal what the clients measured, to the row."""

import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import Predictor, load_predictor
from fairbloom.server.checkpoint import load_model

from .made import CLASSES, COLUMNS, HOSPITALS, Rows, held_out, patients, read, task_of, written

INPUTS = ("age", "dose", "ward", "smoker")


def predicted(predictor: Predictor, rows: Rows, folder: Path, columns: tuple[str, ...] = COLUMNS) -> Rows:
    """Return what comes out for rows in a file."""
    (folder / "new.csv").write_text(written(rows, columns), encoding="utf-8")
    assert predictor.predict_file(folder / "new.csv", folder / "out.csv") == len(rows)
    return read(folder / "out.csv")


def everyone(run: fairbloom.Run, client: str, model: str) -> torch.Tensor:
    """Return the outputs for a client's test examples as training computes the inputs, and clients load models."""
    inputs, _ = task_of(run).splits(client).test[slice(None)]
    with torch.no_grad():
        return run.model(client, model)(inputs)


# As the clients measured ----------------------------------------------------------------------------------------------


def test_accuracies_on_held_out_rows_are_those_of_the_run(run: fairbloom.Run, tmp_path: Path) -> None:
    for client, model in product(HOSPITALS, ("last", "personal")):
        rows = held_out(run, client)
        found = predicted(load_predictor(run.folder, client=client, model=model), rows, tmp_path)
        right = [row["predicted_outcome"] == row["outcome"] for row in found]
        measured = run.final(model="personal" if model == "personal" else "global")[client]
        assert 100.0 * np.mean(right) == pytest.approx(measured, abs=1e-4)
        chosen = everyone(run, client, model).argmax(dim=1)
        assert [row["predicted_outcome"] for row in found] == [sorted(CLASSES)[place] for place in chosen.tolist()]


def test_global_and_personal_models_differ(run: fairbloom.Run) -> None:
    models = [run.model(client, "personal") for client in HOSPITALS] + [run.model(HOSPITALS[0])]
    weights = [torch.cat([each.flatten() for each in model.parameters()]) for model in models]
    assert len({tuple(each.tolist()) for each in weights}) == 5
    assert not any(model.training for model in models)


def test_rows_with_missing_values_are_predicted_as_measured(together: fairbloom.Run, tmp_path: Path) -> None:
    for client, model in product(HOSPITALS, ("last", "personal")):
        rows = read(together.folder.parent / "data" / f"{client}.csv")
        found = predicted(load_predictor(together.folder, client=client, model=model), rows, tmp_path)
        test = task_of(together).splits(client).test.rows
        assert test is not None
        right = [found[place]["predicted_outcome"] == rows[place]["outcome"] for place in test.tolist()]
        measured = together.final(model="personal" if model == "personal" else "global")[client]
        assert 100.0 * np.mean(right) == pytest.approx(measured, abs=1e-4)


def test_common_means_need_no_client(together: fairbloom.Run) -> None:
    frame = pandas.DataFrame(patients(0, 20))
    pandas.testing.assert_frame_equal(together.predict(frame), together.predict(frame, client="north"))


def test_a_quantity_is_predicted_in_its_own_unit(quantity: fairbloom.Run, tmp_path: Path) -> None:
    for client, model in product(HOSPITALS, ("last", "personal")):
        rows = held_out(quantity, client)
        found = predicted(load_predictor(quantity.folder, client=client, model=model), rows, tmp_path)
        assert list(found[0]) == [*COLUMNS, "predicted_outcome"]
        errors = [abs(float(row["predicted_outcome"]) - float(row["outcome"])) for row in found]
        measured = quantity.final(model="personal" if model == "personal" else "global")[client]
        assert np.mean(errors) == pytest.approx(measured, rel=1e-4)


def test_the_best_model_is_that_of_the_best_round(run: fairbloom.Run, caplog: pytest.LogCaptureFixture) -> None:
    model = run.model("north", "best")
    assert "was chosen by the test examples" in caplog.text
    arrays, _ = load_model(run.folder / "model-best.safetensors")
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


# What comes out -------------------------------------------------------------------------------------------------------


def test_all_columns_come_out_then_the_predictions(run: fairbloom.Run, tmp_path: Path) -> None:
    rows = patients(1, 30)
    found = predicted(load_predictor(run.folder, client="south"), rows, tmp_path)
    added = ["predicted_outcome", *(f"probability_{name}" for name in sorted(CLASSES))]
    assert list(found[0]) == [*COLUMNS, *added]
    assert [{name: row[name] for name in COLUMNS} for row in found] == rows
    for row in found:
        shares = {name: float(row[f"probability_{name}"]) for name in CLASSES}
        assert sum(shares.values()) == pytest.approx(1.0)
        assert max(shares, key=lambda name: shares[name]) == row["predicted_outcome"]


def test_columns_may_be_in_any_order_without_the_target(run: fairbloom.Run, tmp_path: Path) -> None:
    predictor, rows = load_predictor(run.folder, client="west"), patients(2, 25)
    usual = predicted(predictor, [{**row, "outcome": "never seen"} for row in rows], tmp_path)
    added = list(usual[0])[len(COLUMNS) :]
    for columns in (INPUTS, tuple(reversed(COLUMNS)), ("ward", "outcome", "age", "smoker", "dose")):
        found = predicted(predictor, rows, tmp_path, columns)
        assert list(found[0])[: len(columns)] == list(columns)
        assert [[row[name] for name in added] for row in found] == [[row[name] for name in added] for row in usual]


def test_a_data_frame_is_predicted_as_its_file(run: fairbloom.Run, tmp_path: Path) -> None:
    predictor, rows = load_predictor(run.folder, client="old town"), patients(3, 40)
    by_file = predicted(predictor, rows, tmp_path)
    frame = pandas.DataFrame(rows).astype({"age": float, "dose": float, "ward": "category"})
    frame.index = pandas.Index(range(100, 140))
    found = run.predict(frame, client="old town")
    assert list(found.index) == list(frame.index)
    assert list(found["predicted_outcome"]) == [row["predicted_outcome"] for row in by_file]
    for name in CLASSES:
        expected = [float(row[f"probability_{name}"]) for row in by_file]
        np.testing.assert_array_equal(found[f"probability_{name}"].to_numpy(), expected)
    assert list(frame.columns) == list(COLUMNS)


def test_one_row_is_predicted_as_among_others(run: fairbloom.Run) -> None:
    frame = pandas.DataFrame(patients(0, 12))
    among, alone = run.predict(frame, client="north"), run.predict(frame.iloc[4:5], client="north")
    assert list(alone["predicted_outcome"]) == [among["predicted_outcome"].iloc[4]]
    first = f"probability_{CLASSES[0]}"
    assert alone[first].iloc[0] == pytest.approx(among[first].iloc[4], rel=1e-5)


def test_a_category_that_nobody_had_counts_as_none_and_is_named(
    run: fairbloom.Run, caplog: pytest.LogCaptureFixture
) -> None:
    frame = pandas.DataFrame(patients(0, 4))
    frame["ward"] = ["A 1", "Ward 13", "Ward 13", "Ü"]
    predictor = load_predictor(run.folder, client="north")
    found = predictor.predict(frame)
    assert "column 'ward': 'Ward 13' is not known from training, in 2 rows, first in row 1: each counts as none of" in (
        caplog.text
    )
    assert predictor.preprocessing is not None
    age, dose, ward, smoker = predictor.preprocessing.columns
    assert (ward.categories, smoker.categories) == (("A 1", "B, left", "Ü"), ("no", "yes"))
    one_hot = [[row["smoker"] == "no", row["smoker"] == "yes"] for row in patients(0, 4)]
    numbers = [[(float(row[each.name]) - each.center) / each.scale for each in (age, dose)] for row in patients(0, 4)]
    wards = [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
    inputs = torch.tensor([[*a, *b, *c] for a, b, c in zip(numbers, wards, one_hot, strict=True)])
    expected = predictor.outputs(inputs).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(found[[f"probability_{name}" for name in sorted(CLASSES)]], expected, rtol=1e-4)


# Which model, and by whose means --------------------------------------------------------------------------------------


def refused(run: fairbloom.Run, **chosen: str) -> str:
    with pytest.raises(FairbloomError) as caught:
        load_predictor(run.folder, **chosen)
    return str(caught.value)


def test_what_is_not_there_is_named_with_what_is(run: fairbloom.Run, together: fairbloom.Run) -> None:
    assert "--client with one of north, old town, south, west; rows of others need a run with csv.st" in refused(run)
    assert "did you mean north? there are north, old town, south, west" in refused(run, client="nort")
    assert "did you mean south?" in refused(together, client="souht")
    assert "did you mean personal? there are last, best, personal" in refused(run, client="north", model="persoal")


def test_a_personal_model_needs_a_client_and_an_undamaged_file(
    together: fairbloom.Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "model personal: say whose, by --client with one of north, old town," in refused(together, model="personal")
    copied = fairbloom.load(shutil.copytree(together.folder, tmp_path / "copied"))
    (file,) = (copied.folder / "clients").rglob("west/*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    said = refused(copied, model="personal", client="west")
    assert f"{file} does not hold what was written" in caplog.text
    assert "has no personal model: " in said
    assert "personal-lambda" in said
    assert file.exists()
