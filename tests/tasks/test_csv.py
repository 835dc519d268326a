"""Tables by a schema: how columns become inputs, targets and groups of examples."""

import json
import re
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
import torch

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import ACCURACY
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tables.cells import sort_classes
from fairbloom.tables.encoding import measure_moments
from fairbloom.tables.folders import files_in, folders_in
from fairbloom.tables.reasons import DataError
from fairbloom.tables.schema import SchemaError, parse_schema
from fairbloom.tasks import Examples, Setup, check_data, describe_data
from fairbloom.tasks.columns import ENDINGS
from fairbloom.tasks.measures import AUC, BALANCED_ACCURACY, MAE, R2, RMSE
from fairbloom.tasks.partition import split
from tests.tables.helpers import SCHEMA, Folder, config, csv_of, inferred, load, schema_with

from .made import everything

TARGET = 'target = "target"'


# Clients ------------------------------------------------------------------------------------------


def test_a_client_has_its_files_name_without_hidden_files(folder: Folder) -> None:
    there = folder(
        **{"site b": csv_of(20), "Site-A": csv_of(20), "._site": b"\x00\xff", "c.d": csv_of(20)}
    )
    (there / "notes.md").write_text("nothing")
    assert load(there).clients == ("Site-A", "c.d", "site b")


def test_one_file_with_a_client_column_equals_a_file_each(folder: Folder, tmp_path: Path) -> None:
    apart = {"a": csv_of(20, 1), "b": csv_of(30, 2)}
    rows = [(name, line) for name, text in apart.items() for line in text.splitlines()[1:]]
    mixed = [rows[k] for k in sorted(range(len(rows)), key=lambda k: (k * 7) % 50)]
    order = {name: [line for each, line in mixed if each == name] for name in apart}
    head = "age,dose,ward,target"
    single = tmp_path / "all.csv"
    single.write_text("\n".join([f"site,{head}", *(f"{name},{line}" for name, line in mixed)]))
    files = folder(**{name: "\n".join([head, *lines]) for name, lines in order.items()})
    task = load(single, client="Site")
    other = load(files)
    assert task.clients == other.clients == ("a", "b")
    stated = load(single, schema_with(('target = "target"', 'target = "target"\nclient = "site"')))
    named, said, expected = (
        [everything(part) for name in "ab" for part in each.splits(name)]
        for each in (task, stated, other)
    )
    torch.testing.assert_close([named, said], [expected, expected], rtol=0, atol=0)


def test_a_server_without_data_knows_the_model(folder: Folder) -> None:
    task = load("", SCHEMA)
    assert task.clients == ()
    assert [tuple(each.shape) for each in task.model().parameters()] == [(2, 5), (2,)]
    assert list(task.scores) == [ACCURACY, BALANCED_ACCURACY, AUC]
    with pytest.raises(FairbloomError, match="--data-dir"):
        load("")


def test_a_client_that_cannot_be_used_is_named_before_a_run(folder: Folder) -> None:
    with pytest.raises(FairbloomError, match=r"only one client, a: .* csv.client"):
        check_data(RunSettings.of(config(folder(a=csv_of(20)))))
    there = folder(a=csv_of(20), b=csv_of(3), c=csv_of(20).replace("age", "years", 1))
    with pytest.raises(FairbloomError, match=r"client b .* 3 rows.*the data of c cannot"):
        check_data(RunSettings.of(config(there)))


