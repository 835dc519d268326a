"""
Privacy at ε = 8, 3, 1, client by client
========================================

``privacy.mode = simulated`` shows what the noise of a :doc:`privacy account </private>` costs each
client. It protects nobody.
"""

from pathlib import Path

import numpy as np
import pandas as pd

import fairbloom

Path("runs/clinics").mkdir(parents=True, exist_ok=True)
Path("runs/schema.toml").write_text("""
target = "outcome"
[fields.age]
type = "number"
center = 50.0
scale = 20.0
[fields.dose]
type = "number"
center = 1.0
scale = 0.5
[fields.outcome]
type = "string"
categories = ["well", "ill"]
""")

random = np.random.default_rng(0)
for clinic, (patients, weight) in {
    "north": (1200, 1.0),
    "south": (600, 1.0),
    "island": (200, -1.0),
}.items():
    age = random.normal(50, 20, patients).round()
    dose = random.normal(1, 0.5, patients).round(2)
    risk = (age - 50) / 20 + weight * (dose - 1) / 0.5 + random.normal(0, 0.5, patients)
    columns = {"age": age, "dose": dose, "outcome": np.where(risk > 0, "ill", "well")}
    pd.DataFrame(columns).to_csv(f"runs/clinics/{clinic}.csv", index=False)

# %%
# A client counts for less the more noise its ε asks of its rows: the island, with the fewest rows,
# loses most, and others may gain. Exact scores, in percent:

comparison = fairbloom.compare(
    "csv",
    data_dir="runs/clinics",
    schema="runs/schema.toml",
    methods="fedavg,"
    "fedavg(privacy.mode=simulated, privacy.epsilon=8),"
    "fedavg(privacy.mode=simulated, privacy.epsilon=3),"
    "fedavg(privacy.mode=simulated, privacy.epsilon=1)",
    score="accuracy",
    seeds=3,
    rounds=30,
    fraction=1.0,
    settings={
        "privacy.spend": "all",
        "batch-size": 0,
        "learning-rate": 0.5,
    },
    out="runs/privacy",
    progress=False,
)
comparison.clients.pivot_table(
    index="method", columns="client", values="accuracy", sort=False
).round(1)

# %%
comparison.chart()
