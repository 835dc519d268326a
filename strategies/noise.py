"""Which methods can be private in Flower's wrappers, which add noise to the model."""

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.rounds.method import Method


def check_noise(method: Method, wrapper: object, has_scalars: bool) -> None:
    """Raise FairbloomError if a wrapper's noise is too small for a method, or hits fixed arrays.

    Flower scales the noise for a model that one client's reply moves by at most twice the clipping
    norm over the number of clients. Weights by losses or updates, and steps that are scaled, may
    move it further, and so may arrays without dimensions (`has_scalars`), which it does not clip.
    """
    if not getattr(wrapper, "noise_multiplier", 0.0) > 0.0:
        return
    name = type(method).__name__
    reason = _why_too_small(method, has_scalars)
    if reason:
        raise FairbloomError(
            f"{type(wrapper).__name__} with {name}: its noise is for a mean of clipped updates of"
            f" all arrays, and {reason}: let the clients add noise, by Flower's LocalDpMod"
            " (docs/privacy.md), or take a plain FedAvg"
        )
    if method.weighting != "uniform" or method.prior:
        log.warning(
            "%s: its noise is for clients that count alike, and one with more examples moves the"
            " model further: weighting='uniform' makes them",
            type(wrapper).__name__,
        )


def _why_too_small(method: Method, has_scalars: bool) -> str:
    """Return why a client may move the model further than a wrapper's noise covers, or ""."""
    if not method.weighs_by_prior:
        return f"{type(method).__name__} has weights that depend on losses or updates"
    if method.control_variates:
        return "control variates correct the step"
    if method.server_optimizer is not None:
        return "server_optimizer scales the step"
    if method.personal_parameters:
        return "personal_parameters are not in the updates"
    if method.frozen:
        return "frozen arrays would get noise, too"
    if has_scalars:
        return "Flower clips no array without dimensions (make it one of shape (1,))"
    return ""