# Inputs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", SCHEMA])
def test_numbers_and_texts_are_prepared_by_training_rows_alone(folder: Folder, text: str) -> None:
    table = csv_of(40, seed=3)
    there = folder(a=table, b=csv_of(25, 4))
    cells = [line.split(",") for line in table.splitlines()[1:]]
    train, test, _ = split(np.arange(40), Setup.of({"seed": 5}), "a")
    for rows, examples in zip((train, test), load(there, text, seed=5).splits("a"), strict=True):
        assert isinstance(examples, Examples)
        inputs, targets = everything(examples)
        for place in (0, 1):
            values = np.array([float(row[place]) for row in cells])
            expected = (values[rows] - values[train].mean()) / values[train].std()
            np.testing.assert_allclose(inputs[:, place], expected, rtol=1e-5, atol=1e-6)
        assert targets.tolist() == [int(cells[row][3]) for row in rows]
        wards = [["north", "south", "west"].index(cells[row][2]) for row in rows]
        assert torch.equal(inputs[:, 2:], torch.eye(3)[wards])


def test_stated_center_and_scale_standardise_all_sites(folder: Folder) -> None:
    there = folder(a=csv_of(20), b=csv_of(20))
    task = load(
        there,
        schema_with(
            (
                '[fields.age]\ntype = "number"',
                '[fields.age]\ntype = "number"\ncenter = 40.0\nscale = 2',
            )
        ),
    )
    own = load(there)
    first = own.preprocessing
    assert first is not None
    column = first("a").columns[0]
    train = everything(own.splits("a").train)[0][:, 0].double() * column.scale + column.center
    np.testing.assert_allclose(
        everything(task.splits("a").train)[0][:, 0], (train - 40.0) / 2.0, rtol=1e-4
    )


def test_a_column_constant_in_training_says_nothing(folder: Folder) -> None:
    lines = csv_of(20).splitlines()
    _, test, _ = split(np.arange(20), Setup.of({}), "a")
    flat = [lines[0], *(f"0.1,{line.partition(',')[2]}" for line in lines[1:])]
    flat[test[0] + 1] = flat[test[0] + 1].replace("0.1,", "1e9,", 1)
    splits = load(folder(a="\n".join(flat), b=csv_of(20))).splits("a")
    assert not torch.cat([everything(each)[0] for each in splits])[:, 0].any()
    assert measure_moments(np.array([0.1] * 3)) == (0.1, 0.0)


def nearly_constant(values: list[str]) -> str:
    """Return a small table whose ages are these values, one after the other."""
    lines = csv_of(20).splitlines()
    ages = ["age", *(values * 20)]
    return "\n".join(
        [",".join([age, *line.split(",")[1:]]) for age, line in zip(ages, lines, strict=False)]
    )


@pytest.mark.parametrize(
    ("values", "is_constant"),
    [
        (["0.3", "0.30000000000000004"], True),
        (["1e9", "1000000000.0000001"], True),
        (["0", "0.0000001"], False),
        (["100", "100.00000001"], False),
    ],
)
def test_numbers_that_differ_by_rounding_are_constant(
    values: list[str], is_constant: bool, folder: Folder
) -> None:
    task = load(folder(a=nearly_constant(values), b=csv_of(20)), SCHEMA)
    assert (not everything(task.splits("a").train)[0][:, 0].any()) == is_constant
    assert task.preprocessing is not None
    new = task.preprocessing("a").inputs(
        {"age": np.array([0.4]), "dose": np.array([0.2]), "ward": np.array([0])}
    )
    assert abs(new[0, 0]) <= 0.0 if is_constant else 1e6


