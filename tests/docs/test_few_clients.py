"""The page on few clients: its commands run, and what it says of their numbers holds."""

from pathlib import Path

import pytest

from fairbloom import Comparison
from fairbloom.experiments import api
from tests.commands import forked

from .pages import ROOT
from .reader import follow

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparisons of a reader who has done all that the page says, with two seeds in place of ten."""
    folder = tmp_path_factory.mktemp("few")
    page = (ROOT / "docs" / "few-clients.md").read_text()
    assert page.count("--seeds 10 ") == 3
    (folder / "few-clients.md").write_text(page.replace("--seeds 10 ", "--seeds 2 "))
    done = forked(folder, follow, str(folder / "few-clients.md"))
    assert done.returncode == 0, done.stderr[-5000:]
    return folder / "runs"


def worst(comparison: Comparison, method: str) -> float:
    """Return the score of the client that is served worst, a mean over the seeds."""
    return sum(min(scores.values()) for scores in comparison.values[method]) / len(comparison.seeds)


def test_the_commands_of_the_page_work(runs: Path) -> None:
    assert {folder.name for folder in runs.iterdir()} >= {"alike", "unlike", "one-class"}


def test_an_own_model_helps_the_client_that_is_unlike_others(runs: Path) -> None:
    gains = {}
    for name in ("alike", "unlike"):
        comparison = api.load(runs / name)
        gains[name] = worst(comparison, "Local") - worst(comparison, "FedAvg")
    assert gains["unlike"] > 5.0 > gains["alike"]


def test_with_one_class_local_is_right_and_there_is_no_auc(runs: Path) -> None:
    rows = [row for row in api.load(runs / "one-class").client_rows() if row["client"] == "island"]
    assert {row["accuracy"] for row in rows if row["method"] == "Local"} == {100.0}
    assert {row["auc"] for row in rows} == {""}
    assert [row for row in rows if row["balanced-accuracy"] != row["accuracy"]] == []
