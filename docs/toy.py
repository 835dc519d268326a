"""Run every method on two clients with quadratic losses, and draw the course of the model."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator
from torch import Tensor, nn

from fairbloom.errors import FairbloomError
from fairbloom.logs import log_from
from fairbloom.protocol.parameters import parameters_of
from fairbloom.protocol.scores import ACCURACY
from fairbloom.protocol.settings import RunSettings
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.loop import Rounds
from fairbloom.server.settings import Settings
from fairbloom.simulation.clients import LocalClients
from fairbloom.strategies import METHODS, FairStrategy
from fairbloom.strategies.torchjd import by_name
from fairbloom.tasks import Examples, Setup, Splits, Task

from .figures import INK, PAPER, svg_of, themed

ROUNDS = 60
LOCAL_STEPS = 5
LEARNING_RATE = 0.05
MANY_EPOCHS = 8
"""Passes over the examples in a round with which clients drift apart towards their own best
models."""

STARTS = ((-1.2, 1.5), (0.2, -1.6), (1.7, 1.2))
"""The initial models of the runs. The figure shows the losses of the first run."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 4.0},
    "feddyn": {"alpha": 1.0},
    "fedavgn": {"server_lr": 0.1},
    "qfedavg": {"q": 2.0, "lipschitz": 20.0},
    "qfedsgd": {"q": 1.0, "lipschitz": 4.0},
    "term": {"tilt": 1.0},
    "afl": {"gamma": 0.05},
    "drfa": {"gamma": 0.005, "local_steps": LOCAL_STEPS},
    "deltafl": {"theta": 0.3},
    "propfair": {"baseline": 5.0},
    "gifair": {"strength": 0.5},
    "vred": {"beta": 0.3},
    "semivred": {"beta": 0.3},
    "eagle": {"lam": 0.3},
    "fedfa": {"client_momentum": 0.5},
    "fairfed": {"beta": 0.1},
    "fcfl": {"budget": 0.2, "stage1_rounds": 20},
    "fedmgdaplus": {"server_lr": 0.1},
    "mgdaprox": {"mu": 4.0, "server_lr": 0.1},
    "fedfv": {"alpha": 0.1, "tau": 1},
    "adafed": {"gamma": 1.0, "server_lr": 0.3},
    "fairmoo": {"tolerance": 0.01, "server_lr": 0.3},
    "ditto": {"lam": 1.0},
}
"""The arguments of the methods: step sizes for this problem, and parameters with a visible effect.

A method that has a parameter without a default needs an entry here.
"""

NOTES = {
    "scaffold": "It ends at the minimum of the mean loss.",
    "feddyn": "It swings past the minimum of the mean loss, and ends there.",
    "fedavgn": "It stops where the updates point against each other, anywhere on the Pareto set.",
    "qfedsgd": "A round is a single gradient step of each client.",
    "drfa": (
        "Two clients are drawn with replacement in each round, so it may be the same one twice."
    ),
    "deltafl": (
        "Of two clients the tail is the one with the higher loss, so steps alternate between them."
    ),
    "gifair": (
        "Of two clients the one with the higher loss has the higher weight, so steps alternate"
        " between them."
    ),
    "vred": (
        "From the right, the lower loss has a negative weight at first, and the model overshoots."
    ),
    "fairfed": (
        "Where the model favours one group at one client and the other at the other, weights shift"
        " every round."
    ),
    "fcfl": (
        "For 20 rounds the larger loss falls, or the larger disparity; then each step is good for"
        " both clients."
    ),
    "eagle": "Alone, either client reaches a loss near zero here, so this is VRed.",
    "aaggff": (
        "Weights go by the losses of all rounds: they overshoot once, and settle where both losses"
        " are equal."
    ),
    "fedpw": (
        "Losses raise the weight of one client, and agreement that of the other: the model ends"
        " near FedAvg's."
    ),
    "fedmgda": "It stops where it meets the Pareto set, whichever client is better off there.",
    "fedmgdaplus": (
        "The shortest combination of two unit updates is their mean: with two clients this is"
        " FedAvgN."
    ),
    "mgdaprox": (
        "The shortest combination of two unit updates is their mean: with two clients this is"
        " FedAvgN."
    ),
    "fedfv": (
        "Where the updates conflict, the client with the lower loss gives way, until both losses"
        " are equal."
    ),
    "adafed": "The steps get longer as the losses fall.",
    "fedlf": (
        "The model is one array, and so one layer: it goes to where the Pareto set is near equal"
        " losses."
    ),
    "fedmdfg": (
        "The higher loss is guided down until the model meets the Pareto set, near equal losses."
    ),
    "fairmoo": (
        "The higher loss falls until both are nearly equal; then both fall, as far as they stay so."
    ),
    "ditto": "Blue and orange lines, left and right, are the personal models.",
    "local": "Blue and orange lines, left and right, are the clients' own models.",
}
"""A sentence that explains a method's figure, if it is not self-evident."""

