"""What benchmarks measure and how they show it."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measuring import InProcess, Measured, Report, as_markdown, in_turn, times
from benchmarks.memory import peak_of_command
from benchmarks.workloads import WORKLOADS
from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings

SETTINGS = replace(WORKLOADS["logistic"], clients=10, drawn=10).settings(evaluate_every=0)


def test_sides_are_measured_in_turn_and_a_refusal_is_named() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return 1.0

    def refuses(settings: Settings) -> float:
        raise FairbloomError("it cannot compute this model")

    sides = {"a": lambda settings: side("a"), "b": lambda settings: side("b"), "c": refuses}
    found, refused = in_turn(sides, SETTINGS, seconds=1.0, repeats=3)
    assert order[-6:] == ["a", "b"] * 3
    assert found.keys() == {"a", "b"}
    assert found["a"].values == (1.0, 1.0, 1.0)
    assert refused == {"c": "it cannot compute this model"}


def test_a_run_in_process_says_which_engine_computed_it() -> None:
    loop = InProcess("loop")
    assert loop(SETTINGS.model_copy(update={"num_rounds": 3})) > 0.0
    assert loop.choice["engine"] == "loop"


def test_an_engine_that_does_not_exist_is_refused() -> None:
    _, refused = in_turn({"turbo": InProcess("turbo")}, SETTINGS, seconds=0.1, repeats=1)
    assert "engine = 'turbo'" in refused["turbo"]


def test_a_ratio_is_taken_repeat_by_repeat() -> None:
    ratio = times(Measured((10.0, 30.0, 20.0), "s"), Measured((1.0, 3.0, 1.0), "s"))
    assert ratio.values == (10.0, 10.0, 20.0)
    assert str(ratio) == "10 × (10–20)"


def test_seconds_below_one_are_shown_in_milliseconds() -> None:
    assert str(Measured((0.0021, 0.0020, 0.0024), "s")) == "2.1 ms (2–2.4)"
    assert str(Measured((2.5,), "s")) == "2.5 s"


def test_rows_with_other_columns_share_a_table() -> None:
    rows = [{"by": "plain", "a round": "1 s"}, {"by": "loop", "a round": "–", "ratio": "a|b"}]
    lines = as_markdown("Title", rows).splitlines()
    assert lines[2:] == [
        "| by | a round | ratio |",
        "| --- | ---: | ---: |",
        "| plain | 1 s |  |",
        "| loop | – | a\\|b |",
    ]


def test_the_file_holds_all_values_of_all_tables_and_the_machine(tmp_path: Path) -> None:
    report = Report(argparse.Namespace(json=tmp_path / "a.json", markdown=True))
    report.add("one", [{"by": "loop", "a round": Measured((1.0, 2.0), "s")}])
    report.add("two", [{"by": "–"}])
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["tables"]["one"] == [{"by": "loop", "a round": {"values": [1.0, 2.0], "unit": "s"}}]
    assert "two" in written["tables"]
    assert "torch" in written["machine"]


@pytest.mark.parametrize(("megabytes", "least"), [(0, 1), (300, 300)])
def test_memory_of_children_counts(tmp_path: Path, megabytes: int, least: int) -> None:
    child = f"import time; held = b'x' * {megabytes} * 1000000; time.sleep(2)"
    peak = peak_of_command(
        ["python3", "-c", f"import subprocess; subprocess.run(['python3', '-c', {child!r}])"], tmp_path / "log"
    )
    assert peak is not None
    assert least < peak < megabytes + 100
