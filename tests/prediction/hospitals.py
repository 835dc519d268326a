"""CSV files of hospitals: ages, blood pressures and sexes, and who is sick."""

from pathlib import Path
from typing import Any

import numpy as np

from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate

ROUNDS = 4
COLUMNS = "age,bp,sex,target"


def write_hospital(
    file: Path, rows: int, seed: int, shift: float = 0.0, *, inverted: bool = False
) -> Path:
    """Write a hospital's file; its patients are older by `shift`, and who is sick is well where it
    is `inverted`."""
    random = np.random.default_rng(seed)
    age = random.normal(60 + shift, 10, rows)
    bp = random.normal(130, 15, rows)
    sex = random.choice(["f", "m"], rows)
    risk = (
        (age - 60 - shift) / 10 + (bp - 130) / 15 + 0.7 * (sex == "m") + random.normal(0, 0.5, rows)
    )
    columns = zip(age, bp, sex, (risk > 0.3) != inverted, strict=True)
    lines = [f"{a:.1f},{b:.1f},{s},{'sick' if ill else 'well'}" for a, b, s, ill in columns]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([COLUMNS, *lines]) + "\n")
    return file


def write_hospitals(folder: Path) -> Path:
    for number, (rows, shift) in enumerate([(120, 0.0), (150, 3.0), (90, -3.0), (200, 6.0)]):
        write_hospital(folder / f"h{number}.csv", rows, number, shift)
    return folder


def run_hospitals(data: Path, out: Path, **changes: Any) -> Path:
    """Return the folder of a run on hospitals' files."""
    plain = {
        "task": "csv",
        "data-dir": str(data),
        "num-rounds": ROUNDS,
        "fraction": 1.0,
        "device": "cpu",
    }
    return simulate(Settings.of({**plain, **changes, "out": str(out)}))