def test_numbers_far_beyond_the_others_are_cut_off(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    stated = schema_with(
        (
            '[fields.age]\ntype = "number"',
            '[fields.age]\ntype = "number"\ncenter = 0.0\nscale = 1.0',
        )
    )
    assert {
        *everything(
            load(folder(a=nearly_constant(["50", "-5e9", "60"])), stated).splits("a").train
        )[0][:, 0].tolist()
    } == {50.0, 60.0, -1e6}
    assert "column 'age': 7 numbers are more than 1e+06 deviations away" in caplog.text
    assert "the first in row 2 of the table" in caplog.text


@pytest.mark.parametrize("name", "ab")
def test_columns_may_be_in_any_order_and_case(folder: Folder, name: str) -> None:
    task = load(
        folder(a=csv_of(20, 1), b=csv_of(20, 1, "target,ward,dose,age").replace("ward", "Ward", 1)),
        SCHEMA,
    )
    other = load(folder(a=csv_of(20, 1), b=csv_of(20, 1)), SCHEMA)
    assert torch.equal(
        everything(task.splits(name).train)[0], everything(other.splits(name).train)[0]
    )


# One file by its own rules ------------------------------------------------------------------------


def test_a_files_own_names_units_and_marks_are_taken(folder: Folder) -> None:
    plain = csv_of(40, 2)
    lines = [line.split(",") for line in plain.splitlines()]
    other = ["years;dose;ward;target"]
    other += [
        f"{age.replace('.', ',')};{float(dose) * 1000:.0f} mg;{ward};{y}"
        for age, dose, ward, y in lines[1:]
    ]
    rules = '[files."b.csv"]\ndecimalChar = ","\nfields.age.name = "years"\n'
    rules += 'fields.dose = {unit = "mg", factor = 0.001}\n'
    task = load(folder(a=plain, b="\n".join(other)), SCHEMA + rules)
    (mine, targets), (same, others) = (everything(task.splits(name).train) for name in "ab")
    moments = [task.preprocessing(name).columns for name in "ab"]  # type: ignore[misc]
    whole = [split(np.arange(40), Setup.of({}), name).train for name in "ab"]
    for place, column in enumerate((0, 1)):
        numbers = np.array([float(row[column]) for row in lines[1:]])
        for inputs, columns, rows in zip((mine, same), moments, whole, strict=True):
            expected = (numbers[rows] - columns[place].center) / columns[place].scale
            np.testing.assert_allclose(inputs[:, column], expected, rtol=1e-4, atol=1e-5)
    assert targets.shape == others.shape


# Missing values -----------------------------------------------------------------------------------


def with_gaps() -> str:
    lines = csv_of(40).splitlines()
    for row, gap in zip((2, 5, 9), ("?", "NA", "n/a"), strict=True):
        lines[row] = f"{gap},{lines[row].partition(',')[2]}"
    lines[12] = lines[12].replace("west", "").replace("north", "").replace("south", "")
    lines[14] = lines[14][:-1] + "?"
    lines[16] = f"-9,{lines[16].partition(',')[2]}"
    return "\n".join(lines)


def test_what_is_done_with_missing_values_is_said(folder: Folder) -> None:
    there = folder(a=with_gaps(), b=csv_of(20))
    with pytest.raises(
        FairbloomError, match=r"line 3, column 'age' holds '\?'.*missing = \"drop\""
    ):
        load(there).splits("a")
    assert 'missing = "error"  # 5 cells' in inferred(there)

    def inputs_by(missing: str) -> torch.Tensor:
        how = (
            f'target = "target"\nmissing = "{missing}"\nmissingValues = ["", "?", "NA", "N/A", -9]'
        )
        splits = load(there, schema_with(('target = "target"', how))).splits("a")
        return torch.cat([everything(each)[0] for each in splits])

    assert len(inputs_by("drop")) == 34
    filled = inputs_by("fill")
    assert len(filled) == 39  # without the row that has no target
    assert int((filled[:, 0] == 0.0).sum()) == 4  # the mean, once standardised
    assert int((filled[:, 2:].sum(dim=1) == 0.0).sum()) == 1
    one = schema_with(
        ('target = "target"', 'target = "target"\nmissing = "drop"'),
        ('type = "number"', 'type = "number"\nmissing = "fill"'),
    )
    assert sum(map(len, load(there, one).splits("a"))) == 38


def test_a_lacking_column_is_filled_where_that_is_said(folder: Folder) -> None:
    there = folder(a=csv_of(20, 1, "age,dose,target"), b=csv_of(20), c=csv_of(20))
    with pytest.raises(FairbloomError, match="no column 'ward'"):
        load(there).splits("a")
    assert not everything(
        load(there, schema_with(('"west"]', '"west"]\nmissing = "fill"'))).splits("a").train
    )[0][:, 2:].any()


# Targets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        (["yes", "no"], "auto", ("no", "yes")),
        (["10", "9", "100"], "auto", ("9", "10", "100")),
        (["1.0", "0.0"], "auto", ("0", "1")),
        (["0", "1"] * 600, "auto", ("0", "1")),
        ([str(k) for k in range(1200)], "auto", ()),
        (["0.5", "1"], "auto", ()),
        ([str(k) for k in range(101)], "auto", ()),
        ([str(k) for k in range(100)], "auto", tuple(str(k) for k in range(100))),
        (["1", "2"], "regression", ()),
        (["0.5", "1"], "classification", ("0.5", "1")),
    ],
)
def test_what_the_target_is_is_seen_from_its_values_or_said(
    folder: Folder, values: list[str], kind: str, classes: tuple[str, ...]
) -> None:
    rows = 4 * len(values) + (10 if kind == "auto" else 2000)
    table = "\n".join(["x,y", *(f"{k},{values[k % len(values)]}" for k in range(rows))])
    task = load(folder(a=table, b=table), kind=kind)
    assert task.class_names == classes
    assert task.score == (ACCURACY if classes else MAE)
    assert (AUC in task.scores) == (len(classes) == 2)


