"""Two clients with a quadratic loss each, and how every method moves a model of two numbers between them."""

import io
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from fairbloom.client.objectives import transform_of
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import METHODS, FairStrategy, Round
from fairbloom.strategies.cohort import FloatArray
from fairbloom.strategies.torchjd import by_name

ROUNDS = 60
LOCAL_STEPS = 5
LEARNING_RATE = 0.05
STARTS = ((-1.2, 1.5), (0.2, -1.6), (1.7, 1.2))
"""The losses over the rounds are shown from the first one."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 4.0},
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
    "fedfa": {"client_momentum": 0.5},
    "fedmgdaplus": {"server_lr": 0.1},
    "mgdaprox": {"mu": 4.0, "server_lr": 0.1},
    "fedfv": {"alpha": 0.1, "tau": 1},
    "adafed": {"gamma": 1.0, "server_lr": 0.3},
    "ditto": {"lam": 1.0},
}
"""What the methods are given here: steps that suit this problem, and parameters whose effect can be seen."""

NOTES = {
    "fedavgn": "It stops where the updates point against each other, anywhere on the Pareto set.",
    "qfedsgd": "A round is a single gradient step of each client.",
    "drfa": "Two clients are drawn with replacement in each round, so it may be the same one twice.",
    "deltafl": "Of two clients the tail is the one with the higher loss, so steps alternate between them.",
    "gifair": "Of two clients the one with the higher loss has the higher weight, so steps alternate between them.",
    "vred": "From the right, the lower loss has a negative weight at first, and the model overshoots.",
    "fedmgda": "It stops where it meets the Pareto set, whichever client is better off there.",
    "fedmgdaplus": "The shortest combination of two unit updates is their mean: with two clients this is FedAvgN.",
    "mgdaprox": "The shortest combination of two unit updates is their mean: with two clients this is FedAvgN.",
    "fedfv": "Where the updates conflict, the client with the lower loss gives way, until both losses are equal.",
    "adafed": "The steps get longer as the losses fall.",
    "ditto": "Blue and orange lines, left and right, are the personal models.",
    "local": "Blue and orange lines, left and right, are the clients' own models.",
}
"""What is to be seen in a figure, where it needs a word."""

BLUE, ORANGE, GREEN, DARK = "#1f6fb4", "#d95f0e", "#7fbf7b", "#222222"
DASHES = (0, (4, 2))
WIDTH, HEIGHT = (-2.3, 2.5), (-2.1, 2.1)
CONTOURS = (0.1, 0.4, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Quadratic:
    """A client whose loss is ½ (w − target)ᵀ curvature (w − target)."""

    target: FloatArray
    curvature: FloatArray
    colour: str

    def loss(self, w: FloatArray) -> FloatArray:
        """Return the loss at one point, or at many, shape (…, 2)."""
        away = w - self.target
        return np.asarray(0.5 * np.einsum("...i,ij,...j", away, self.curvature, away))

    def gradient(self, w: FloatArray) -> FloatArray:
        """Return the gradient at one point."""
        return self.curvature @ (w - self.target)


CLIENTS = {
    "steep": Quadratic(np.array([-0.9, -0.3]), np.array([[2.2, 1.0], [1.0, 2.8]]), BLUE),
    "flat": Quadratic(np.array([1.0, 0.4]), np.array([[0.8, -0.5], [-0.5, 1.0]]), ORANGE),
}


@dataclass(frozen=True)
class Course:
    """Where a run went: the global model, shape (rounds + 1, 2), and the personal ones, where there are any."""

    globally: FloatArray
    personally: Mapping[str, FloatArray]

    def losses(self, name: str) -> FloatArray:
        """Return a client's loss after each round: of its personal model if it has one, else of the global one."""
        return CLIENTS[name].loss(self.personally.get(name, self.globally))


