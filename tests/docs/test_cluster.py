"""Studies on a cluster, as docs/comparing.md shows them: Ray calls `fairbloom.run`."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

import fairbloom
from fairbloom.server.run_folder.recorded import RecordedRound
from tests.commands import forked

from .pages import blocks
from .reader import follow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("ray"), reason="the extra ray brings Ray"),
]

SHARED = {"clients": 6, "rounds": 4, "progress": False}


@pytest.fixture(autouse=True)
def no_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ray send no statistics of its use."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


def test_runs_on_ray_are_compared(tmp_path: Path) -> None:
    shown = [block for block in blocks("docs/comparing.md") if block.section == "On a cluster"]
    assert [block.language for block in shown] == ["python", "sh"]
    fenced = [f"```{block.language}\n{block.text}```\n" for block in shown]
    (tmp_path / "page.md").write_text("\n".join(fenced))
    done = forked(tmp_path, follow, str(tmp_path / "page.md"))
    assert done.returncode == 0, done.stderr[-5000:]
    compared = fairbloom.load(tmp_path / "runs" / "of-cluster").clients
    here = fairbloom.compare(
        methods="fedavg,fedfv", seeds=3, out=tmp_path / "here", **SHARED
    ).clients
    columns = ["method", "seed", "client", "accuracy"]
    assert len(compared) == 2 * 3 * 6
    assert compared[columns].equals(here[columns])


def end_process(recorded: RecordedRound) -> None:
    """End the first process in the third round."""
    rounds = Path("rounds.txt")
    with rounds.open("a") as file:
        file.write(f"{recorded.number} ")
    if rounds.read_text() == "3 ":
        os._exit(1)


def train_on_ray() -> None:
    """Continue the run in this folder on Ray."""
    import ray

    def train(folder: str) -> None:
        os.chdir(folder)
        fairbloom.run("digits", out="run", on_round=end_process, **SHARED)

    with ray.init(num_cpus=1):
        ray.get(ray.remote(train).remote(str(Path.cwd())))


def test_ray_continues_a_run_whose_process_ends(tmp_path: Path) -> None:
    # Two finished rounds have a checkpoint; within a second, others need not have one.
    fairbloom.run("digits", out=tmp_path / "run", **{**SHARED, "rounds": 2})
    done = forked(tmp_path, train_on_ray)
    assert done.returncode == 0, done.stderr[-5000:]
    assert (tmp_path / "rounds.txt").read_text() == "3 3 4 "
    continued = fairbloom.load(tmp_path / "run")
    in_one_go = fairbloom.run("digits", out=tmp_path / "whole", **SHARED)
    assert continued.final() == in_one_go.final()