def test_a_name_that_a_file_lacks_is_quoted(folder: Folder) -> None:
    there = folder(a=csv_of(30), b=csv_of(30).replace("age", "Alter"))
    own = SCHEMA + "[files.'b.csv']\nfields.age = {name = 'Altre'}\n"
    task = load(there, own)
    with pytest.raises(DataError, match=r"no column 'Altre'.* call 'age' .*did you mean Alter\?"):
        task.splits("b")
    load(there, own.replace("Altre", "ALTER")).splits("b")
    strange = SCHEMA + "[files.'A.csv']\nfields.age = {factor = 2.0}\n"
    with pytest.raises(SchemaError, match=r"A\.csv: .* no such file: did you mean a\.csv"):
        check_data(RunSettings.of(config(folder(b=csv_of(30)), strange)))
    # A site checks its own file by the schema of all.
    alone = folder(c=csv_of(30))
    for file in (alone / "a.csv", alone / "b.csv"):
        file.unlink()
    check = load(alone, strange).describe
    assert check is not None
    check(False)


def test_a_quantity_is_learned_in_stated_units(folder: Folder, tmp_path: Path) -> None:
    def table(seed: int) -> str:
        x = np.random.default_rng(seed).normal(size=60)
        return "\n".join(["x,label", *(f"{a!r},{200_000 + 50_000 * a!r}" for a in x.tolist())])

    there = folder(a=table(1), b=table(2))
    settings = {"task": "csv", "data-dir": str(there), "num-rounds": 30, "fraction": 1.0}
    run = simulate(Settings.of({**settings, "device": "cpu", "out": str(tmp_path / "run")}))
    scores = json.loads((run / "scores.json").read_text())
    assert [each["name"] for each in scores] == ["mae", "r2", "rmse"]
    assert not scores[0]["higher_is_better"]
    rows = (run / "clients.csv").read_text().splitlines()
    first, last = (
        dict(zip(rows[0].split(","), row.split(","), strict=True)) for row in (rows[1], rows[-1])
    )
    assert float(first["test_mae_of_global_model"]) > 2 * float(last["test_mae_of_global_model"])
    # of hundreds of thousands, not of units of scale
    assert float(first["test_mae_of_global_model"]) > 100.0
    assert (run / "schema.toml").read_text() == inferred(there)
    task = load(there)
    assert task.preprocessing is not None
    scale = task.preprocessing("").target_scale
    _, targets = everything(task.splits("a").test)
    answers = targets[:, None] + 0.5
    assert float(torch.as_tensor(task.scores[MAE](answers, targets)).mean()) == pytest.approx(
        scale / 2, rel=1e-4
    )
    assert task.scores[RMSE](answers, targets) == pytest.approx(scale / 2, rel=1e-4)
    assert task.scores[R2](targets[:, None], targets) == pytest.approx(1.0)


