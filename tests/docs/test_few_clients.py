"""What the page on measurements says of few clients holds, and its commands run."""

from pathlib import Path

import pytest

from fairbloom import Comparison
from fairbloom.experiments import api
from tests.commands import forked

from .pages import blocks
from .reader import follow


def worst(comparison: Comparison, method: str) -> float:
    """Return the score of the client that is served worst, a mean over the seeds."""
    return sum(min(scores.values()) for scores in comparison.values[method]) / len(comparison.seeds)


@pytest.mark.slow
def test_an_own_model_helps_an_unlike_client(tmp_path: Path) -> None:
    """With two seeds in place of ten."""
    (block,) = (each for each in blocks("docs/measured.md") if each.section == "Few clients")
    assert block.text.count("--seeds 10 ") == 2
    (tmp_path / "page.md").write_text(f"```sh\n{block.text.replace('--seeds 10 ', '--seeds 2 ')}```\n")
    done = forked(tmp_path, follow, str(tmp_path / "page.md"))
    assert done.returncode == 0, done.stderr[-5000:]
    gains = {}
    for name in ("alike", "unlike"):
        comparison = api.load(tmp_path / "runs" / name)
        gains[name] = worst(comparison, "Local") - worst(comparison, "FedAvg")
    assert gains["unlike"] > 5.0 > gains["alike"]
