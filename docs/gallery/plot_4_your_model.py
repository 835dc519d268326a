"""
Your model
==========

A PyTorch module in a file, ``my_models:Net``, which other processes and devices import.
"""

import sys
from pathlib import Path

import fairbloom

MODEL = """
from torch import nn


class Net(nn.Sequential):
    def __init__(self, inputs, outputs, width=32):
        super().__init__(
            nn.Flatten(),
            nn.Linear(inputs, width),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Linear(width, outputs),
        )
"""

Path("runs").mkdir(exist_ok=True)
Path("runs/my_models.py").write_text(MODEL)

# %%
# Parameters named ``inputs`` and ``outputs`` get the numbers of the task.

sys.path.insert(0, "runs")
fairbloom.run(
    "digits",
    model="my_models:Net",
    method="fedfv",
    clients=10,
    rounds=40,
    out="runs/my-model",
    progress=False,
).chart()
