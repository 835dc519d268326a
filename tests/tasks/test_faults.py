"""What `fairbloom data` finds in a folder of tables: every fault, spellings, and rows that clients share."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.protocol.parameters import parsed
from fairbloom.tasks import describe_data, find_task
from fairbloom.tasks.files.shared_rows import find_shared_rows

from ..commands import fairbloom
from .tables import agreed, config, csv_of, told_by


def problems(folder: Path, **settings: Any) -> dict[str, str]:
    rows = describe_data(config(folder, **settings))["clients"]
    return {str(row["client"]): str(row["problem"]) for row in rows if "problem" in row}


def warnings(folder: Path, **settings: Any) -> dict[str, str]:
    rows = describe_data(config(folder, **settings))["clients"]
    return {str(row["client"]): str(row["warning"]) for row in rows if "warning" in row}


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def change(text: str, column: str, **values: str) -> str:
    """Return a table with other values in a column, by the numbers of rows as in row3='x'."""
    rows = list(csv.reader(io.StringIO(text)))
    for row, value in values.items():
        rows[int(row.removeprefix("row"))][rows[0].index(column)] = value
    return "\n".join(map(",".join, rows)) + "\n"


# Every fault ----------------------------------------------------------------------------------------------------------


def test_data_shows_every_fault_of_a_file(tmp_path: Path) -> None:
    text = change(change(csv_of(30), "age", row3="old", row7="x1"), "dose", row9="?")
    text = change(text, "ward", row4="North")
    found = problems(write(tmp_path, a=text, b=csv_of(30, 1)))["a"].split("\n")
    assert [each for each in found if "line 4, column 'age' holds 'old'" in each]
    assert [each for each in found if "line 8, column 'age' holds 'x1'" in each]
    assert [each for each in found if "line 10, column 'dose' has no value" in each]
    assert [each for each in found if "'north'" in each and "'North'" in each]
    assert len(found) == 4


def test_data_shows_all_rows_of_the_wrong_length(tmp_path: Path) -> None:
    lines = csv_of(30).splitlines()
    for number in (4, 9, 17):
        lines[number] += ",1"
    found = problems(write(tmp_path, a="\n".join(lines), b=csv_of(30, 1)))["a"].split("\n")
    assert [each.split(" has ")[0].rsplit(" ", 1)[1] for each in found] == ["5", "10", "18"]


def test_the_list_of_faults_is_bounded(tmp_path: Path) -> None:
    text = csv_of(200)
    for row in range(1, 60):
        text = change(text, "age", **{f"row{row}": f"x{row}"})
    text = change(text, "dose", row70="y")
    found = problems(write(tmp_path, a=text, b=csv_of(30, 1)))["a"].split("\n")
    assert len(found) == 11
    assert found[-1] == "and 1 more"


def test_a_run_names_the_first_fault(tmp_path: Path) -> None:
    text = change(csv_of(30), "age", row3="old", row7="x1")
    write(tmp_path / "data", a=text, b=csv_of(30, 1))
    done = fairbloom(tmp_path, "run", "--task", "csv", "--data-dir", "data", "--rounds", "1")
    assert done.returncode == 2
    assert "line 4, column 'age' holds 'old'" in done.stderr
    assert "x1" not in done.stderr


def test_a_faulty_target_is_not_called_missing(tmp_path: Path) -> None:
    text = change(csv_of(30), "target", **{f"row{row}": "1.5" for row in range(1, 31)})
    assert "decimal" in problems(write(tmp_path, a=text, b=text), decimal=",")["a"]


# Spellings ------------------------------------------------------------------------------------------------------------


def spelled(*wards: str, rows: int = 40, seed: int = 0) -> str:
    return change(csv_of(rows, seed), "ward", **{f"row{k + 1}": wards[k % len(wards)] for k in range(rows)})


def test_spellings_of_a_category_are_refused_in_a_file(tmp_path: Path) -> None:
    folder = write(tmp_path, a=spelled("Yes", "No", "yes", "no"), b=spelled("Yes", "No", seed=1))
    (problem,) = problems(folder).values()
    assert "column 'ward' holds 'Yes' and 'yes'" in problem
    assert "csv.categories=ward" in problem
    assert problems(folder, categories="ward") == {}
    found = agreed(config(folder, categories="ward"))[1]
    assert next(each for each in found["inputs"] if each["name"] == "ward")["categories"] == ["No", "Yes", "no", "yes"]


def test_spellings_of_a_category_are_refused_among_files(tmp_path: Path) -> None:
    yes, other = ("Yes", "No"), ("yes", "No")
    folder = write(tmp_path, a=spelled(*yes), b=spelled(*other, seed=1), c=spelled(*yes, seed=2))
    found = problems(folder)
    assert found.keys() == {"b"}
    assert "'yes'" in found["b"]
    assert "'Yes'" in found["b"]
    assert problems(folder, categories="ward") == {}
    assert find_task("csv").agreement(told_by(config(folder)))[1].keys() == {"b"}


def test_spellings_of_a_class_are_refused_in_a_file(tmp_path: Path) -> None:
    names = ("Yes", "No", "yes", "no")
    text = change(csv_of(40), "target", **{f"row{k + 1}": names[k % 4] for k in range(40)})
    folder = write(tmp_path, a=text, b=text.replace("50", "51"))
    assert "'Yes' and 'yes', which would be two classes" in problems(folder)["a"]
    assert problems(folder, classes="Yes,No,yes,no") == {}


# Rows that clients share ----------------------------------------------------------------------------------------------


def test_a_copied_file_is_warned_of(tmp_path: Path) -> None:
    write(tmp_path / "data", a=csv_of(40), b=csv_of(40), c=csv_of(40, 2))
    found = warnings(tmp_path / "data")
    assert found == {"a": "it has the same rows as b: leave one of the two out", "b": found["b"]}
    done = fairbloom(tmp_path, "data", "data")
    assert done.returncode == 1
    assert "it has the same rows as b" in done.stdout
    (tmp_path / "data/b.csv").unlink()
    assert fairbloom(tmp_path, "data", "data").returncode == 0


def test_rows_of_one_client_in_another_file_are_warned_of(tmp_path: Path) -> None:
    own, lines = csv_of(40), csv_of(80, 2).splitlines()
    columns = [2, 0, 3, 1]  # in another order, and written otherwise
    other = ["ward,age,target,dose", *(",".join(line.split(",")[k] for k in columns) for line in lines[1:])]
    copied = [",".join((f"{row[0]}0", *row[1:])) for row in (line.split(",") for line in own.splitlines()[1:])]
    other += [",".join(line.split(",")[k] for k in columns) for line in copied]
    found = warnings(write(tmp_path, a=own, b="\n".join(other)))
    assert "40 of its 40 rows are in the data of b" in found["a"]
    assert "40 of its 120 rows are in the data of a" in found["b"]


def test_rows_of_a_client_column_are_compared_too(tmp_path: Path) -> None:
    rows = csv_of(40).splitlines()[1:]
    lines = ["site,age,dose,ward,target", *(f"{site},{row}" for site in ("north", "south") for row in rows)]
    (tmp_path / "all.csv").write_text("\n".join(lines))
    assert warnings(tmp_path / "all.csv", client="site").keys() == {"north", "south"}


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_rows_of_few_values_are_no_warning(columns: int) -> None:
    random = np.random.default_rng(columns)
    for _ in range(50):
        sizes = {"a": 60, "b": 200, "c": 900}
        drawn = {name: random.integers(0, 10**columns, size).astype(np.uint64) for name, size in sizes.items()}
        assert find_shared_rows(drawn) == {}


def test_different_hospitals_are_no_warning(tmp_path: Path) -> None:
    assert warnings(write(tmp_path, a=csv_of(300), b=csv_of(300, 1), c=csv_of(30, 2))) == {}


# Messages -------------------------------------------------------------------------------------------------------------


def test_the_columns_of_an_error_are_all_named(tmp_path: Path) -> None:
    names = [f"column{k}" for k in range(15)]
    table = "\n".join([",".join([*names, "target"]), *(",".join(["1.5"] * 15 + [str(k % 2)]) for k in range(20))])
    (problem,) = set(problems(write(tmp_path, a=table), target="outcome").values())
    assert all(name in problem for name in names)
    (problem, *_) = problems(write(tmp_path, a=table, b=csv_of(30)), group="").values()
    assert "more" not in problem


def test_ignored_columns_of_unreadable_files_are_no_error(tmp_path: Path) -> None:
    bad = change(csv_of(30, columns="age,dose,ward,target"), "age", row3="old").replace("dose", "case", 1)
    found = problems(write(tmp_path, a=csv_of(30, columns="age,ward,target"), b=bad), ignore="case")
    assert found.keys() == {"b"}


@pytest.mark.parametrize(("cell", "decimal"), [(",9", "."), (".9", ","), ("-,5", ".")])
def test_short_decimals_with_the_other_mark_are_named(tmp_path: Path, cell: str, decimal: str) -> None:
    text = csv_of(30).replace(",", ";")
    for row in range(1, 31):
        text = "\n".join(
            ";".join((cell.replace("9", str(row)), *line.split(";")[1:])) if k == row else line
            for k, line in enumerate(text.splitlines())
        )
    text = text if decimal == "." else text.replace("0.", "0,").replace(".", ",").replace(",", ".", 30)
    assert "column 'age'" in problems(write(tmp_path, a=text, b=text), decimal=decimal, ignore="dose")["a"]


def test_data_in_a_pipe_has_no_trailing_spaces(tmp_path: Path) -> None:
    write(tmp_path / "data", a=change(csv_of(30), "age", row3="old"), b=csv_of(30, 1))
    lines = fairbloom(tmp_path, "data", "data").stdout.splitlines()
    assert lines
    assert all(line == line.rstrip() for line in lines)


def test_settings_take_numbers_without_a_leading_zero() -> None:
    assert [parsed(each) for each in (".9", "-.5", "+.25", ".x", "a.9")] == [0.9, -0.5, 0.25, ".x", "a.9"]


def test_a_file_without_a_header_is_told_so(tmp_path: Path) -> None:
    rows = [f"{k % 3}{'abc'[k % 3]},{'mf'[k % 2]},{'qn'[k % 2]},ward,{40 + k}" for k in range(30)]
    (problem,) = set(problems(write(tmp_path, a="\n".join(rows))).values())
    assert "looks like a value: the first line must name the columns" in problem
    named = write(tmp_path / "named", a="\n".join(["a,b,c,d,e", *rows]))
    assert "looks like a value" not in problems(named)["a"]
