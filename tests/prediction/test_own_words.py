"""What a client's cells mean belongs to the client: whatever is read for it is read by its words."""

import logging
from itertools import product
from pathlib import Path

import numpy as np
import pandas
import pytest

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import load_predictor
from fairbloom.tables.schema import SchemaError, parse_schema, with_files

COMMON = """
target = "ill"
positive = "1"
missing = "fill"
[fields.age]
type = "number"
unit = "years"
center = 50.0
scale = 20.0
constraints = {maximum = 120}
[fields.sex]
type = "string"
categories = ["F", "M"]
spellings = {M = ["male"]}
[fields.ill]
type = "string"
categories = ["0", "1"]
"""

# In Cologne, half years since Christ's birth stand for an age, M is mujer, H is hombre, and F is falta.
OWN = """
[files."koeln.csv"]
fields.age = {name = "Alter", unit = "half years", factor = -0.5, offset = 1013}
fields.sex = {spellings = {F = ["M", "male"], M = ["H"]}, missingValues = ["F"]}
fields.ill = {name = "Befund", spellings = {0 = ["nein"], 1 = ["ja"]}}
"""


def patients(seed: int, rows: int = 60, *, own: bool = False) -> str:
    """Return a hospital's table, in its `own` words or in those of all."""
    random = np.random.default_rng(seed)
    age = random.integers(20, 90, rows)
    sex = random.choice(["F", "M", ""], rows)
    table = pandas.DataFrame(
        {"age": age, "sex": sex, "ill": (age + random.normal(0, 9, rows) > 50).astype(int)}
    )
    if own:
        table = pandas.DataFrame(
            {
                "Befund": table["ill"].map({0: "nein", 1: "ja"}),
                "sex": table["sex"].map({"F": "M", "M": "H", "": "F"}),
                "Alter": 2 * (1013 - age),
            }
        )
    return table.to_csv(index=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[fairbloom.Run]:
    """Two runs on the same patients: all in common words, and Cologne in its own."""
    found = []
    for own in (False, True):
        folder = tmp_path_factory.mktemp("own" if own else "common")
        (folder / "data").mkdir()
        (folder / "data" / "koeln.csv").write_text(patients(1, own=own))
        (folder / "data" / "wien.csv").write_text(patients(2))
        place = {"data_dir": folder / "data", "schema": COMMON + OWN * own, "out": folder / "run"}
        found.append(fairbloom.run("csv", rounds=2, device="cpu", progress=False, **place))
    return found


def predicted(
    run: fairbloom.Run, file: Path, out: Path, client: str, split: str = ""
) -> dict[str, list[str]]:
    """Return the true class, and the probability of the second one, as written for a file."""
    load_predictor(run.folder, client=client).predict_file(file, out, split)
    table = pandas.read_csv(out, dtype=str)
    return {name: table[name].tolist() for name in ("true_ill", "probability_1")}


@pytest.mark.parametrize(
    ("client", "name", "split"),
    [
        *product(["koeln", "wien"], ["koeln.csv", "koeln_2025.csv", "wien.csv"], [""]),
        ("koeln", "koeln.csv", "test"),
        ("wien", "wien.csv", "test"),
    ],
)
def test_a_file_is_read_in_the_words_of_its_client(
    runs: list[fairbloom.Run], tmp_path: Path, client: str, name: str, split: str
) -> None:
    common, own = runs
    for each, array in common.arrays().items():
        np.testing.assert_array_equal(own.arrays()[each], array)
    files = [run.folder.parent / "data" / f"{client}.csv" for run in runs]
    (tmp_path / name).write_bytes(files[1].read_bytes())
    new = tmp_path / name
    expected = predicted(common, files[0], tmp_path / "common.csv", client, split)
    assert predicted(own, new, tmp_path / "own.csv", client, split) == expected
    assert len(expected["true_ill"]) == (12 if split else 60)


def test_a_frame_has_the_clients_words(runs: list[fairbloom.Run], tmp_path: Path) -> None:
    common, own = runs
    frame = pandas.read_csv(own.folder.parent / "data" / "koeln.csv", keep_default_na=False)
    of_file = predicted(
        common, common.folder.parent / "data" / "koeln.csv", tmp_path / "p.csv", "koeln"
    )["probability_1"]
    expected = [float(each) for each in of_file]
    np.testing.assert_allclose(
        own.predict(frame, client="koeln")["probability_1"], expected, atol=1e-6
    )
    with pytest.raises(FairbloomError, match=r"has Alter as its index.* by reset_index\(\)"):
        own.predict(frame.set_index("Alter"), client="koeln")


def test_a_later_file_is_evaluated_in_the_clients_words(
    runs: list[fairbloom.Run], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for run, own in zip(runs, (False, True), strict=True):
        file = tmp_path / f"{own}" / "koeln_2025.csv"
        file.parent.mkdir()
        file.write_text(patients(5, own=own))
        client = "koeln" if own else ""
        found.append(fairbloom.evaluate(run.folder, data_dir=file, client=client).scores)
        for unknown in ("wien", "graz"):
            with pytest.raises(FairbloomError, match="no data of a client with this name"):
                fairbloom.evaluate(run.folder, data_dir=file, client=unknown)
    assert found[0] == found[1]
    assert "name it by --client" not in caplog.text
    (tmp_path / "new.csv").write_text(patients(5))
    fairbloom.evaluate(runs[1].folder, data_dir=tmp_path / "new.csv")  # a new site, or Cologne
    assert "if it is koeln, name it by --client" in caplog.text


def test_without_a_client_such_data_are_refused(runs: list[fairbloom.Run]) -> None:
    common, own = runs
    assert load_predictor(common.folder).client == ""
    for read in (load_predictor, lambda folder: load_predictor(folder).reading_by(COMMON + OWN)):
        with pytest.raises(FairbloomError, match=r"\[files\].* name it by --client"):
            read((own if read is load_predictor else common).folder)
    # A column of clients has the rows of all in one file, and one way of writing.
    single = parse_schema('client = "site"\n' + COMMON + OWN)
    assert single.fields_of("bonn")["age"].factor == -0.5
    assert not single.differs


@pytest.mark.parametrize(
    ("ages", "said"),
    [
        # The mean of training is 50, its deviation 20.
        ([151.0] * 11 + [50.0] * 9, True),
        ([151.0] * 10 + [50.0] * 10, False),
        ([151.0] * 20, True),
        ([151.0] * 19, False),
        ([149.0] * 20, False),  # a property of the site
        ([50.0 - 101.0] * 20, True),
        ([91.0] * 10 + [92.0] * 9 + [50.0], True),
        ([91.0] * 9 + [92.0] * 9 + [50.0] * 2, False),
        ([91.0] * 10 + [9.0] * 10, False),
        ([9.0] * 10 + [8.0] * 10, True),
        ([89.0] * 10 + [88.0] * 10, False),
    ],
)
def test_rows_unlike_the_training_rows_are_said(
    runs: list[fairbloom.Run], caplog: pytest.LogCaptureFixture, ages: list[float], said: bool
) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    load_predictor(runs[0].folder).reading_by(
        COMMON.replace("maximum = 120", "maximum = 999")
    ).predict(pandas.DataFrame({"age": ages, "sex": "F"}))
    assert ("'age'" in caplog.text and "its unit" in caplog.text) == said


@pytest.mark.parametrize("own", ['F = ["M"], M = ["H"]', 'F = ["m"], M = ["h"]'])
def test_a_clients_words_hold_in_any_case_of_letters(own: str) -> None:
    said = f'[files."koeln.csv"]\nfields.sex = {{spellings = {{{own}}}, missingValues = ["f"]}}\n'
    schema = parse_schema(COMMON.replace('["male"]', '["male", "m"]') + said)
    sex = schema.of_client(schema.fields_of("koeln")).fields["sex"]
    cells = ["m", "M", "h", "H", "f", "F", "male"]
    assert [sex.place(each, {"f"}) for each in cells] == [0, 0, 1, 1, -1, -1, 1]
    assert [schema.fields["sex"].place(each, ()) for each in "mMfF"] == [1, 1, 0, 0]


def test_all_files_of_a_device_are_of_one_client() -> None:
    own = {"fields": {"age": {"factor": -0.5}}}
    others = COMMON + OWN.replace("koeln", "bonn")
    for files, client, factor in (
        ({"march.csv": own}, "", -0.5),
        ({"march.csv": own, "april.csv": {**own, "encoding": "cp1252"}}, "", -0.5),
        ({}, "bonn", -0.5),
        ({"march.csv": {"encoding": "cp1252"}}, "bonn", -0.5),
        ({"bonn.csv": {"encoding": "cp1252"}}, "bonn", -0.5),
        ({"*": {"encoding": "cp1252"}}, "bonn", -0.5),
        ({"march.csv": {"fields": {"age": {"name": "years"}}}}, "bonn", -0.5),
        ({"march.csv": {"fields": {"sex": {"name": "Geschlecht"}}}}, "bonn", -0.5),
        ({}, "graz", 1.0),
        ({"march.csv": {"encoding": "cp1252"}}, "graz", 1.0),
    ):
        schema = parse_schema(with_files(others, files, client))
        assert schema.file("may.csv").field("age").factor == factor
        form = files.get("april.csv", files.get("*", {}))
        assert schema.file("april.csv").encoding == form.get("encoding", "utf-8")
    two = {"march.csv": own, "april.csv": {"fields": {"age": {"factor": 2.0}}}}
    with pytest.raises(SchemaError, match=r"different fields.* keep one") as refusal:
        with_files(others, two)
    assert "april" not in refusal.value.reportable
