"""Recipes of figures: measures over rounds, and claims about two rows."""

from pathlib import Path

import pytest

from fairbloom import reproduce
from fairbloom.errors import FairbloomError
from fairbloom.experiments.recipe import load_recipe
from fairbloom.experiments.results.presentation import page_of

RECIPE = """
measures = ["mean", "improved"]
x = "round"
claims = [
  "one has a higher mean than no-training (learning-rate=0)",
  "one has a lower mean than no-training (learning-rate=0)",
]
[settings]
task = "digits"
clients = 4
num-rounds = 3
[[rows]]
label = "one"
[[rows]]
label = "no-training"
settings = { learning-rate = 0.0 }
"""


def write(folder: Path, text: str) -> str:
    file = folder / "figure.toml"
    file.write_text(text)
    return str(file)


def test_claims_hold_or_do_not_hold_here(tmp_path: Path) -> None:
    text = RECIPE.replace("learning-rate = 0.0", "learning-rate = 1e-9").replace("=0)", "=1e-09)")
    name = write(tmp_path, text)
    done = reproduce(name, seeds=1, out=tmp_path / "out", progress=False)
    assert [*done.claims.values()] == [True, False]
    page = page_of(done)
    said = next(section for section in page.sections if section.id == "claims")
    assert "holds." in str(said)
    assert "does not hold here." in str(said)
    figure = str(page.figure())
    assert "rounds-mean" in figure
    assert "rounds-improved" in figure


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ("one is better", "not a claim"),
        ("one has a higher worst than one", "not a claim"),
        ("two has a higher mean than one", "unknown row 'two'"),
    ],
)
def test_a_claim_names_rows_and_a_measure(tmp_path: Path, claim: str, reason: str) -> None:
    text = RECIPE.replace("one has a higher mean than no-training (learning-rate=0)", claim)
    with pytest.raises(FairbloomError, match=reason):
        load_recipe(write(tmp_path, text))
