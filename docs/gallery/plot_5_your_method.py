"""
Your own method in fifteen lines
================================

A method gets the losses of a round, and returns a number for each client: its weight. This one
takes the mean of the half with the highest losses.
"""

import sys
from pathlib import Path

import fairbloom

METHOD = """
import numpy as np

from fairbloom.strategies import FairStrategy


class WorstHalf(FairStrategy):
    \"\"\"The mean of the clients with the highest losses.\"\"\"

    needs = frozenset({"loss-before"})

    def weigh(self, cohort):
        worst = cohort.losses >= np.median(cohort.losses)
        return worst / worst.sum()
"""

Path("runs").mkdir(exist_ok=True)
Path("runs/my_methods.py").write_text(METHOD)

# %%
# It is compared like any other, and repeats and resumes to the bit.

sys.path.insert(0, "runs")
comparison = fairbloom.compare(
    "digits",
    methods="fedavg,my_methods:WorstHalf",
    seeds=5,
    clients=20,
    partition="iid",
    rounds=50,
    settings={"digits.rotated-clients": 3},
    out="runs/worst-half",
    progress=False,
)
print(comparison.verdict)

# %%
comparison.chart()
