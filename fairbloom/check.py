"""Checks of your own methods, for a test of your project.

With pytest, for example::

    from fairbloom.check import check_method

    def test_my_method() -> None:
        check_method(MyMethod)
"""

import logging
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairbloom.errors import FairbloomError
from fairbloom.experiments import api
from fairbloom.logs import log_from
from fairbloom.protocol.names import BETWEEN_GROUPS
from fairbloom.protocol.settings import Value
from fairbloom.rounds.arrays import Model
from fairbloom.strategies import FairStrategy
from fairbloom.tasks import TASKS, Examples, Setup, Task
from fairbloom.tasks.datasets.digits import SIDE
from fairbloom.tasks.task import AnyExamples

# The rounds of a checked run.
ROUNDS = 4


class CheckFailedError(AssertionError):
    """A method that fails a check; the message says what and where."""


def check_method(
    method: type[FairStrategy], arguments: Mapping[str, Value] | None = None
) -> dict[str, str]:
    """Train with a method in this process, once more, and from a checkpoint; takes a few seconds.

    Parameters
    ----------
    method
        The method's class.
    arguments
        The values of its parameters, as {"share": 0.3}; by default all have their defaults.

    Returns
    -------
    dict
        What was found, by property: determinism and resume.

    Raises
    ------
    CheckFailedError
        When a property fails; the message has the fault.
    """
    given: dict[str, Any] = {**arguments} if arguments else {}
    name = f"{method.__name__}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
    try:
        with TemporaryDirectory() as place:
            first = _train(method, given, Path(place, "first"), ROUNDS)
            again = _train(method, given, Path(place, "again"), ROUNDS)
            # a run whose steps depend on the number of its rounds is not extended
            if not method(**given).paced:
                _train(method, given, Path(place, "continued"), ROUNDS // 2)
            continued = _train(method, given, Path(place, "continued"), ROUNDS)
    except FairbloomError as error:
        raise CheckFailedError(f"{name} fails: {error}") from error
    except Exception as error:  # whatever code of the user's raises
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise CheckFailedError(
            f"{name} fails: {type(error).__name__}: {error} ({Path(at.filename).name}, line"
            f" {at.lineno}: `{at.line}`)"
        ) from error
    if not _are_equal(first, again):
        raise CheckFailedError(
            f"{name} fails determinism: repeated with the same seed, it differs: draw from"
            " fairbloom.protocol.streams.generator(self.seed, 'what for', cohort.round), and read"
            " no clock"
        )
    if not _are_equal(first, continued):
        raise CheckFailedError(
            f"{name} fails resume: continued from its checkpoint, it differs: what it remembers"
            " must be in a Decision's memory, or kept as rows"
        )
    return {
        "determinism": f"Repeated, {ROUNDS} rounds are the same to the bit.",
        "resume": f"Continued after {ROUNDS // 2} rounds, they are the same to the bit.",
    }


def even_digits(setup: Setup) -> Task:
    """Return the task of even and odd digits, grouped by the image half with more ink."""
    digits = TASKS["digits"].load(setup.model_copy(update={"model": "logistic"}), {})

    def model() -> nn.Module:
        torch.manual_seed(setup.seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 2))

    def group(part: AnyExamples) -> Examples:
        inputs, targets = part[slice(None)]
        if not isinstance(inputs, Tensor):
            raise TypeError(f"digits are one tensor, got {type(inputs).__name__}")
        columns = inputs.reshape(-1, SIDE, SIDE).sum(dim=1)
        sides = (columns[:, SIDE // 2 :].sum(dim=1) > columns[:, : SIDE // 2].sum(dim=1)).long()
        return Examples(inputs, 1 - targets % 2, groups=sides[:, None])

    return replace(
        digits,
        model=model,
        splits=lambda client: digits.splits(client).map(group),
        classes=2,
        class_names=("odd", "even"),
        groupings={"side": ("left", "right")},
    )


def _train(
    method: type[FairStrategy],
    arguments: Mapping[str, Value],
    folder: Path,
    rounds: int,
) -> Model:
    """Return the model after training half of six clients in each round, on digits."""
    settings = {
        f"{method.__name__.lower()}.{name.replace('_', '-')}": value
        for name, value in arguments.items()
    }
    with log_from(logging.ERROR):
        run = api.run(
            f"{__name__}:even_digits" if BETWEEN_GROUPS & method.needs else "digits",
            method=method,
            clients=6,
            rounds=rounds,
            fraction=0.5,
            device="cpu",
            out=folder,
            settings=settings,
            progress=False,
        )
    return dict(run.arrays())


def _are_equal(one: Model, other: Model) -> bool:
    return all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)
