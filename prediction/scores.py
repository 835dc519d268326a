"""How a model serves a site, in numbers."""

from collections.abc import Mapping
from dataclasses import dataclass

from fairbloom.protocol.scores import Score


@dataclass(frozen=True)
class SiteScores:
    """How a model serves a site: `values` are the finite test scores by name, in the unit of tables.

    `interval` is Wilson's 95 % interval of the accuracy, None where that is no score.
    """

    site: str
    train_examples: int
    test_examples: int
    scores: tuple[Score, ...]
    values: Mapping[str, float]
    interval: tuple[float, float] | None
