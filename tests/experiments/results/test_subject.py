"""What a report says that it is about: data, target, clients, rows, date, and references of scores."""

import hashlib
from datetime import date
from pathlib import Path
from shutil import copytree, ignore_patterns

import numpy as np
import pandas
import pytest

from fairbloom.experiments import api
from fairbloom.experiments.pages.about import WORDS
from fairbloom.experiments.results.caveats import caveats_of_comparison, caveats_of_run
from fairbloom.experiments.results.presentation import page_of, write_report
from fairbloom.experiments.results.run import Run, load
from fairbloom.experiments.results.subject import Subject, facts_of
from fairbloom.protocol.scores import F1, Score
from fairbloom.server.run_folder.csv_rows import SHARE_OF_LARGER_CLASS
from fairbloom.server.run_folder.files import COUNTS, ENVIRONMENT, EXAMPLES, SCHEMA
from fairbloom.strategies import METHODS
from fairbloom.tasks import TASKS, load_task
from fairbloom.tasks.measures import AUC, BALANCED_ACCURACY, MAE, R2, RMSE

from ..helpers import captured
from ..pages.parsed import Parsed

CLASSES = """
target = "ill"
positive = "yes"
unit = "person"
[fields.x]
type = "number"
[fields.ill]
type = "string"
categories = ["no", "yes"]
"""

THREE = CLASSES.replace('positive = "yes"\n', "").replace('"no", "yes"', '"I", "II", "III"')

QUANTITY = """
target = "days"
[fields.x]
type = "number"
[fields.days]
type = "number"
unit = "d"
center = 5.0
scale = 2.0
"""


def write_wards(folder: Path) -> dict[str, pandas.DataFrame]:
    """Write two wards of persons with two rows each; in the second ward all but a few are ill."""
    draws = np.random.default_rng(0)
    frames = {}
    folder.mkdir()
    for name, ill in (("north", 0.3), ("south", 0.9)):
        frame = pandas.DataFrame(
            {"person": np.repeat(np.arange(40), 2), "x": draws.normal(size=80)}
        )
        frame["ill"] = np.where(draws.random(80) < ill, "yes", "no")
        frame["days"] = (5.0 + 2.0 * frame["x"] + draws.normal(size=80)).round(2)
        frame.to_csv(folder / f"{name}.csv", index=False)
        frames[name] = frame
    return frames


def run_wards(
    folder: Path,
    schema: str,
    ignored: str = "days",
    rounds: int = 2,
    **settings: float | str,
) -> Run:
    return api.run(
        "csv",
        data_dir=folder / "wards",
        schema=f'ignore = ["{ignored}"]\n{schema}',
        rounds=rounds,
        out=folder / "run",
        settings=settings,
        progress=False,
    )


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, pandas.DataFrame]]:
    folder = tmp_path_factory.mktemp("wards")
    frames = write_wards(folder / "wards")
    return run_wards(folder, CLASSES), frames


def test_facts_name_what_of_whom_how_many_and_when(
    wards: tuple[Run, dict[str, pandas.DataFrame]],
) -> None:
    run, frames = wards
    tested = sum(run.test_examples().values())
    assert facts_of(Subject.of(run), [run]) == {
        "predicted": "ill: no, yes, of which yes is positive",
        "data": "wards",
        "clients": "2",
        "rows": f"{sum(map(len, frames.values()))}, of which for testing: {tested}",
        "unit": "person: all its rows are for training, or all for testing",
        "date": f"{date.today():%Y-%m-%d}",
        "schema": hashlib.sha256(SCHEMA.read(run.folder).encode()).hexdigest()[:12],
        "Fairbloom": "0.1.0",
    }
    assert page_of(run).title == "FedAvg: ill predicted from the data in wards"


def test_each_client_has_its_rows_units_and_share(
    wards: tuple[Run, dict[str, pandas.DataFrame]],
) -> None:
    run, frames = wards
    counts = EXAMPLES.read(run.folder)[COUNTS]
    for name, frame in frames.items():
        per_class = [int((frame["ill"] == each).sum()) for each in ("no", "yes")]
        splits = load_task(run.settings).splits(name)
        share = splits.test.all_targets.double().mean().item()
        assert counts[name] == {
            "train": len(splits.train),
            "examples": 80,
            "units": 40,
            "classes": per_class,
            "accuracy": pytest.approx(100.0 * max(share, 1.0 - share)),
        }
    (about,) = page_of(run).about
    clients = about.blocks[1]
    assert list(clients.headings) == [
        *("client", "rows", "for training", "of different person", "yes, %")
    ]
    shares = {row[0].text: row[-1].text for row in clients.rows}
    assert shares == {
        name: f"{100 * (frame['ill'] == 'yes').mean():.0f}" for name, frame in frames.items()
    }


