"""A method that is new among the built-in ones; as a plugin of pytest (`-p`) it is there before tests are collected."""

from typing import Annotated, Unpack

from fairbloom.rounds.options import Options
from fairbloom.rounds.ranges import Choices, Range
from fairbloom.strategies import METHODS, FedAvg


class NewlyAdded(FedAvg):
    """A method that has a parameter without a default, and that no list of the tests names.

    Source: none.

    Parameters
    ----------
    sharpness
        How sharp it is.
    shape
        Which shape it has.

    Objective: the mean loss
    Good for: a test.
    Hurts when: never.
    Memory: none
    Cost: a weighted sum
    """

    def __init__(
        self,
        *,
        sharpness: Annotated[float, Range("(0, 0.5]")],
        shape: Annotated[str, Choices("round", "square")] = "round",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.sharpness = sharpness
        self.shape = shape


def pytest_configure() -> None:
    """Add the method."""
    METHODS["newlyadded"] = NewlyAdded