def test_a_client_may_lack_classes(folder: Folder) -> None:
    task = load(
        folder(a=csv_of(20).replace(",1\n", ",0\n"), b=csv_of(20)),
        schema_with(("[0, 1]", "[1, 0]")),
    )
    assert task.class_names == ("1", "0")
    assert everything(task.splits("a").train)[1].unique().tolist() == [1]


def test_categories_are_in_order_of_numbers_or_the_alphabet() -> None:
    assert sort_classes(["10", "9", "-1.5"]) == ["-1.5", "9", "10"]
    assert sort_classes(["b", "10", "9"]) == ["10", "9", "b"]


@pytest.mark.parametrize(
    "names",
    [
        ["10", "9", "-1.5"],
        ["nan", "10", "9"],
        ["b", "10", "9"],
        ["1_0", "9"],
        ["inf", "2"],
    ],
)
def test_the_order_of_categories_is_not_that_of_rows(names: list[str]) -> None:
    assert sort_classes(names) == sort_classes(names[::-1])


def with_patients(rows: int, seed: int, each: int = 3) -> str:
    """Return a table with a column of patients, who have several rows each; one has no name."""
    head, *lines = csv_of(rows, seed).splitlines()
    named = (f"{f'p{k // each}' if k else ''},{line}" for k, line in enumerate(lines))
    return "\n".join([f"patient,{head}", *named])


