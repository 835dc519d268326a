"""The tables of a run as data frames: reading, refusals, and unfinished runs.

The limits of the numbers of a run or comparison are stated next to them.
"""

from pathlib import Path

import numpy as np
import pytest

from fairbloom.experiments.results.run import Run, load
from fairbloom.experiments.results.tables import read_frame
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import CLIENTS

from ..helpers import captured
from ..made_up import make_comparison, make_run

NAMES = ("007", "'=a", "NA", "b\nc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four clients with odd names and six rounds."""
    folder = tmp_path_factory.mktemp("made") / "run"
    make_run(folder, "fedavg", 0, NAMES, 6, np.random.default_rng(0))
    return folder


def written(folder: Path, content: str, *, finished: bool) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "clients.csv").write_text(content)
    if finished:
        (folder / "model.safetensors").touch()
    return folder


def test_names_are_kept_and_numbers_are_those_written(folder: Path) -> None:
    run = load(folder)
    assert set(run.clients["client"]) == {*NAMES} == {*run.final()}
    texts = [
        line.split(",")
        for line in CLIENTS.path_in(folder).read_text().splitlines()
        if line.startswith("6,007,")
    ]
    column = list(run.clients.columns).index("test_accuracy_of_global_model")
    assert run.final()["007"] == float(texts[0][column])  # to the last bit
    assert run.clients["round"][run.clients["client"] == "007"].tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "torn"),
        ("round,client,test_accuracy_of_global_model\n1,a,5", "torn"),
        ("round,client,test_accuracy_of_global_model\n1,a\n", "got 2"),
        ("round,client,test_accuracy_of_global_model\n1,a,5,6\n", "got 4"),
        ("round,gain\n1,2\n", "no column client"),
        ("round,client,client\n1,a,b\n", "client is there twice"),
        ("round,client,test_accuracy_of_global_model\none,a,5\n", "column round"),
    ],
)
def test_a_finished_table_is_whole_or_refused(tmp_path: Path, content: str, fault: str) -> None:
    with pytest.raises(
        RunFolderError, match=f"clients.csv cannot be read: .*{fault}.*Restore it from a copy"
    ):
        read_frame(CLIENTS, written(tmp_path, content, finished=True))


