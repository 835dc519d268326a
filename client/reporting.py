"""What a client reports as the loss of its training examples; its gradients are those of the plain loss."""

from collections.abc import Mapping
from functools import lru_cache

from fairbloom.protocol.names import LOSS
from fairbloom.protocol.settings import RunSettings, split_names


def apply_reporting(
    measures: Mapping[str, float], examples: int, client: str, settings: RunSettings
) -> dict[str, float]:
    """Return what was measured on a client's n training examples, with the loss as the run has this client report it.

    By `reported-loss`, the mean becomes a total: n times the mean, or n / b times the mean with batches of b examples,
    and of all n where there are fewer. A client that `misreporting-clients` names then multiplies by `reported-loss-
    factor` and adds `reported-loss-bias`.
    """
    loss = measures[LOSS] * _weight(examples, settings)
    if client in _named(settings.misreporting_clients):
        loss = loss * settings.reported_loss_factor + settings.reported_loss_bias
    return {**measures, LOSS: loss}


def reports_mean(settings: RunSettings) -> bool:
    """Return whether all clients of a run report the mean loss as it is."""
    return settings.reported_loss == "mean" and not settings.misreporting_clients


def _weight(examples: int, settings: RunSettings) -> float:
    """Return the factor of the mean loss of this many examples."""
    match settings.reported_loss:
        case "total":
            return examples
        case "batches":
            return examples / min(settings.batch_size or examples, examples)
        case _:
            return 1.0


@lru_cache(maxsize=4)
def _named(clients: str) -> frozenset[str]:
    return frozenset(split_names(clients))
