"""What a client reports as the loss of its training examples; its gradients are those of the plain loss."""

from collections.abc import Mapping

from fairbloom.protocol.names import LOSS
from fairbloom.protocol.settings import RunSettings


def apply_reporting(measures: Mapping[str, float], examples: int, settings: RunSettings) -> dict[str, float]:
    """Return what was measured on a client's n training examples, with the loss as the run has clients report it.

    By `reported-loss`, the mean becomes a total over batches: n / b times the mean with batches of b examples, and of
    all n where there are fewer.
    """
    return {**measures, LOSS: measures[LOSS] * _weight(examples, settings)}


def reports_mean(settings: RunSettings) -> bool:
    """Return whether all clients of a run report the mean loss as it is."""
    return settings.reported_loss == "mean"


def _weight(examples: int, settings: RunSettings) -> float:
    """Return the factor of the mean loss of this many examples."""
    return 1.0 if reports_mean(settings) else examples / min(settings.batch_size or examples, examples)
