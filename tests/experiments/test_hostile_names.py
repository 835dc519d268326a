"""Hostile names of clients and groups are no commands to a terminal or a spreadsheet.

A newcomer's faults end in one sentence with a remedy, before anything is trained.
"""

import csv
import sys
from pathlib import Path

import pytest

import fairbloom as library
from fairbloom.experiments.study import Study
from fairbloom.logs import escape_unprintable, log
from fairbloom.server.run_folder.tables import TableWriter, escape_formula, format_csv, read_table

from ..tables.helpers import grouped
from .helpers import SMALL, as_json, fairbloom, refusal

CLIENTS = ("=cmd|' /C calc'!A0", "@SUM(1+2)", "'=quoted", "plain\x1b[31m", "-5")
GROUPS = ("=1+2", "\x1b]0;title\x07x", "+1-2", "m")


def write_table(path: Path) -> None:
    """Write one file of five clients with hostile names, and rows in hostile groups."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("age", "who", "group", "target"))
        for number in range(400):
            client = CLIENTS[number % 5]
            group = GROUPS[number // 5 % 4]
            writer.writerow((20 + number * 7 % 60, client, group, "sick" if number % 3 else "well"))


WORDS = (
    "--task",
    "csv",
    "--data-dir",
    "data.csv",
    "--schema",
    "schema.toml",
    "--set",
    "test-share=0.5",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    write_table(folder / "data.csv")
    text = grouped(folder / "data.csv", "group", client="who")
    (folder / "schema.toml").write_text(
        text.replace("[fields.group]", "[fields.group]\ninput = false")
    )
    words = (
        "--methods",
        "fedavg,afl",
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--out",
        "compared",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert fairbloom("compare", *WORDS, *words) == 0
    return folder


def test_no_cell_of_a_written_table_is_a_formula(folder: Path, subtests: pytest.Subtests) -> None:
    tables = [*folder.rglob("*.csv")]
    assert {"clients.csv", "groups.csv", "comparison.csv", "differences.csv"} <= {
        each.name for each in tables
    }
    for table in tables:
        with subtests.test(table=table):
            if table.name != "data.csv":
                with table.open(newline="") as file:
                    cells = [cell for row in csv.reader(file) for cell in row]
                assert not [
                    each
                    for each in cells
                    if each[:1] in ("=", "+", "-", "@") and not is_number(each)
                ], table


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_reading_gives_the_original_names(folder: Path) -> None:
    run = library.load(sorted((folder / "compared/runs").iterdir())[0])
    assert set(run.final()) == set(CLIENTS)
    assert set(run.groups["client"]) == set(CLIENTS)
    assert set(run.groups["group"]) - {"other"} == set(GROUPS)


def test_output_holds_no_control_characters_and_json_the_names(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    monkeypatch.chdir(folder)
    run = next((folder / "compared/runs").iterdir())
    data = ("data", "data.csv", *WORDS[4:])
    for words in (("show", "compared"), ("show", run), data, ("evaluate", "nowhere\x1b[2J")):
        with subtests.test(words=words):
            assert fairbloom(*words) == 2 * (words[0] == "evaluate")
            printed = "".join(capsys.readouterr())
            assert "\\x1b" in printed
            assert not [each for each in printed if not each.isprintable() and each != "\n"]
    assert set(as_json(capsys, "show", run)["clients"]["accuracy"]) == set(CLIENTS)


def test_log_lines_hold_no_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("client %s has %d%% left\nand more", "a\x1b[31m", 5)
    (record,) = caplog.records
    assert record.getMessage() == "client a\\x1b[31m has 5% left and more"
    assert escape_unprintable("größe é") == "größe é"
    assert escape_unprintable("a\nb\x1b[2J", but="\n") == "a\nb\\x1b[2J"
    assert escape_unprintable("size mismatch:\n\tcopying") == "size mismatch:  copying"


NAMES = [
    "=1",
    "'=1",
    "''=1",
    "+a",
    "-a",
    "@a",
    "\ta",
    "\ra",
    "＝1",
    "'",
    "'a",
    "a=1",
    "",
    "-5",
    "+1e5",
    "'-5",
    "nan",
]


def test_escaped_cells_read_back_as_they_were(tmp_path: Path) -> None:
    columns = ("round", "client")
    path = tmp_path / "clients.csv"
    path.write_text(
        format_csv(columns, [{"round": 1, "client": name} for name in NAMES]),
        newline="",
    )
    assert [row["client"] for row in read_table(path, columns, finished=True)] == NAMES
    written = TableWriter(path, columns)
    written.cut_back(path.stat().st_size)
    written.add([(2, name) for name in NAMES])
    assert [row["client"] for row in read_table(path, columns, finished=False)] == NAMES * 2


def test_numbers_are_written_as_they_are() -> None:
    assert [escape_formula(each) for each in (-1.5, "-1.5", "+2", "-inf", None)] == [
        -1.5,
        "-1.5",
        "+2",
        "-inf",
        None,
    ]


TASK = """
from fairbloom.tasks import find_task
def task(setup):
    known = find_task("digits")
    changed = {"model": "logistic", "data_dir": "", "validation_share": 0.0}
    return known.load(setup.model_copy(update=changed), known.check_parameters({}))
"""

METHODS = """
from fairbloom.strategies import FedAvg
class Right(FedAvg):
    pass
class Other(FedAvg):
    seed = 3
"""


@pytest.fixture
def modules(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(here)
    for name, source in {"unvalidated": TASK, "misdeclared": METHODS}.items():
        sys.modules.pop(name, None)
        Path(f"{name}.py").write_text(source)
    return here


def test_predicting_with_a_comparison_names_one_of_its_runs(
    modules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Path("cmp", "runs", "fedavg-seed0")
    runs.mkdir(parents=True)
    (runs / "config.toml").write_text("")
    Study("compare", [], []).write(Path("cmp"))
    words = refusal(capsys, "predict", "cmp", "new.csv", "--out", "p.csv")
    assert f"{runs.parent}: {runs.name}" in words
    assert "load_" not in words


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--set", "validation-share=0.2"),
        ("search", "--grid", "learning-rate=0.1,0.2", "--jobs", "1"),
    ],
)
def test_a_task_without_validation_examples_is_refused_at_once(
    modules: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    words = refusal(capsys, *command, "--task", "unvalidated:task", *SMALL, "--out", "out")
    assert [
        each
        for each in (
            "validation-share = 0.2",
            "unvalidated:task",
            "Splits(train, test, validation)",
        )
        if each not in words
    ] == []
    assert not [*Path().glob("out/**/rounds.csv")]


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--method", "misdeclared:Right", *SMALL),
    ],
)
def test_a_wrong_declaration_of_any_class_is_one_sentence(
    modules: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    sys.modules.pop("misdeclared", None)
    words = refusal(capsys, *command)
    assert [
        each for each in ("misdeclared:Right", "Other.seed = 3", "option") if each not in words
    ] == []