BLUE = "#0072b2"
ORANGE = "#d95f0e"
GREEN = "#7fbf7b"
DASHES = (0, (4, 2))
WIDTH = (-2.3, 2.5)
HEIGHT = (-2.1, 2.1)
CONTOURS = (0.1, 0.4, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Quadratic:
    """A client with the loss ½ (w − target)ᵀ curvature (w − target).

    `first_group` of its LOCAL_STEPS examples are in the first group.
    """

    target: FloatArray
    curvature: FloatArray
    colour: str
    first_group: int

    def loss(self, w: FloatArray) -> FloatArray:
        """Return the loss at points of shape (…, 2)."""
        away = w - self.target
        return np.asarray(0.5 * np.einsum("...i,ij,...j", away, self.curvature, away))

    @property
    def examples(self) -> Examples:
        """The client's examples: a linear regression with the same loss ½ ‖root w − root target‖².

        The root is a root of the curvature. One example would be enough; there is one for each
        local step, so that a pass over them is a round's local work. For methods that compare
        groups, examples of the first group have the opposite sign, which does not change their loss
        and flips the model's prediction for them; all examples count as positive.
        """
        root = np.linalg.cholesky(self.curvature).T
        second = torch.arange(LOCAL_STEPS) >= self.first_group
        signs = torch.where(second, 1.0, -1.0).double()
        inputs = (
            signs[:, None, None] * torch.from_numpy(root),
            signs[:, None] * torch.from_numpy(root @ self.target),
        )
        return Examples(
            inputs, torch.ones(LOCAL_STEPS, dtype=torch.int64), groups=second.long()[:, None]
        )


CLIENTS = {
    "steep": Quadratic(
        np.array([-0.9, -0.3]), np.array([[2.2, 1.0], [1.0, 2.8]]), BLUE, first_group=2
    ),
    "flat": Quadratic(
        np.array([1.0, 0.4]), np.array([[0.8, -0.5], [-0.5, 1.0]]), ORANGE, first_group=1
    ),
}


@dataclass(frozen=True)
class Course:
    """The course of a run: the models after each round, shape (rounds + 1, 2).

    `globally` is the global model; `personally` has the personal models of clients with one.
    """

    globally: FloatArray
    personally: Mapping[str, FloatArray]

    def losses(self, name: str) -> FloatArray:
        """Return a client's loss after each round, of its personal model if it has one."""
        return CLIENTS[name].loss(self.personally.get(name, self.globally))


# The task -----------------------------------------------------------------------------------------


class Point(nn.Module):
    """A model of two numbers w, which maps (root, aim) to root · w − aim."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, roots: Tensor, aims: Tensor) -> Tensor:
        """Return the outputs, shape (n, 2)."""
        return roots @ self.w - aims


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each example."""
    return 0.5 * outputs.square().sum(dim=1)


def closeness(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a smooth accuracy of each example, from 0 to 1, because FedFa needs an accuracy."""
    return 1.0 / (1.0 + half_squared_error(outputs, targets))


def load(setup: Setup) -> Task:
    """Return the task of the two clients."""
    if setup.clients != len(CLIENTS):
        raise FairbloomError(f"clients = {setup.clients}: the task has {len(CLIENTS)}")

    def splits(client: str) -> Splits:
        examples = CLIENTS[client].examples
        return Splits(train=examples, test=examples)

    return Task(
        tuple(CLIENTS),
        Point,
        half_squared_error,
        splits,
        scores={ACCURACY: closeness},
        groupings={"sign": ("minus", "plus")},
    )


# Runs ---------------------------------------------------------------------------------------------


def strategy(name: str) -> FairStrategy:
    """Return a method with its arguments of this page."""
    if name.startswith("torchjd:"):
        return by_name(name.removeprefix("torchjd:"), fraction_evaluate=0.0)
    declared = parameters_of(name, METHODS[name])
    needed = {each.argument: each.example for each in declared if each.default is None}
    return METHODS[name](**{**needed, **ARGUMENTS.get(name, {})}, fraction_evaluate=0.0)


def epochs_of(name: str) -> int:
    """Return the passes of a client in a round: many if the method keeps states against drift."""
    return MANY_EPOCHS if strategy(name).keeps_states else 1


@cache
def run(name: str, start: tuple[float, float], epochs: int = 1) -> Course:
    """Return the course of a method from `start`, with both clients in every round."""
    first = np.array(start)
    course = [first]
    personal = {client: [first] for client in CLIENTS}
    settings = Settings.of(
        {
            "task": f"{__name__}:load",
            "clients": len(CLIENTS),
            "device": "cpu",
            "batch-size": 1,
            "local-epochs": epochs,
            "learning-rate": LEARNING_RATE,
            "smallest-group": 1,
        }
    )
    with log_from(logging.ERROR):
        method = strategy(name)
        clients = LocalClients(method, RunSettings.of(settings.run_config()))
        rounds = Rounds(method, clients, ROUNDS).run(
            {"w": first}, measure=lambda number: (), measure_after=()
        )
        for finished in rounds:
            course.append(finished.arrays["w"])
            for client in CLIENTS:
                if own := clients.local(client).personal(before=finished.number + 1).state:
                    personal[client].append(own["w"].numpy())
    kept = {client: np.array(models) for client, models in personal.items() if len(models) > 1}
    return Course(np.array(course), kept)


def pareto_set(points: int = 200) -> FloatArray:
    """Return models at which a client gains only at the other's cost: minima of mixed losses."""
    first, second = CLIENTS.values()
    mixtures = [
        np.linalg.solve(
            (1 - share) * first.curvature + share * second.curvature,
            (1 - share) * first.curvature @ first.target + share * second.curvature @ second.target,
        )
        for share in np.linspace(0.0, 1.0, points)
    ]
    return np.array(mixtures)


# The figure ---------------------------------------------------------------------------------------


def drawn(name: str, title: str) -> bytes:
    """Return the SVG of a method's course and the clients' losses, on the same axes for all."""
    with (
        themed(),
        rc_context({"font.size": 9.5, "axes.titlesize": 10.5, "axes.titlelocation": "left"}),
    ):
        figure = Figure(figsize=(9.6, 4.5), layout="constrained")
        plane, rounds = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
        _draw_plane(plane, name)
        _draw_losses(rounds, name)
        figure.legend(
            handles=_legend(name, title), loc="outside lower center", ncols=5, frameon=False
        )
        return svg_of(figure)


def _draw_plane(axes: Axes, name: str) -> None:
    x, y = np.meshgrid(np.linspace(*WIDTH, 200), np.linspace(*HEIGHT, 200))
    for quadratic in CLIENTS.values():
        losses = quadratic.loss(np.stack([x, y], axis=-1))
        colour = quadratic.colour
        axes.contour(x, y, losses, CONTOURS, colors=colour, linewidths=0.8, alpha=0.4, zorder=1)
        axes.plot(
            *quadratic.target, "P", color=colour, markersize=10, markeredgecolor=PAPER, zorder=8
        )
    axes.plot(
        *pareto_set().T, color=GREEN, linewidth=8, alpha=0.5, solid_capstyle="round", zorder=2
    )
    for start in STARTS:
        course = run(name, start, epochs_of(name))
        if epochs_of(name) > 1:
            fedavg = run("fedavg", start, epochs_of(name)).globally
            axes.plot(*fedavg.T, color=INK, linewidth=1.0, linestyle=DASHES, zorder=3)
            axes.plot(*fedavg[-1], "X", color=INK, markersize=9, markeredgecolor=PAPER, zorder=7)
        for client, points in course.personally.items():
            _draw_course(axes, points, CLIENTS[client].colour)
        if np.ptp(course.globally, axis=0).any():
            _draw_course(axes, course.globally, INK)
        filled = INK if start == STARTS[0] else PAPER
        axes.plot(*start, "o", color=INK, markersize=8, markerfacecolor=filled, zorder=6)
    axes.set(
        xlim=WIDTH, ylim=HEIGHT, xticks=[], yticks=[], aspect="equal", title="Where the model goes"
    )
    axes.spines[:].set_color("#cccccc")


def _draw_course(axes: Axes, points: FloatArray, colour: str) -> None:
    axes.plot(*points.T, color=colour, linewidth=1.1, marker=".", markersize=3.5, zorder=4)
    axes.plot(*points[-1], "*", color=colour, markersize=13, markeredgecolor=PAPER, zorder=7)


def _draw_losses(axes: Axes, name: str) -> None:
    for client, quadratic in CLIENTS.items():
        if name != "fedavg":
            axes.plot(
                run("fedavg", STARTS[0], epochs_of(name)).losses(client),
                color=quadratic.colour,
                linewidth=1.2,
                linestyle=DASHES,
            )
        axes.plot(
            run(name, STARTS[0], epochs_of(name)).losses(client),
            color=quadratic.colour,
            linewidth=2.2,
        )
    axes.set(
        xlim=(0, ROUNDS),
        yscale="log",
        ylim=(0.01, 7.0),
        xlabel="round",
        title="The clients' losses, from the filled circle",
    )
    axes.yaxis.set_major_locator(FixedLocator([0.01, 0.03, 0.1, 0.3, 1.0, 3.0]))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _legend(name: str, title: str) -> list[Line2D]:
    handles = [
        Line2D(
            [],
            [],
            color=quadratic.colour,
            linewidth=2.2,
            marker="P",
            markersize=7,
            label=f"{client} client",
        )
        for client, quadratic in CLIENTS.items()
    ]
    handles.append(Line2D([], [], color=GREEN, linewidth=8, alpha=0.5, label="Pareto set"))
    if name != "local":
        personally = run(name, STARTS[0], epochs_of(name)).personally
        label = f"{title}, global model" if personally else title
        handles.append(
            Line2D([], [], color=INK, linewidth=1.1, marker="*", markersize=9, label=label)
        )
    if name != "fedavg":
        label = "FedAvg" if epochs_of(name) > 1 else "losses under FedAvg"
        handles.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=DASHES, label=label))
    return handles
