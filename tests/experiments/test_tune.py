"""`fairbloom tune`: the engines measured against each other, and what is told of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fairbloom.errors import FairbloomError
from fairbloom.experiments.views.lists import show_tuned
from fairbloom.server.run_folder.files import ENGINE
from fairbloom.server.settings import Settings
from fairbloom.simulation.choice import Choice
from fairbloom.simulation.run import simulate
from fairbloom.simulation.tune import MIN_ROUNDS, Timing, Tuned, tune

from .helpers import fairbloom

ENGINES = ("loop", "stacked", "workers")


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, on a wide terminal without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


def small(**changes: Any) -> Settings:
    return Settings.of({"clients": 5, "device": "cpu", **{k.replace("_", "-"): v for k, v in changes.items()}})


def by_hand(auto: str, **milliseconds: float) -> Tuned:
    """Return engines with a single round each; one that took no time is not available."""
    timings = [
        Timing(engine, [ms / 1e3]) if ms else Timing(engine, why_not="its model is too odd")
        for engine, ms in milliseconds.items()
    ]
    return Tuned(timings, Choice(auto, "calls take longer than arithmetic"))


def children() -> str:
    """Return the numbers of the processes that this one has started and that have not ended."""
    return Path("/proc/thread-self/children").read_text()


# What is measured ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_each_engine_computes_rounds_and_nothing_is_left_behind(method: str, tmp_path: Path) -> None:
    """Ditto's clients keep personal models, in a run's folder or where state-dir says."""
    threads, before = torch.get_num_threads(), children()
    tuned = tune(small(method=method, state_dir="state", fraction=1.0), ENGINES, seconds=0.0)
    assert {timing.engine: len(timing.seconds) for timing in tuned.timings} == dict.fromkeys(ENGINES, MIN_ROUNDS)
    assert list(tmp_path.iterdir()) == []
    assert (torch.get_num_threads(), children()) == (threads, before)


def test_an_engine_is_measured_for_as_long_as_one_asks() -> None:
    (timing,) = tune(small(), ["loop"], seconds=0.2).timings
    assert sum(timing.seconds) >= 0.2
    assert len(timing.seconds) == MIN_ROUNDS or sum(timing.seconds[:-1]) < 0.2


def test_more_rounds_are_measured_than_a_run_has() -> None:
    (timing,) = tune(small(num_rounds=1), ["stacked"], seconds=0.0).timings
    assert len(timing.seconds) == MIN_ROUNDS


def test_an_engine_that_cannot_be_had_is_left_out_with_the_reason() -> None:
    loop, stacked = tune(small(time_budget=60.0), ("loop", "stacked"), seconds=0.0).timings
    assert (len(loop.seconds), loop.why_not) == (MIN_ROUNDS, "")
    assert (len(stacked.seconds), "time-budget = " in stacked.why_not) == (0, True)


@pytest.mark.slow
def test_auto_is_what_a_run_of_these_settings_chooses(tmp_path: Path) -> None:
    settings = small(model="cnn", num_rounds=1)
    folder = simulate(settings.model_copy(update={"out": str(tmp_path / "a")}))
    auto = tune(settings, ["loop"], seconds=0.0).auto
    assert Choice(**ENGINE.read(folder) or {}) == auto


def test_files_on_which_clients_must_agree_are_measured_too(tmp_path: Path) -> None:
    for name in ("basel", "lund", "turku"):
        (tmp_path / f"{name}.csv").write_text("age,smoker,target\n" + "50,yes,1\n40,no,0\n" * 10)
    settings = Settings.of({"task": "csv", "data-dir": str(tmp_path), "device": "cpu", "fraction": 1.0})
    assert all(not timing.why_not for timing in tune(settings, ENGINES, seconds=0.0).timings)
    (tmp_path / "lund.csv").write_text("age,target\n50,1\n")
    with pytest.raises(FairbloomError, match="the data of client lund cannot be used"):
        tune(settings, ENGINES, seconds=0.0)


# What is told -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tuned", "better"),
    [
        (by_hand("stacked", loop=40, stacked=10, workers=20), ""),
        (by_hand("workers", loop=40, stacked=10, workers=20), "stacked"),
        (by_hand("workers", loop=40, stacked=19, workers=20), ""),
        (by_hand("loop", loop=10, stacked=0, workers=30), ""),
        (by_hand("workers", loop=10, stacked=0, workers=0), "loop"),
    ],
    ids=["the fastest", "much slower", "a little slower", "the only fast one", "not to be had"],
)
def test_an_engine_is_recommended_where_auto_chooses_one_that_is_much_slower(tuned: Tuned, better: str) -> None:
    assert tuned.better == better


def test_the_median_round_counts() -> None:
    timing = Timing("loop", [0.010, 0.011, 9.0])
    assert timing.of_a_round == 0.011
    tuned = Tuned([timing, Timing("stacked", [0.001, 0.0011, 0.002])], Choice("loop", "it was asked for"))
    assert tuned.speed(tuned.timings[1]) == pytest.approx(10.0)


def test_the_table_says_how_fast_each_is_and_what_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    show_tuned(by_hand("loop", loop=40, stacked=0, workers=12.345))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "engine ms a round × loop why it is not available"
    assert {"loop 40.0 1.0", "stacked – – its model is too odd", "workers 12.3 3.2"} <= set(lines)
    assert lines[-2:] == [
        "auto chooses loop: calls take longer than arithmetic",
        "workers is faster here: set --engine workers",
    ]


def test_where_auto_is_right_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    show_tuned(by_hand("stacked", loop=40, stacked=10))
    printed = capsys.readouterr().out
    assert printed.endswith("no engine is more than a tenth faster here: leave --engine at auto\n")
    assert "not available" not in printed


def test_the_command_prints_json_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("tune", "--clients", 5, "--device", "cpu", "--method", "fedfv", "--seconds", 0, "--json") == 0
    printed = capfd.readouterr()
    told = json.loads(printed.out)
    assert printed.err == ""
    assert [each["engine"] for each in told["engines"]] == list(ENGINES)
    assert told["engines"][0]["times_as_fast_as_loop"] == 1.0
    assert told["set"] in ("auto", *ENGINES)
    assert told["auto"]["engine"] in ENGINES
    assert list(tmp_path.iterdir()) == []


REFUSED = {
    "an engine": (["--set", "engine=loop"], "engine = 'loop': fairbloom tune measures all engines: leave it out"),
    "an unknown model": (["--model", "resnet"], "model = 'resnet'"),
    "a method's setting without effect": (["--set", "qfedavg.q=1"], "qfedavg.q has no effect"),
    "two values": (["--fraction", "1", "--set", "fraction=0.5"], "fraction is given two values"),
    "no folder": (["--task", "csv"], "data-dir"),
    "no such device": (["--device", "cuda:99"], "device = 'cuda:99' is not available"),
    "a run that learns nothing": (["--set", "learning-rate=1e300", "--seconds", "0"], "learned nothing"),
}


@pytest.mark.parametrize(("words", "expected"), REFUSED.values(), ids=REFUSED)
def test_bad_input_ends_with_2_and_a_line_and_nothing_is_written(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("tune", *words) == 2
    printed = capsys.readouterr()
    assert expected in printed.err
    assert (printed.out, list(tmp_path.iterdir())) == ("", [])


def test_an_engine_that_is_unknown_is_refused_and_not_run_as_the_loop() -> None:
    with pytest.raises(FairbloomError, match="engine = 'lop': there are loop, stacked, workers and ray"):
        Choice("lop", "it was misspelt").clients(small().strategy(), small().run_config())
    assert Choice("loop", "the remedy").clients(small().strategy(), small().run_config())


def test_tune_takes_a_method_as_compare_does(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("tune", "--clients", 5, "--device", "cpu", "--seconds", 0)
    assert fairbloom(*words, "--method", "fedfv(alpha=2)") == 2
    assert "fedfv.alpha = 2" in capsys.readouterr().err
