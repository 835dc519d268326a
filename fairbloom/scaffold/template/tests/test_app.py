"""The app learns, serves its worst client, and goes on where it was interrupted."""

import csv
import subprocess
import sys
from pathlib import Path

APP = Path(__file__).parents[1]


def run(out: Path, rounds: int) -> list[dict[str, str]]:
    """Run the app in a new process; return the rows of its rounds."""
    settings = [f"out={out}", f"num-rounds={rounds}"]
    subprocess.run([sys.executable, "-m", "my_app", *settings], cwd=APP, check=True, timeout=300)
    with (out / "rounds.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_is_continued_and_leaves_no_client_behind(tmp_path: Path) -> None:
    begun = run(tmp_path / "run", rounds=15)
    whole = run(tmp_path / "run", rounds=20)
    assert whole[:15] == begun
    assert len(whole) == 20
    assert float(whole[-1]["test_accuracy_of_global_model_worst"]) > 70
