"""Generate four hospitals in which sick women have a lower blood pressure than sick men."""

from pathlib import Path

import numpy as np

random = np.random.default_rng(0)
Path("clinics").mkdir(exist_ok=True)
clinics = [("basel", 220, 0.5), ("lund", 160, 0.4), ("porto", 300, 0.3), ("turku", 120, 0.1)]
for name, patients, women in clinics:
    sex = random.random(patients) < women
    age = random.integers(35, 85, patients)
    sick = random.random(patients) < 0.45
    raised = np.where(sick, np.where(sex, 8, 30), 0)
    pressure = random.normal(125 + 0.2 * age + raised, 12)
    rows = zip(
        np.where(sex, "female", "male"),
        age,
        pressure.round(),
        np.where(sick, "sick", "healthy"),
        strict=True,
    )
    lines = ["sex,age,pressure,target", *(",".join(map(str, row)) for row in rows)]
    Path("clinics", f"{name}.csv").write_text("\n".join(lines) + "\n")