def test_of_an_unfinished_table_the_whole_lines_are_read(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    assert read_frame(CLIENTS, tmp_path / "nothing").empty
    head = "round,client,x\n"
    for content, rows in {
        head: 0,
        head + "1,a,5\n2,b,": 1,
        head + "1,a,5\n2,b\n": 1,
        head + '1,a,5\n2,"b\nc': 1,
    }.items():
        with subtests.test(content=content, rows=rows):
            assert len(read_frame(CLIENTS, written(tmp_path, content, finished=False))) == rows
    with pytest.raises(RunFolderError, match="got 4"):
        read_frame(CLIENTS, written(tmp_path, head + "1,a,5,6\n", finished=False))


def test_a_cell_that_is_no_number_is_refused(folder: Path, tmp_path: Path) -> None:
    text = CLIENTS.path_in(folder).read_text()
    run = load(folder)
    value = repr(run.final()["NA"])
    assert text.count(value) == 1
    for wrong in ("-1", "inf", "1e308"):  # no score, so it is left out
        content = text.replace(value, wrong)
        assert Run(
            written(tmp_path, content, finished=False), run.settings, run.scores
        ).final().keys() == run.final().keys() - {"NA"}
    content = text.replace(value, "many")
    with pytest.raises(
        RunFolderError, match=r"clients.csv .*has 'many', which is not a number.*estore it"
    ):
        Run(written(tmp_path, content, finished=False), run.settings, run.scores).final()


def test_a_number_takes_the_memory_of_a_number(tmp_path: Path) -> None:
    """A row of clients.csv took 1.1 kB as a dict of texts; here it has nine columns."""
    make_comparison(
        tmp_path / "made", ["fedavg", "fedfv"], range(2), [f"client-{k}" for k in range(50)], 20
    )
    table = load(tmp_path / "made" / "runs" / "fedavg-seed0").clients
    assert len(table) == 1000
    assert table.memory_usage(deep=True).sum() < 150 * len(table)


FEW = ("--clients", 2, "--rounds", 2, "--set", "device=cpu", "--set", "partition=iid")
TINY = ("--set", "test-share=0.005")
SINGLE = "One client trained in each round"
EQUAL = "FedAvg with every seed"
SMALL = "clients are tested on fewer than 10 examples"


def printed_by(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    return captured(capsys, *words).out


def compared(capsys: pytest.CaptureFixture[str], out: Path, methods: str, *words: object) -> str:
    plan = ("--methods", methods, "--seeds", 2, "--jobs", 1)
    return printed_by(capsys, "compare", *FEW, *plan, *words, "--out", out)


@pytest.mark.slow
def test_single_participants_compare_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = compared(capsys, tmp_path, "fedavg,term,fedmgdaplus", "--fraction", 0.5)
    assert f"{SINGLE}, so no method had anything to weigh: raise fraction" in output
    assert f"TERM equals {EQUAL}" in output  # FedMGDA+ takes a step of another length
    assert "Two seeds do not show which method is better" in output


@pytest.mark.slow
def test_methods_are_the_same_if_so_with_every_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = compared(capsys, tmp_path, "fedavg,ditto,term")
    # Ditto's global model is FedAvg's by construction, which is no finding.
    assert [
        words for words in (SINGLE, SMALL, "TERM equals", "Ditto equals") if words in output
    ] == []


@pytest.mark.slow
def test_tiny_test_sets_are_said_with_what_one_example_moves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = (
        f"2 of 2 {SMALL} (client-0 4, client-1 4): one example moves the accuracy of such a client"
        " by 25"
    )
    assert few in printed_by(capsys, "run", *FEW, *TINY, "--out", tmp_path / "run")
    output = compared(capsys, tmp_path / "compared", "fedavg", *TINY)
    assert few.replace(" (client-0 4, client-1 4)", "") in output
    assert output.count("fewer than 10 examples") == 1


def test_a_run_of_single_participants_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert SINGLE in printed_by(capsys, "run", *FEW, "--fraction", 0.5, "--out", tmp_path / "a")
    assert SINGLE not in printed_by(
        capsys, "run", *FEW, "--set", "pooled=true", "--out", tmp_path / "b"
    )


@pytest.mark.slow
def test_a_column_that_gives_the_target_away_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run and a comparison say so only where all clients are at 100 %."""
    (tmp_path / "sites").mkdir()
    for site in ("north", "south"):
        rows = [f"{50 + k % 31},{'AB'[k % 2]},{k % 2}" for k in range(100)]
        (tmp_path / "sites" / f"{site}.csv").write_text(
            "\n".join(["age,discharge_code,target", *rows])
        )
    said = (
        "Every client is at 100.0 %, and discharge_code determines the target: is it known"
        " only after the outcome?"
    )
    words = ("--task", "csv", "--data-dir", tmp_path / "sites", "--set", "device=cpu")
    assert said in printed_by(capsys, "run", *words, "--rounds", 20, "--out", tmp_path / "run")
    # by the schema, whatever it says in its comments
    printed_by(capsys, "data", tmp_path / "sites", "--write-schema", tmp_path / "schema.toml")
    lines = (tmp_path / "schema.toml").read_text().splitlines()
    plain = [line for line in lines if not line.startswith("#")]
    (tmp_path / "schema.toml").write_text("\n".join(plain))
    by_hand = (*words, "--schema", tmp_path / "schema.toml", "--rounds", 20)
    assert said in printed_by(capsys, "run", *by_hand, "--out", tmp_path / "by_hand")
    (key,) = [line for line in plain if line.startswith("determining")]
    (tmp_path / "schema.toml").write_text("\n".join(plain).replace(key, ""))
    assert said not in printed_by(capsys, "run", *by_hand, "--out", tmp_path / "not_said")
    assert f"say {key}" in printed_by(
        capsys, "data", tmp_path / "sites", "--schema", tmp_path / "schema.toml"
    )
    early = ("--rounds", 1, "--set", "learning-rate=1e-9", "--out", tmp_path / "early")
    assert "determines the target" not in printed_by(capsys, "run", *words, *early)
    plan = ("--methods", "fedavg", "--seeds", 2, "--rounds", 20, "--jobs", 1)
    output = printed_by(capsys, "compare", *plan, *words, "--out", tmp_path / "compared")
    assert output.count(said) == 1
