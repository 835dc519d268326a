"""What a client reports as the loss of its training examples; its gradients are those of the plain loss."""

from collections.abc import Mapping

from fairbloom.protocol.names import LOSS
from fairbloom.protocol.settings import RunSettings


def apply_reporting(measures: Mapping[str, float], examples: int, settings: RunSettings) -> dict[str, float]:
    """Return what was measured on a client's n training examples, with the loss as the run has clients report it.

    With `reported-loss` = batches, the mean becomes a total over batches: n / b times the mean with batches of b
    examples, and of all n where there are fewer.
    """
    mean = settings.reported_loss == "mean"
    weight = 1.0 if mean else examples / min(settings.batch_size or examples, examples)
    return {**measures, LOSS: measures[LOSS] * weight}