def test_a_range_of_dates_and_unknown_facts(
    wards: tuple[Run, dict[str, pandas.DataFrame]], tmp_path: Path
) -> None:
    run, _ = wards
    runs = []
    for name, day in (("b", "2026-02-03"), ("a", "2026-02-01"), ("c", "")):
        lacking = ignore_patterns(EXAMPLES.name, SCHEMA.name)
        folder = copytree(run.folder, tmp_path / name, ignore=lacking)
        about = {"date": day, "fairbloom": "0.2"} if day else {"fairbloom": "0.2"}
        ENVIRONMENT.write(folder, about)
        runs.append(load(folder))
    facts = facts_of(Subject.of(runs[0]), runs)
    assert facts["date"] == "2026-02-01 to 2026-02-03"
    tested = sum(run.test_examples().values())
    assert facts["rows"] == f"{tested} for testing"  # a server knows no more
    assert not {"unit", "schema"} & facts.keys()
    assert page_of(runs[0]).title == "FedAvg on csv"
    known = page_of(runs[0]).about[0].blocks[1]
    assert known.headings == ["client", "test examples", "larger class, %"]
    assert {row[0].text: row[1].value for row in known.rows} == run.test_examples()


def test_a_reference_is_that_of_its_score(
    wards: tuple[Run, dict[str, pandas.DataFrame]],
) -> None:
    run, frames = wards
    subject = Subject.of(run)
    names = [*frames]
    assert subject.references(BALANCED_ACCURACY) == dict.fromkeys(names, 50.0)
    assert subject.references(AUC) == dict.fromkeys(names, 0.5)
    assert subject.references(F1) == {}
    assert subject.references(Score("profit")) == {}
    for name in names:
        targets = load_task(run.settings).splits(name).test.all_targets.numpy()
        share = 100.0 * max(targets.mean(), 1.0 - targets.mean())
        accuracy = Score("accuracy", percent=True)
        assert subject.references(accuracy)[name] == pytest.approx(share)


