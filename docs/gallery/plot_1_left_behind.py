"""
Who is left behind by FedAvg
============================

Twenty clients classify handwritten digits. The cameras of three are mounted sideways.
"""

import fairbloom

run = fairbloom.run(
    "digits",
    method="fedavg",
    clients=20,
    partition="iid",
    rounds=50,
    settings={"digits.rotated-clients": 3},
    out="runs/left-behind",
    progress=False,
)
run.chart()

# %%
# The mean hides three clients. One seed does not show that another method serves them better;
# :doc:`the next example <plot_2_five_methods>` does.

run
