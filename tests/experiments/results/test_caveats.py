"""The limits of the numbers of a run or comparison are stated next to them."""

from pathlib import Path

import pytest

from ..helpers import captured

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
    assert f"Ditto equals {EQUAL}" in output  # its global model is FedAvg's
    assert [
        words
        for words in (SINGLE, SMALL, "TERM equals", "same models to the bit")
        if words in output
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
        table = "\n".join(["age,discharge_code,target", *rows])
        (tmp_path / "sites" / f"{site}.csv").write_text(table)
    said = (
        "Every client is at 100.0 %, and discharge_code alone determines the target: is it known"
        " before?"
    )
    words = ("--task", "csv", "--data-dir", tmp_path / "sites", "--set", "device=cpu")
    assert said in printed_by(capsys, "run", *words, "--rounds", 20, "--out", tmp_path / "run")
    early = ("--rounds", 1, "--set", "learning-rate=1e-9", "--out", tmp_path / "early")
    assert "alone determines" not in printed_by(capsys, "run", *words, *early)
    plan = ("--methods", "fedavg", "--seeds", 2, "--rounds", 20, "--jobs", 1)
    output = printed_by(capsys, "compare", *plan, *words, "--out", tmp_path / "compared")
    assert output.count(said) == 1
