"""A user's task in which something fails, as its parameter says; a comment marks the line that
does."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.protocol.scores import ACCURACY
from fairbloom.tasks import Examples, Setup, Splits, Task

SECRET = "born 1931"


class Net(nn.Module):
    def __init__(self, fails: str) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.fails = fails

    def forward(self, x: Tensor) -> Any:
        if self.fails == "model":
            raise KeyError(SECRET)  # model
        if self.fails == "model, a ValueError":
            raise ValueError(SECRET)  # model, a ValueError
        if self.fails == "shape":
            return self.last(x[:, :3])  # shape
        if self.fails == "later" and Path("later").exists():
            raise KeyError("later")  # later
        if self.fails == "one client" and x.max() > 50.0:
            raise KeyError("one client")  # one client
        if self.fails == "stacked" and float(x.max()) < -1e9:  # stacked
            raise AssertionError
        if self.fails == "debugged":
            seen = int(x.shape[1]) + 38
            breakpoint()
            assert seen
        outputs = self.last(x)
        return {"detached": outputs.detach(), "a tuple": (outputs, x)}.get(self.fails, outputs)


def of_the_batch(outputs: Tensor, targets: Tensor) -> Tensor:  # scalar loss
    return cross_entropy(outputs, targets)


def broken_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.nothing(targets)  # type: ignore[no-any-return,operator] # loss


def broken_score(outputs: Tensor, targets: Tensor) -> Tensor:
    return {}["a score"]  # score


def task(setup: Setup, fails: str = "") -> Task:
    """Return a task of three clients, the inputs of one of which are large."""
    names = ("a", "b", "c")

    def made() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setup.seed)
            return Net(fails)

    def examples(client: str, count: int) -> Examples:
        random = torch.Generator().manual_seed(names.index(client) + count)
        inputs = torch.randn(count, 4, generator=random) * (100.0 if client == "a" else 1.0)
        return Examples(inputs, torch.randint(3, (count - (fails == "lengths"),), generator=random))

    def splits(client: str) -> Splits:
        if fails == "data":
            raise OSError(f"{client}.npz is gone")  # data
        if fails == "data of one" and client == "a":
            raise OSError("a.npz is gone")
        if fails == "slow":
            time.sleep(0.1)
        return Splits(examples(client, 20), examples(client, 12))

    losses = {
        "scalar loss": of_the_batch,
        "loss": broken_loss,
        "classes": partial(cross_entropy, reduction="none"),
    }
    scores: dict[str, Any] = {"scores": {ACCURACY: broken_score}} if fails == "score" else {}
    return Task(names, made, losses.get(fails, losses["classes"]), splits, **scores)


def line_of(mark: str) -> str:
    """Return "failing.py, line N" of the line that a comment marks."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, start=1) if line.endswith(f"# {mark}"))
    return f"failing.py, line {number}"
