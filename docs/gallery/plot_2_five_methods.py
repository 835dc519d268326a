"""
Compare five methods
====================

The clients of :doc:`plot_1_left_behind`, three seeds, and the same random draws for all methods.
"""

import fairbloom

comparison = fairbloom.compare(
    "digits",
    methods="fedavg,qfedavg,fedmgdaplus,fedfv,term(tilt=1)",
    seeds=3,
    clients=20,
    partition="iid",
    rounds=50,
    settings={"digits.rotated-clients": 3},
    out="runs/five-methods",
    progress=False,
)
print(comparison.verdict)

# %%
# Each line is a method, over its clients from the worst served on.

comparison.chart()

# %%
comparison.table[["mean", "std", "worst_10", "best_10"]].round(1)