def test_one_class_among_the_tests_has_no_reference(tmp_path: Path) -> None:
    folder = tmp_path / "wards"
    frames = write_wards(folder)
    frames["south"].assign(ill="yes").to_csv(folder / "south.csv", index=False)
    run = run_wards(tmp_path, CLASSES, score="balanced-accuracy")
    assert Subject.of(run).references(BALANCED_ACCURACY) == {"north": 50.0}
    said = caveats_of_run(run)
    assert [each for each in said if "south" in each] == [
        "The balanced accuracy of a client with test examples of one class is the recall of that"
        " class: south."
    ]
    rare = [each for each in said if each.startswith("Few test examples of")]
    targets = load_task(run.settings).splits("north").test.all_targets
    few = int(min((targets == place).sum() for place in (0, 1)))
    assert rare == [f"Few test examples of the rarer class: north {few}."] * (few < 5)
    text = write_report(run, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "No reference: south, with one class among the test examples, or on a device" in text
    rows = {row[0]: row for row in Parsed.of(text).tables["clients"]}
    place = rows["client"].index("guessing, %")
    assert (rows["north"][place], rows["south"][place]) == ("50.0", "–")


def test_one_class_of_three_among_the_tests_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "wards"
    for name, frame in write_wards(folder).items():
        stages = np.where(name == "south", "I", np.resize(["I", "II", "III"], len(frame)))
        frame.assign(ill=stages).to_csv(folder / f"{name}.csv", index=False)
    run = run_wards(tmp_path, THREE)
    assert run.column(SHARE_OF_LARGER_CLASS) == {}
    for said in (caveats_of_run(run), caveats_of_comparison({"FedAvg": [run]})):
        assert [each for each in said if each.startswith("The balanced accuracy of")] == [
            "The balanced accuracy of a client with test examples of one class is the recall of"
            " that class: south."
        ]


def test_an_error_stands_beside_that_of_the_mean(tmp_path: Path) -> None:
    frames = write_wards(tmp_path / "wards")
    run = run_wards(tmp_path, QUANTITY, ignored='person", "ill')
    subject = Subject.of(run)
    parts = load_task(run.settings).parts
    for name, frame in frames.items():
        rows = parts(name)
        days = frame["days"].to_numpy()
        errors = days[rows["test"]] - days[rows["train"]].mean()
        assert subject.references(MAE)[name] == pytest.approx(np.abs(errors).mean(), rel=1e-5)
        assert subject.references(RMSE)[name] == pytest.approx(
            np.sqrt(np.square(errors).mean()), rel=1e-5
        )
    assert subject.references(R2) == dict.fromkeys(frames, 0.0)
    assert facts_of(Subject.of(run), [run])["predicted"] == "days, in d"
    assert "mean as prediction" in page_of(run).sections[0].blocks[-1].headings


def test_a_title_is_that_of_the_option(
    wards: tuple[Run, dict[str, pandas.DataFrame]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, _ = wards
    file = tmp_path / "r.html"
    captured(capsys, "report", run.folder, "--out", file, "--title", "Falls <in> two wards")
    text = file.read_text(encoding="utf-8")
    assert "<h1>Falls &lt;in&gt; two wards</h1>" in text
    captured(capsys, "report", run.folder, "--out", file)
    assert "<h1>FedAvg: ill predicted from the data in wards</h1>" in file.read_text(
        encoding="utf-8"
    )


def test_words_are_said_once_and_only_if_they_are_there(tmp_path: Path) -> None:
    api.compare(
        "digits",
        methods="fedavg,ditto,local",
        seeds=2,
        rounds=2,
        clients=4,
        out=tmp_path,
        progress=False,
    )
    page = Parsed.of((tmp_path / "report.html").read_text(encoding="utf-8"))
    words = [row[0] for row in page.tables["words"][1:]]
    assert page.tables["words"][1:4] == [
        [title, " ".join(METHODS[title.lower()].__doc__.partition("\n\n")[0].split())]
        for title in ("FedAvg", "Ditto", "Local")
    ]
    assert len(words) == len({*words})
    assert {"seed", "accuracy", "personal"} <= {*words}
    assert not {"AUC", "R²", "sensitivity"} & {*words}
    assert {*words[3:]} <= WORDS.keys()
    facts = dict(row for row in page.tables["about"][1:])
    assert facts.items() >= {
        ("predicted", "digits: 10 classes"),
        ("data", TASKS["digits"].summary),
    }


def test_of_three_classes_the_largest_is_the_reference(tmp_path: Path) -> None:
    frames = write_wards(tmp_path / "wards")
    for name, frame in frames.items():
        kinds = np.resize(["no", "yes", "late", "yes"], len(frame))
        frame.assign(ill=kinds).to_csv(tmp_path / "wards" / f"{name}.csv", index=False)
    three = CLASSES.replace('["no", "yes"]', '["no", "yes", "late"]')
    run = run_wards(tmp_path, three.replace('positive = "yes"\n', ""), score="accuracy")
    references = Subject.of(run).references(run.score)
    assert references.keys() == frames.keys()
    for name, found in references.items():
        targets = load_task(run.settings).splits(name).test.all_targets
        assert found == pytest.approx(100.0 * (targets == 1).double().mean().item())
    assert facts_of(Subject.of(run), [run])["predicted"] == "ill: no, yes, late"


def test_a_run_without_test_rows_has_no_empty_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = write_wards(tmp_path / "wards")
    schema = CLASSES.replace("[fields.x]", 'groups = ["x>=0"]\n[fields.x]', 1)
    run = run_wards(tmp_path, schema, **{"test-share": 0.0})
    assert facts_of(Subject.of(run), [run])["clients"] == "2"
    page = Parsed.of(write_report(run, tmp_path / "report.html").read_text(encoding="utf-8"))
    assert [row[0] for row in page.tables["about-clients"]] == ["client", *sorted(frames)]
    assert not {"groups", "gaps", "clients"} & page.tables.keys()
    assert all(len(rows) > 1 for rows in page.tables.values())
    run.show()
    assert "Groups" not in capsys.readouterr().out


def test_an_extended_run_counts_as_one_that_is_not(tmp_path: Path) -> None:
    write_wards(tmp_path / "wards")
    before = EXAMPLES.read(run_wards(tmp_path, CLASSES).folder)
    assert before.keys() == {COUNTS}
    assert EXAMPLES.read(run_wards(tmp_path, CLASSES, rounds=3).folder) == before
