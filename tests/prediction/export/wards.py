"""Tables of four sites with columns of numbers and of categories, and runs on them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas

import fairbloom

SITES = ("north", "south", "west", "old town")
CLASSES = ("ja, sicher", 'kein "Befund"', "ä/ö=€")
"""Names of classes with all that a file, or a format, has to quote."""

COLUMNS = ("age", "dose", "ward", "smoker")


def patients(place: int, count: int = 80, *, quantity: bool = False, missing: bool = False) -> pandas.DataFrame:
    """Return the patients of a site, as texts; ages and doses are its own, so that its means and deviations are."""
    random = np.random.default_rng(place)
    age, dose = random.normal(40 + 10 * place, 5 + place, count), random.normal(0.5, 0.1 * (1 + place), count)
    ward, smoker = random.integers(0, 3, count), random.integers(0, 2, count)
    score = (age - 40 - 10 * place) / (5 + place) + 3.0 * (dose - 0.5) + 0.7 * (ward == 1) - 0.5 * smoker
    frame = pandas.DataFrame(
        {
            "age": [f"{each:.1f}" for each in age],
            "dose": [f"{each:.3f}" for each in dose],
            "ward": np.array(["A 1", "B, left", "Ü"], object)[ward],
            "smoker": np.array(["no", "yes"], object)[smoker],
            "outcome": [f"{120 + 25 * each:.2f}" for each in score]
            if quantity
            else np.array(CLASSES, object)[np.digitize(score, [-0.6, 0.6])],
        }
    )
    if missing:
        for row, column in ((3, "age"), (17, "dose"), (30, "ward"), (31, "smoker"), (60, "age")):
            frame.loc[row % count, column] = ("", "?", "NA")[row % 3]
    return frame


def train(folder: Path, settings: dict[str, Any], **rows: bool) -> fairbloom.Run:
    """Return a run with personal models on the sites, whose files and run folder lie in `folder`."""
    (folder / "data").mkdir()
    for place, name in enumerate(SITES):
        patients(place, **rows).to_csv(folder / "data" / f"{name}.csv", index=False)
    return fairbloom.run(
        "csv",
        data_dir=folder / "data",
        rounds=4,
        out=folder / "run",
        device="cpu",
        progress=False,
        settings={"csv.target": "outcome", "learning-rate": 0.1, "personal-lambda": 0.1, **settings},
    )