# The clients --------------------------------------------------------------------------------------------------------

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this is; both clients have the same number of examples."""
    return Message(RecordDict({"client": ConfigRecord({"name": _name(context), "num-examples": 1})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take local gradient steps as the server's config says, on the global model and on the personal one."""
    client, w, told = CLIENTS[_name(context)], _model(message), dict(message.content.config_records["config"])
    after, snapshot = (w, w) if told.get("local-only") else descend(client, w, told)
    numbers = {"loss-before": client.loss(w), "accuracy-after": 1.0 / (1.0 + client.loss(after))}
    numbers["learning-rate"] = np.asarray(LEARNING_RATE)
    metrics = MetricRecord({"num-examples": 1, **{key: float(value) for key, value in numbers.items()}})
    content = RecordDict({"arrays": _record(after), "metrics": metrics})
    if "snapshot-step" in told:
        content["snapshot"] = _record(snapshot)
    if "personal-lambda" in told:
        context.state["personal"] = _record(descend_personally(client, w, told, _personal(context, w)))
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Tell the loss of the received model."""
    loss = float(CLIENTS[_name(context)].loss(_model(message)))
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "train-loss": loss})}), reply_to=message)


def descend(client: Quadratic, w: FloatArray, told: Mapping[str, Any]) -> tuple[FloatArray, FloatArray]:
    """Return the model after the local steps from w, and after the step whose model the server asks for."""
    steps = 1 if told.get("full-batch-step") else told.get("local-steps", LOCAL_STEPS)
    x, velocity = w, np.zeros(2)
    snapshot = w
    for step in range(1, steps + 1):
        gradient = slope(client.loss(x), told) * client.gradient(x) + told.get("proximal-mu", 0.0) * (x - w)
        velocity = told.get("client-momentum", 0.0) * velocity + gradient
        x = x - LEARNING_RATE * velocity
        snapshot = x if step == told.get("snapshot-step") else snapshot
    return x, snapshot


def slope(loss: FloatArray, told: Mapping[str, Any]) -> float:
    """Return the derivative of the transform of the loss that the server asks for, 1 where it asks for none."""
    if "loss-transform" not in told:
        return 1.0
    at = torch.tensor(float(loss), requires_grad=True)
    return float(torch.autograd.grad(transform_of(told)(at), at)[0])


def descend_personally(client: Quadratic, w: FloatArray, told: Mapping[str, Any], v: FloatArray) -> FloatArray:
    """Return the personal model after its local steps from v, pulled to the received model w."""
    for _ in range(LOCAL_STEPS * told["personal-epochs"]):
        v = v - LEARNING_RATE * (client.gradient(v) + told["personal-lambda"] * (v - w))
    return v


def _name(context: Context) -> str:
    return list(CLIENTS)[int(context.node_config["partition-id"])]


def _record(w: FloatArray) -> ArrayRecord:
    return ArrayRecord({"w": Array(w)})


def _model(message: Message) -> FloatArray:
    return message.content.array_records["arrays"]["w"].numpy()


def _personal(context: Context, default: FloatArray) -> FloatArray:
    return context.state.array_records["personal"]["w"].numpy() if "personal" in context.state else default


# Runs ---------------------------------------------------------------------------------------------------------------


def strategy(name: str) -> FairStrategy:
    """Return a method as it is run here."""
    if name.startswith("torchjd:"):
        return by_name(name.removeprefix("torchjd:"), fraction_evaluate=0.0)
    return METHODS[name](**ARGUMENTS.get(name, {}), fraction_evaluate=0.0)


@cache
def run(name: str, start: tuple[float, float]) -> Course:
    """Return where a method goes from `start`, both clients taking part in every round."""
    grid = InProcessGrid(app, {}, len(CLIENTS))
    first = np.array(start)
    models, personal = [first], {client: [first] for client in CLIENTS}

    def on_round(finished: Round) -> None:
        models.append(finished.arrays["w"].numpy())
        for context in grid.contexts.values():
            personal[_name(context)].append(_personal(context, first))

    level = logging.getLogger("flwr").level
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        strategy(name).start(grid, _record(first), ROUNDS, on_round=on_round)
    finally:
        logging.getLogger("flwr").setLevel(level)
    has_personal = any("personal" in context.state for context in grid.contexts.values())
    kept = {client: np.array(course) for client, course in personal.items()} if has_personal else {}
    return Course(np.array(models), kept)


def pareto_set(points: int = 200) -> FloatArray:
    """Return the models at which no client can gain but at the other's cost: minimisers of mixtures of the losses."""
    first, second = CLIENTS.values()
    mixtures = [
        np.linalg.solve(
            (1 - share) * first.curvature + share * second.curvature,
            (1 - share) * first.curvature @ first.target + share * second.curvature @ second.target,
        )
        for share in np.linspace(0.0, 1.0, points)
    ]
    return np.array(mixtures)


