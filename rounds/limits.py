"""The limits that a method's options set to a round: which replies they refuse, and which step."""

import math
from collections.abc import Mapping

import numpy as np

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.names import NUM_EXAMPLES

from .clients import Trained
from .lengths import Usual, too_long
from .method import Method
from .screening import beyond_others, implausible_counts, largest_in_proportion, out_of_proportion
from .updates import DTYPES, STATISTICS, FloatArray, Layout, Model


class BrokenModelError(FairbloomError):
    """A global model that cannot be trained; the message names the array that is broken."""


# Replies ------------------------------------------------------------------------------------------------------------


def screen_reports(method: Method, trained: Trained, first_limit: float = math.inf) -> None:
    """Leave out replies with implausible counts, or with losses out of proportion to the others.

    A client's first count may be `first_limit` times the others' median.
    """
    implausible = implausible_counts(
        trained.metrics,
        method.weighted_by_key,
        enrolled=method.enrolled_sizes,
        first=method.progress.first_counts,
        max_growth=method.max_growth,
        first_limit=first_limit,
    )
    for name, reason in implausible.items():
        trained.refuse(name, reason)
    for name, reason in out_of_proportion(trained.metrics, method.needs, method.loss_limit).items():
        trained.refuse(name, reason)


def usable_sizes(method: Method, sizes: Mapping[str, float], first_limit: float = math.inf) -> dict[str, float]:
    """Return which of the sizes that clients say they have can be the weights of their replies.

    Where replies are weighted by another metric, none can; a client that was enrolled with fewer examples, or says
    that it has far more than the others, says in its first usable reply how many it has.
    """
    if method.weighted_by_key != NUM_EXAMPLES:
        return {}
    first, enrolled = method.progress.first_counts, method.enrolled_sizes
    return {
        name: size
        for name, size in sizes.items()
        if (size <= enrolled[name] if name in enrolled else not beyond_others(name, size, first, first_limit))
    }


def screen_buffers(method: Method, trained: Trained) -> None:
    """Leave out replies with buffers that change out of proportion to the global model's and to the others' changes.

    Buffers are no part of the update; but they are averaged, and one absurd variance would spoil every evaluation.
    """
    layout, limit = trained.updates.layout, method.update_limit
    if not layout.buffers or limit == math.inf:
        return
    changes = dict(zip(trained.names, trained.updates.buffer_changes().tolist(), strict=True))
    most = largest_in_proportion(changes.values(), limit, layout.distance(None, layout.buffers))
    for name, change in changes.items():
        if change > most:
            trained.refuse(
                name,
                f"its buffers ({', '.join(layout.buffers)}) change by {change:g}, beyond {most:g}: {limit:g} times "
                "(update_limit) the larger of the received model's buffers and the round's median change",
            )


def screen_lengths(method: Method, trained: Trained, server_round: int) -> Usual | None:
    """Leave out replies whose update is too long; return what is usual among the others, None where none is left.

    A snapshot keeps to the bound of its client's update. Second updates that are rows are compared with each other: a
    gradient of something else than the loss has another length.
    """
    layout, past = trained.updates.layout, method.progress.lengths.before(server_round)

    def refuse(lengths: FloatArray, what: str, longest: FloatArray | None = None) -> Usual | None:
        names, counts, compared = trained.names, trained.column(NUM_EXAMPLES), lengths if longest is None else longest
        refused, found = too_long(lengths, counts, past, lambda: layout.length, method.update_limit, longest)
        for place, bound in refused:
            which = what if longest is None or lengths[place] <= bound else "update"
            trained.refuse(
                names[place],
                f"its {which} has the length {compared[place]:g}, beyond {bound:g}: the larger of the received model's "
                f"length ({layout.length:g}) and {method.update_limit:g} times (update_limit) what is usual for its "
                "number of examples",
            )
        return found

    second, lengths = trained.second, trained.updates.lengths
    if second is None:
        return refuse(lengths, "update")
    if not method.has_second_rows:
        return refuse(lengths, method.second, np.maximum(lengths, second.lengths))
    refuse(second.lengths, method.second)
    return refuse(trained.updates.lengths, "update")


# Steps --------------------------------------------------------------------------------------------------------------


def check_step(method: Method, layout: Layout, step: float, longest_update: float) -> None:
    """Raise ValueError where a step of this length is too long for the received model, the updates and earlier steps.

    With a server optimizer it is the method's step: that an update is absurd shows there. An adaptive step is no longer
    for a longer update, and one with momentum is as long as several steps; the user's step size says how long.
    """
    limit = method.update_limit
    known = max(longest_update, method.progress.lengths.longest_step)
    if step > limit * known and step > limit * layout.length:
        raise ValueError(
            f"the step has the length {step:g}, beyond {limit:g} times (update_limit) the largest of the received "
            f"model's length ({layout.length:g}), the longest update's and the longest step's so far ({known:g})"
        )


# Models -------------------------------------------------------------------------------------------------------------


def explain_not_finite(trained: Trained, server_round: int) -> str:
    """Return what is wrong with the received model where replies are not finite because of it, else "".

    The reasons of these replies say so then: no client is to be blamed for a model that another one broke.
    """
    names = trained.refused.not_finite
    if not names or (len(names) == 1 and trained.names):  # of one among several, it is that client's fault
        return ""
    layout = trained.updates.layout
    words = describe_broken({name: layout.finite_part(name, array) for name, array in layout.arrays.items()})
    if words:
        log.error("round %d: %s", server_round, words, extra={"round": server_round})
        for name in names:
            trained.refused.explain(name, words)
    return words


def check_model(method: Method, model: Model) -> None:
    """Raise BrokenModelError where what is trained of the first model is not finite, or where it has integers alone.

    Log where it is broken but finite.
    """
    if model and all(array.dtype.kind in "iub" for array in model.values()):
        arrays = ", ".join(f"{name} ({array.dtype})" for name, array in model.items())
        raise BrokenModelError(
            f"the model has no array of floats, which alone are trained: {arrays}. Send its parameters as float32"
        )
    for name, array in model.items():
        if array.dtype.kind not in "fiub":
            raise BrokenModelError(f"array {name!r} has dtype {array.dtype}; only {DTYPES} are supported")
    statistics = [name for name in model if name.endswith(STATISTICS)]
    untrained = {*method.frozen, *(statistics if method.buffers is None else method.buffers)}
    finite = {name: array[np.isfinite(array)] if name in untrained else array for name, array in model.items()}
    words = describe_broken(finite)
    if not all(np.isfinite(array).all() for array in finite.values()):
        raise BrokenModelError(
            f"no client can train: {words}. A constant that nobody trains, as a mask, is a buffer (register_buffer) of "
            "a model of PyTorch; name others by frozen=(…,) or buffers=(…,) of the strategy"
        )
    if words:
        log.error("%s", words)


def describe_broken(model: Model) -> str:
    """Return in words that a global model is not finite, or far too large, and in which array; "" where it is not."""
    floats = {name: array for name, array in model.items() if array.dtype.kind == "f"}
    largest = {name: float(np.abs(array).max(initial=0.0)) for name, array in floats.items()}
    # where training fails with a larger parameter, the model is the reason
    worst = next((name for name, value in largest.items() if not value <= 1e6), "")
    return f"the global model is broken: array {worst!r} has an entry of {largest[worst]:g}" if worst else ""
