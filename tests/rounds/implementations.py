"""All implementations of ClientPool, and what a run shows of them.

A new implementation is one more line of IMPLEMENTATIONS.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from fairbloom.client.app import app
from fairbloom.protocol.names import BETWEEN_GROUPS
from fairbloom.protocol.settings import RunSettings
from fairbloom.rounds.arrays import Model
from fairbloom.rounds.clients import ClientPool, Replies, TrainReplies
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.round import Round
from fairbloom.rounds.updates import Updates
from fairbloom.server.settings import Settings
from fairbloom.simulation.clients import LocalClients
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.stacked.clients import StackedClients
from fairbloom.strategies import METHODS, FairStrategy
from fairbloom.tasks import load_task
from fairbloom.tasks.models import frozen_parameters, shared_parameters

Config = dict[str, Any]

# Each returns the clients of a method and a run config; the others are compared with the first.
IMPLEMENTATIONS: dict[str, Callable[[Method, Config], ClientPool]] = {
    "local": lambda method, config: LocalClients(method, RunSettings.of(config)),
    "stacked": lambda method, config: StackedClients(method, RunSettings.of(config), block=3),
    "flower": lambda method, config: FlowerClients(
        method, InProcessGrid(app, config, config["clients"]), timeout=60.0
    ),
}

PLAIN: Config = {"clients": 5, "num-rounds": 3, "fraction": 0.6, "device": "cpu", "seed": 2}

# The data of the methods that compare groups.
GROUPED: dict[str, Config] = {
    name: {"task": "tests.nets:even", "smallest-group": 1}
    for name, method in METHODS.items()
    if method.needs & BETWEEN_GROUPS
}

CASES: dict[str, Config] = {
    **{name: {"method": name, **GROUPED.get(name, {})} for name in METHODS},
    "a model with buffers": {"model": "tests.nets:Normed", "method": "fedfv", "batch-size": 20},
    "snapshots of a model with buffers": {
        "model": "tests.nets:Normed",
        "method": "drfa",
        "batch-size": 20,
    },
    "personal models with buffers": {"model": "tests.nets:Normed", "personal-lambda": 0.5},
    "personal models, proximal, momentum": {
        "personal-lambda": 0.5,
        "proximal-mu": 0.1,
        "momentum": 0.9,
    },
    "stragglers": {"stragglers": 0.7, "local-epochs": 3, "method": "afl"},
    "stragglers that are left out": {
        "stragglers": 0.5,
        "drop-stragglers": True,
        "fraction": 1.0,
        "method": "fedfv",
    },
    "replies that are out of proportion": {
        "max-growth": 1.0,
        "enrolled-sizes": "client-1=5",
        "method": "semivred",
    },
    "evaluated after the last round only": {"evaluate-every": 0},
    "a convolutional network": {"model": "cnn", "method": "fedmgdaplus", "num-rounds": 2},
    "two layers": {"model": "mlp", "method": "fedlf"},
    **{
        f"{name}, two layers": {"method": name, "model": "mlp", **GROUPED.get(name, {})}
        for name in (
            "fedprox",
            "scaffold",
            "feddyn",
            "propfair",
            "drfa",
            "eagle",
            "fedfa",
            "fairfed",
            "fcfl",
            "ditto",
        )
    },
    "personal convolutional networks": {"model": "cnn", "method": "ditto", "num-rounds": 2},
    "momentum, stragglers, full batch": {
        "momentum": 0.5,
        "stragglers": 0.5,
        "local-epochs": 3,
        "batch-size": 0,
    },
    "clients of unequal size": {
        "partition": "dirichlet",
        "dirichlet-alpha": 0.1,
        "weight-decay": 0.01,
    },
    "adamw, clipping and a schedule": {
        **{
            "optimizer": "adamw",
            "learning-rate": 0.01,
            "weight-decay": 0.01,
            "gradient-clip": 0.5,
            "model": "mlp",
        },
        **{"schedule": "cosine", "warmup": 1, "num-rounds": 4, "personal-lambda": 0.5},
    },
    "control variates, a proximal term, personal models, stragglers": {
        **{
            "control-variates": True,
            "proximal-mu": 0.1,
            "personal-lambda": 0.5,
            "weighting": "uniform",
        },
        **{"stragglers": 0.5, "local-epochs": 3, "schedule": "cosine"},
    },
    "control variates of a model with buffers": {
        **{"model": "tests.nets:Normed", "method": "scaffold", "batch-size": 20},
    },
    "control variates and frozen parameters": {
        "model": "tests.nets:Adapted",
        "control-variates": True,
    },
    "a dynamic regularizer of a model with buffers": {
        **{
            "model": "tests.nets:Normed",
            "method": "feddyn",
            "batch-size": 20,
            "weight-decay": 0.01,
        },
    },
    "a rule of the user's own, personal models": {
        **{
            "client-rule": "tests.client.own_rules:Momentum",
            "method": "fedfv",
            "personal-lambda": 0.5,
        },
    },
    "a rule that replies something else": {"client-rule": "tests.client.own_rules:Half"},
    "averaged and personal models": {"personal-lambda": 0.5, "average-models": True},
    "losses of full batches": {"method": "qfedavg", "reported-loss": "batches", "batch-size": 0},
    "few clients train": {"method": "drfa", "training-clients": "client-4,client-0,client-1"},
    "a rate that decays": {"method": "qfedsgd", "personal-lambda": 0.5, "learning-rate-decay": 0.5},
    "validation examples": {"method": "ditto", "validation-share": 0.2},
    "frozen parameters": {"model": "tests.nets:Adapted", "method": "fedmgdaplus"},
    "frozen parameters of personal models": {"model": "tests.nets:Plain", "personal-lambda": 0.5},
    "snapshots of a model with frozen parameters": {
        "model": "tests.nets:Adapted",
        "method": "drfa",
    },
    "updates in bfloat16": {"wire-dtype": "bfloat16-updates", "method": "fedfv"},
    "updates in bfloat16, and the model": {"wire-dtype": "bfloat16", "model": "tests.nets:Normed"},
    "the model in bfloat16, snapshots of frozen parameters": {
        "wire-dtype": "bfloat16",
        "model": "tests.nets:Adapted",
        "method": "drfa",
    },
    "the model in bfloat16, second models": {
        "wire-dtype": "bfloat16",
        **{"method": "fcfl", **GROUPED["fcfl"]},
    },
}


def settings_of(case: str, *, in_float64: bool = False) -> Settings:
    """Return a case's settings; `in_float64` has no effect on a case with its own task."""
    return Settings.of(PLAIN | ({"task": "tests.nets:doubled"} if in_float64 else {}) | CASES[case])