# The figure ---------------------------------------------------------------------------------------------------------


def drawn(name: str, title: str) -> bytes:
    """Return a PNG of where a method goes and what the clients' losses become; axes are the same for all methods."""
    png = io.BytesIO()
    with rc_context({"font.size": 9.5, "axes.titlesize": 10.5, "axes.titlelocation": "left"}):
        figure = Figure(figsize=(9.6, 4.5), layout="constrained", facecolor="white")
        plane, rounds = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
        _draw_plane(plane, name)
        _draw_losses(rounds, name)
        figure.legend(handles=_legend(name, title), loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(png, dpi=150, metadata={"Software": None})
    return png.getvalue()


def _draw_plane(axes: Axes, name: str) -> None:
    x, y = np.meshgrid(np.linspace(*WIDTH, 200), np.linspace(*HEIGHT, 200))
    for quadratic in CLIENTS.values():
        losses, colour = quadratic.loss(np.stack([x, y], axis=-1)), quadratic.colour
        axes.contour(x, y, losses, CONTOURS, colors=colour, linewidths=0.8, alpha=0.4, zorder=1)
        axes.plot(*quadratic.target, "P", color=colour, markersize=10, markeredgecolor="white", zorder=8)
    axes.plot(*pareto_set().T, color=GREEN, linewidth=8, alpha=0.5, solid_capstyle="round", zorder=2)
    for start in STARTS:
        course = run(name, start)
        for client, points in course.personally.items():
            _draw_course(axes, points, CLIENTS[client].colour)
        if np.ptp(course.globally, axis=0).any():
            _draw_course(axes, course.globally, DARK)
        filled = DARK if start == STARTS[0] else "white"
        axes.plot(*start, "o", color=DARK, markersize=8, markerfacecolor=filled, zorder=6)
    axes.set(xlim=WIDTH, ylim=HEIGHT, xticks=[], yticks=[], aspect="equal", title="Where the model goes")
    axes.spines[:].set_color("lightgray")


def _draw_course(axes: Axes, points: FloatArray, colour: str) -> None:
    axes.plot(*points.T, color=colour, linewidth=1.1, marker=".", markersize=3.5, zorder=4)
    axes.plot(*points[-1], "*", color=colour, markersize=13, markeredgecolor="white", zorder=7)


def _draw_losses(axes: Axes, name: str) -> None:
    for client, quadratic in CLIENTS.items():
        if name != "fedavg":
            axes.plot(run("fedavg", STARTS[0]).losses(client), color=quadratic.colour, linewidth=1.2, linestyle=DASHES)
        axes.plot(run(name, STARTS[0]).losses(client), color=quadratic.colour, linewidth=2.2)
    axes.set(xlim=(0, ROUNDS), yscale="log", ylim=(0.01, 7.0), xlabel="round")
    axes.set_title("The clients' losses, from the filled circle")
    axes.yaxis.set_major_locator(FixedLocator([0.01, 0.03, 0.1, 0.3, 1.0, 3.0]))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def _legend(name: str, title: str) -> list[Line2D]:
    handles = [
        Line2D([], [], color=quadratic.colour, linewidth=2.2, marker="P", markersize=7, label=f"{client} client")
        for client, quadratic in CLIENTS.items()
    ]
    handles.append(Line2D([], [], color=GREEN, linewidth=8, alpha=0.5, label="Pareto set"))
    if name != "local":
        label = f"{title}, global model" if run(name, STARTS[0]).personally else title
        handles.append(Line2D([], [], color=DARK, linewidth=1.1, marker="*", markersize=9, label=label))
    if name != "fedavg":
        handles.append(Line2D([], [], color=DARK, linewidth=1.2, linestyle=DASHES, label="losses under FedAvg"))
    return handles
