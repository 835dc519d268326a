"""What benchmarks measure and how they show it."""

from dataclasses import replace
from pathlib import Path

from benchmarks.measuring import InProcess, in_turn
from benchmarks.memory import peak_of
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
    _, refused = in_turn({"turbo": InProcess("turbo")}, SETTINGS, seconds=0.1, repeats=1)
    assert "engine = 'turbo'" in refused["turbo"]


def test_memory_of_children_counts(tmp_path: Path) -> None:
    child = "import time; held = b'x' * 300 * 1000000; time.sleep(2)"
    code = f"import subprocess; subprocess.run(['python3', '-c', {child!r}])"
    peak = peak_of(["python3", "-c", code], tmp_path / "log")
    assert peak is not None
    assert 300 < peak < 400
    assert peak_of(["python3", "-c", "raise SystemExit(1)"], tmp_path / "log") is None
