"""
Your tables: two hospitals
==========================

Each hospital has a data frame of its patients. High pressure is a bad sign in one and a good one in
the other.
"""

import numpy as np
import pandas as pd

import fairbloom

random = np.random.default_rng(0)


def make_table(patients, weight):
    table = pd.DataFrame(
        {
            "age": random.normal(60, 10, patients).round(),
            "pressure": random.normal(130, 15, patients).round(),
            "smoker": random.choice(["yes", "no"], patients),
        }
    )
    risk = (table["age"] - 60) / 10 + weight * (table["pressure"] - 130) / 15
    risk += (table["smoker"] == "yes") + random.normal(0, 0.5, patients)
    return table.assign(outcome=np.where(risk > 0.5, "ill", "well"))


tables = {"mainland": make_table(600, 1.5), "island": make_table(200, -1.0)}
tables["island"].head()

# %%
# What is in the columns, and what may be wrong?

fairbloom.check_data(tables, target="outcome")["columns"]

# %%
# Is the federation better for each hospital than training alone (``local``)?

comparison = fairbloom.compare(
    data=tables,
    target="outcome",
    methods="fedavg,qfedavg,ditto,local",
    seeds=3,
    rounds=30,
    fraction=1.0,
    out="runs/hospitals",
    progress=False,
)
print(comparison.verdict)

# %%
comparison.chart()

# %%
# Each client standardises by its own means and deviations, so predictions name it.

comparison.runs["QFedAvg"][0].predict(tables["island"].head(), client="island")