def test_no_unit_is_split(folder: Folder, subtests: pytest.Subtests) -> None:
    there = folder(a=with_patients(60, 1), b=with_patients(60, 2))
    by_setting = load(there, unit="patient")
    text = schema_with((TARGET, f'{TARGET}\nunit = "patient"'))
    for task in (by_setting, load(there, text)):
        with subtests.test(schema=task.schema):
            train, test = task.splits("a")
            assert train.inputs.shape[1] == 5  # as without the patients
            assert len(train) + len(test) == 60
            trained, tested = (
                {k // 3 if k else -1 for k in each.rows.tolist()} for each in (train, test)
            )
            assert not trained & tested
            assert len(test) == pytest.approx(12, abs=3)
    with pytest.raises(FairbloomError, match="inference of a schema"):
        load(there, text, unit="patient")


@pytest.mark.parametrize("marker", ["", "NA", "#n/a", " nan "])
def test_a_row_without_a_unit_is_one_of_its_own(folder: Folder, marker: str) -> None:
    missing = re.sub("p[0-9],", f"{marker},", with_patients(60, 1))  # of 30 rows
    text = schema_with((TARGET, f'{TARGET}\nunit = "patient"'))
    train, test = load(folder(a=missing, b=with_patients(60, 2)), text).splits("a")
    assert len({*train.units.tolist(), *test.units.tolist()}) == 40
    found = describe_data(RunSettings.of(config(folder(), text)))["remarks"]
    counts = {row["client"]: row["remark"] for row in found if row["column"] == "patient"}
    assert counts["a"].startswith("30 rows have none")
    assert counts["b"].startswith("1 row has none")


@pytest.mark.parametrize("name", ["NA", "nan", "#N/A"])
def test_a_row_without_a_client_is_a_fault(folder: Folder, name: str) -> None:
    head, *lines = csv_of(60).splitlines()
    sites = [f"s{k % 3}" for k in range(54)] + [name] * 6
    rows = [f"{site},{line}" for site, line in zip(sites, lines, strict=True)]
    there = folder(all="\n".join([f"site,{head}", *rows])) / "all.csv"
    text = f'client = "site"\n{SCHEMA}'
    with pytest.raises(DataError, match=r"line 56, .* names no client.* say missingValues"):
        load(there, text)
    with pytest.raises(DataError, match="line 56"):
        load(there, client="site")
    # The remedy: NA may be Namibia.
    assert name in load(there, f'missingValues = [""]\n{text}').clients


def test_a_unit_may_have_another_name_in_a_file(folder: Folder) -> None:
    text = inferred(
        folder(a=with_patients(60, 1), b=with_patients(60, 2).replace("patient", "Patient.")),
        unit="patient",
    )
    assert 'fields.patient.name = "Patient."' in text
    task = load(folder(), text)
    assert all(10 <= len(task.splits(name).test) <= 14 for name in "ab")


def test_units_that_cannot_be_split_are_faults(folder: Folder) -> None:
    there = folder(a=with_patients(60, 1), b=csv_of(60, 2), c=with_patients(60, 3, each=99))
    text = schema_with((TARGET, f'{TARGET}\nunit = "patient"'))
    task = load(there, text)
    with pytest.raises(FairbloomError, match="has no column 'patient', the schema's unit: add it"):
        task.splits("b")
    (there / "c.csv").write_text(with_patients(60, 3, each=99).replace("\n,", "\np0,"))
    with pytest.raises(DataError, match="1 value in column 'patient'") as caught:
        load(there, text).splits("c")
    assert caught.value.reportable == (
        "it has 1 different values in the schema's column of units, and at least 2 are needed"
    )
    for column in ("target", "site"):
        with pytest.raises(FairbloomError, match="unit = "):
            parse_schema(f'unit = "{column}"\nclient = "site"\n{SCHEMA}')


def test_missing_values_are_dropped_or_filled_by_a_setting(folder: Folder) -> None:
    there = folder(a=csv_of(30).replace("north", "", 2), b=csv_of(30))
    with pytest.raises(FairbloomError, match="no value"):
        load(there).splits("a")
    assert sum(map(len, load(there, missing="fill").splits("a"))) == 30
    assert sum(map(len, load(there, missing="drop").splits("a"))) == 28
    with pytest.raises(FairbloomError, match="inference of a schema"):
        load(there, SCHEMA, missing="drop")


def test_categories_match_in_any_case_that_is_no_other_category(folder: Folder) -> None:
    plain = csv_of(30)
    text = plain.replace("north", "North").replace("south", "SOUTH")
    assert torch.equal(
        everything(load(folder(a=text, b=plain), SCHEMA).splits("a").train)[0],
        everything(load(folder(a=plain, b=plain), SCHEMA).splits("a").train)[0],
    )
    # North is a category of its own now, and SOUTH still is south.
    north, south, _, own = everything(
        load(folder(a=text), schema_with(('"west"]', '"west", "North"]'))).splits("a").train
    )[0].T[2:]
    assert not north.any()
    assert south.any()
    assert own.any()
    # A marker of a missing value is no spelling of sodium.
    text = plain.replace("north", "Na").replace("south", "NA")
    sodium = schema_with(("north", "Na"), (TARGET, f'{TARGET}\nmissing = "fill"'))
    assert everything(load(folder(a=text), sodium).splits("a").train)[0][:, 3].sum() == 0


def test_names_of_clients_are_nfc_however_a_system_writes_them(tmp_path: Path) -> None:
    """macOS writes e and an accent, where a user types one letter."""
    decomposed = normalize("NFD", "Genève")
    (tmp_path / f"{decomposed}.csv").write_text("age,target\n50,1\n40,0\n")
    assert list(files_in(str(tmp_path), ENDINGS)) == ["Genève"]
    (tmp_path / "Genève.csv").write_text("age,target\n50,1\n40,0\n")
    with pytest.raises(FairbloomError, match="would both be client Genève: rename one"):
        files_in(str(tmp_path), ENDINGS)
    for name in (decomposed, "Genève"):
        (tmp_path / "folders" / name).mkdir(parents=True)
    with pytest.raises(FairbloomError, match="would both be client Genève: rename one"):
        folders_in(str(tmp_path / "folders"))
