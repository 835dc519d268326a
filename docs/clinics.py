"""Generate four clinics, with the smallest like the others or not: `python -m docs.clinics`."""

import csv
import random
from pathlib import Path

PATIENTS = {"north": 150, "south": 90, "west": 60, "island": 30}


def write_clinics(folder: str, island: float) -> None:
    """Write a file for each clinic; `island` is the island's weight of high pressure, else 1.5."""
    random.seed(0)
    Path(folder).mkdir(exist_ok=True)
    for clinic, patients in PATIENTS.items():
        weight = island if clinic == "island" else 1.5
        with Path(folder, f"{clinic}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["age", "pressure", "smoker", "target"])
            for _ in range(patients):
                age = random.gauss(60, 10)
                pressure = random.gauss(130, 15)
                smoker = random.choice(["yes", "no"])  # noqa: S311 (nothing is secret)
                risk = (age - 60) / 10 + weight * (pressure - 130) / 15 + (smoker == "yes")
                ill = risk + random.gauss(0, 0.5) > 0.5
                target = "ill" if ill else "well"
                rows.writerow([round(age), round(pressure), smoker, target])


if __name__ == "__main__":
    write_clinics("alike", island=1.5)
    write_clinics("unlike", island=-1.0)