def method_and_model(settings: Settings) -> tuple[FairStrategy, dict[str, Any]]:
    """Return the method of a run, and the initial model of its task."""
    module = load_task(settings.run_config()).model()
    model = {name: tensor.detach().numpy().copy() for name, tensor in module.state_dict().items()}
    names = {
        "buffers": [name for name, buffer in module.named_buffers() if buffer.is_floating_point()],
        "shared": shared_parameters(module),
        "frozen": frozen_parameters(module),
    }
    return settings.strategy(**names), model


def bits(model: Model) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (str(array.dtype), array.shape, array.tobytes()) for name, array in model.items()}


def rows_of(updates: Updates | None) -> tuple[bytes, ...]:
    """Return every row to the bit, in the order of names."""
    if updates is None:
        return ()
    return tuple(row.tobytes() for block in updates.vectors.blocks for row in np.asarray(block))


def watch(clients: ClientPool) -> list[tuple[str, dict[str, Any]]]:
    """Return a list that gets the clients' replies, before the round screens them."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def noting(what: str, ask: Callable[..., Replies]) -> Callable[..., Replies]:
        def asked(names: Sequence[str], *others: Any, **more: Any) -> Replies:
            replies = ask(names, *others, **more)
            seen.append((what, {**contents_of(replies), "asked": tuple(names)}))
            return replies

        return asked

    vars(clients).update(
        train=noting("trained", clients.train), evaluate=noting("evaluated", clients.evaluate)
    )
    return seen


def contents_of(replies: Replies) -> dict[str, Any]:
    """Return the contents of replies. Reasons differ between implementations, so only their clients
    count."""
    trained = isinstance(replies, TrainReplies)
    return {
        "names": replies.names,
        "metrics": [list(report.items()) for report in replies.metrics.values()],
        "refused": list(replies.refused.reasons),
        "missing": replies.missing,
        "updates": rows_of(replies.updates) if trained else (),
        "snapshots": rows_of(replies.second) if trained else (),
    }


def assert_same_replies(ours: Replies, expected: Replies, tolerance: float) -> None:
    """Check that metrics, in their order, and updates are equal up to a tolerance."""
    assert ours.refused.reasons.keys() == expected.refused.reasons.keys()
    assert {name: [*report] for name, report in ours.metrics.items()} == {
        name: [*report] for name, report in expected.metrics.items()
    }
    for name, report in expected.metrics.items():
        due = pytest.approx([*report.values()], rel=tolerance, abs=tolerance)
        assert [*ours.metrics[name].values()] == due
    if isinstance(ours, TrainReplies) and isinstance(expected, TrainReplies):
        for updates, due in ((ours.updates, expected.updates), (ours.second, expected.second)):
            assert (updates is None) == (due is None)
            if updates is not None and due is not None:
                np.testing.assert_allclose(
                    updates.vectors.blocks[0], due.vectors.blocks[0], rtol=0, atol=tolerance
                )


@dataclass(frozen=True)
class Outcome:
    seen: list[tuple[str, dict[str, Any]]]
    rounds: list[Round]
    state: Mapping[str, Any]


@cache
def outcome(implementation: str, case: str, *, in_float64: bool = False) -> Outcome:
    """Run a case; the same object again, since several tests look at it."""
    settings = settings_of(case, in_float64=in_float64)
    method, model = method_and_model(settings)
    engine = IMPLEMENTATIONS[implementation](method, dict(settings.run_config()))
    seen = watch(engine)
    loop = Rounds(method, engine, settings.num_rounds)
    measured = lambda number: ["loss-before"] if loop.evaluates(number) else []  # noqa: E731 (as server/app.py does)
    rounds = list(loop.run(model, measure=measured, measure_after=["train-loss"]))
    if isinstance(engine, LocalClients):
        engine.close()
    return Outcome(seen, rounds, method.state_dict())
