"""A run says in one line that `fairbloom data` has remarks on its data."""

import numpy as np
import pytest

import fairbloom
from fairbloom.experiments.results.caveats import caveats_of_comparison, caveats_of_run
from fairbloom.protocol.settings import RunSettings
from fairbloom.tasks import check_data, infer_schema
from tests.tables.helpers import Folder


def site(factor: float, code: str = "") -> str:
    """Return a table with a pressure in some unit, and a target, in some rows a code."""
    random = np.random.default_rng(0)
    lines = ["pressure,target"]
    for k in range(40):
        target = code if code and k % 8 == 0 else f"{random.normal(50, 5):.1f}"
        lines.append(f"{factor * random.normal(16, 1):.2f},{target}")
    return "\n".join(lines)


def lines_on_data(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines on questions and remarks that were logged."""
    return [each.getMessage() for each in caplog.records if "on the data" in each.getMessage()]


def test_questions_are_one_line_of_a_run(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    there = folder(a=site(1.0, "-999"), b=site(7.5))
    out = {"out": there.parent / "run", "progress": False, "device": "cpu"}
    run = fairbloom.run("csv", data_dir=there, rounds=1, **out)
    # a line for each site of two in other units, and one for the code
    assert lines_on_data(caplog) == [f"3 questions on the data: see fairbloom data {there}"]
    said = "fairbloom data has 3 questions on how the files are read: pressure, target."
    assert [each for each in caveats_of_run(run) if each.endswith(said)] != []


def test_remarks_with_a_schema_are_one_line(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    there = folder(a=site(1.0, "-999"), b=site(7.5))
    settings = {"task": "csv", "data-dir": str(there)}
    schema = infer_schema(RunSettings.of(settings))
    check_data(RunSettings.of({**settings, "schema": schema}))
    assert lines_on_data(caplog) == [f"3 remarks on the data: see fairbloom data {there}"]


def test_runs_on_the_same_data_share_the_line(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    there = folder(a=site(1.0), b=site(7.5))
    settings = {"task": "csv", "data-dir": str(there), "csv.target": "pressure"}
    for seed in range(3):
        check_data(RunSettings.of({**settings, "seed": seed}))
    assert lines_on_data(caplog) == [f"2 questions on the data: see fairbloom data {there}"]


def test_data_without_remarks_have_no_line(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    check_data(RunSettings.of({"task": "csv", "data-dir": str(folder(a=site(1.0), b=site(1.01)))}))
    assert "remark" not in caplog.text


def codes(zeros: str) -> str:
    """Return a table with a column of wards, written with or without zeros."""
    lines = ["ward,age,target"]
    for k in range(60):
        lines.append(f"{zeros}{1 + k % 3},{(k * 37) % 61},{'no' if k * 7 % 5 < 2 else 'yes'}")
    return "\n".join(lines) + "\n"


def test_questions_are_in_the_reports_of_runs(folder: Folder) -> None:
    there = folder(a=codes("0"), b=codes("0"))
    out = {"progress": False, "device": "cpu", "rounds": 1}
    place = there.parent
    run = fairbloom.run("csv", data_dir=there, out=place / "run", **out)
    said = "No schema was given, and fairbloom data has 1 question on how the files are read: ward."
    assert said in caveats_of_run(run)
    assert caveats_of_comparison({"FedAvg": [run, run]}).count(said) == 1
    again = fairbloom.run("csv", data_dir=there, out=place / "run", **{**out, "rounds": 2})
    assert said in caveats_of_run(again)
    schema = place / "schema.toml"
    schema.write_text(run_schema(there))
    given = fairbloom.run("csv", data_dir=there, schema=schema, out=place / "given", **out)
    assert [each for each in caveats_of_run(given) if "question" in each] == []


def run_schema(there: object) -> str:
    """Return the schema that a folder suggests."""
    return infer_schema(RunSettings.of({"task": "csv", "data-dir": str(there)}))
