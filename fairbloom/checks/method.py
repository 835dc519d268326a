"""The properties of methods: a function checks each and returns its finding."""

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from fairbloom.client.generators import all_seeded
from fairbloom.errors import FairbloomError
from fairbloom.protocol import names as wire
from fairbloom.protocol.parameters import Parameter, parameters_of
from fairbloom.protocol.settings import Value
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.strategies import FairStrategy

from .replies import extreme_replies, ordinary_replies, report_in_pairs
from .report import CheckReport, Failure, Remark, check_properties
from .subject import (
    MEASURED,
    ROUNDS,
    TAKING_PART,
    MethodUnderTest,
    initial_model,
    real_clients,
    unknown_metrics,
)

# The numbers of clients with which the shape of coefficients is tried.
SIZES = (1, 2, 3, 10, 50)

# Coefficients and steps that differ by less than this share are the same: some methods solve a
# program for them.
TOLERANCE = 1e-3

# The number of rounds in which a method must learn something.
LEARNING_ROUNDS = 3


def check_method(
    method: Callable[..., FairStrategy], arguments: Mapping[str, Value] | None = None
) -> CheckReport:
    """Check every property of a method; takes about a second.

    Parameters
    ----------
    method
        The method's class, or another function that makes it.
    arguments
        The values of its parameters, as {"share": 0.3}; by default all have their defaults.

    Raises
    ------
    CheckFailedError
        When a property fails; the message has the fault of each.
    """
    subject = MethodUnderTest(method, arguments or {})
    given = ", ".join(f"{name}={value!r}" for name, value in subject.arguments.items())
    name = getattr(subject.source, "__name__", subject.source)
    return check_properties(f"{name}({given})", PROPERTIES, subject)


# Parameters ---------------------------------------------------------------------------------------


def check_parameters(subject: MethodUnderTest) -> str:
    """The method takes its parameters and the common options, and refuses invalid ones."""
    declared: tuple[Parameter, ...] = ()
    factory = subject.factory
    if isinstance(factory, type):
        try:
            declared = parameters_of(factory.__name__.lower(), factory)
        except (FairbloomError, NameError) as error:
            raise Failure(f"{error}. Only so can a setting of a run carry it.") from error
    for parameter in declared:
        if parameter.default is None and parameter.argument not in subject.arguments:
            raise Failure(
                f"{parameter.argument} has no default: give it by --set {parameter.key}=…, or give"
                " it one."
            )
    subject.create()
    try:
        has_options = subject.create(seed=5).seed == 5
    except Failure:
        has_options = False
    if not has_options:
        raise Failure(
            "The common option seed=5 of a run does not reach FairStrategy. Write def"
            " __init__(self, *, share: float = 0.5, **options: Unpack[Options]) and begin it with"
            " super().__init__(**options)."
        )
    for parameter in declared:
        _check_impossible(subject, parameter)
    names = ", ".join(parameter.argument for parameter in declared)
    return f"{names}: impossible values are refused by name." if names else "It has no parameters."


def _check_impossible(subject: MethodUnderTest, parameter: Parameter) -> None:
    """Raise Failure if a parameter takes an unusable number, or refuses it without its name."""
    name = parameter.argument
    kind = parameter.kind
    if kind not in (float, int):
        return
    beyond = [] if "inf" in parameter.range else [math.inf]
    maybe = -1  # it may make sense; where it is refused, this is by name
    for value in (kind(maybe), math.nan, "many", *beyond, *([0.5] if kind is int else [])):
        try:
            subject.factory(**{**subject.arguments, name: value})
        except Exception as error:
            if isinstance(error, TypeError) or (
                isinstance(error, ValueError) and name in str(error)
            ):
                continue
            raise Failure(
                f"{name} = {value!r} raised {error!r}: refuse it by a ValueError that names {name}."
            ) from error
        if value != maybe:
            raise Failure(
                f"{name} = {value!r} is taken, and a run with it would fail later or learn nothing:"
                f" refuse it by a ValueError that names {name}, or annotate it: {name}:"
                " Annotated[float, Range('(0, 1]')] = 0.5."
            )


# What clients are asked for -----------------------------------------------------------------------


def check_needs(subject: MethodUnderTest) -> str:
    """The method asks its clients for what they report, and for work that goes with it."""
    method = subject.create()
    if isinstance(method.needs, str) or not all(isinstance(metric, str) for metric in method.needs):
        raise Failure(
            f"needs = {method.needs!r} is not a set of names: write needs ="
            " frozenset({'loss-before'})."
        )
    unknown = unknown_metrics(method)
    for metric in unknown:
        if close := difflib.get_close_matches(metric, MEASURED, n=1, cutoff=0.8):
            raise Failure(
                f"needs asks for {metric!r}, which no client reports: {close[0]!r} is meant?"
            )
    with subject.explain_errors("In round 7, "):
        terms: object = method.terms(7)
    if not isinstance(terms, Terms) or terms.server_round != 7:
        raise Failure(
            f"terms(7) returned {terms!r}: it must return the terms of round 7, as in "
            "dataclasses.replace(super().terms(server_round), local_steps=5)."
        )
    if method.second == wire.SNAPSHOT and terms.snapshot_step is None:
        raise Failure(
            "second = 'snapshot' awaits models in mid-work: set snapshot_step and local_steps in"
            " terms."
        )
    if (method.second == wire.ARRAYS_DISPARITY) != bool(terms.disparity):
        raise Failure(
            f"second = {method.second!r}, and terms have disparity = {terms.disparity!r}: a step"
            " down the difference between two groups needs both, second ="
            f" {wire.ARRAYS_DISPARITY!r} and a disparity."
        )
    if unknown:
        raise Remark(
            f"Fairbloom's clients do not report {', '.join(unknown)}: a run stops if its clients"
            " lack it."
        )
    return f"It asks for {', '.join(sorted(method.needs)) or 'no metric'}."


# Coefficients -------------------------------------------------------------------------------------


def check_finite(subject: MethodUnderTest) -> str:
    """Weigh returns one finite number for each row, and the step is finite, in all cases."""
    for m in SIZES:
        replies = ordinary_replies(m)
        method = subject.create()
        subject.weigh(method, subject.show(method, replies).cohort, replies.description)
    kept = max(
        len(cohort.memory) for cohort in subject.iterate_rounds(subject.create(), len(TAKING_PART))
    )
    extremes = list(extreme_replies())
    for replies in extremes:
        method = subject.create()
        seen = subject.show(method, replies)
        if not np.isfinite(
            seen.step(subject.weigh(method, seen.cohort, replies.description))
        ).all():
            raise Failure(
                f"Given {replies.description}, the step is beyond all numbers. Such a round is"
                " skipped: bound what you divide by."
            )
    return (
        f"One finite number per client, with {', '.join(map(str, SIZES))} of them, {kept} kept"
        f" rows, and in {len(extremes)} extremes."
    )


def check_permutation(subject: MethodUnderTest) -> str:
    """A coefficient goes with what a client replied, whatever the client is called."""
    several = [
        ordinary_replies(m, seed=1, common=common)
        for m, common in ((3, 1.0), (5, 0.0), (8, 0.3), (50, 1.0))
    ]
    for replies in [*several, *map(report_in_pairs, several)]:
        # neighbours change places: a sort that is stable would keep the order of ties
        order = np.roll(np.arange(len(replies.names))[::-1], 2)
        renamed = replace(replies.select(order), names=replies.names)
        given, step = subject.weigh_fresh(replies)
        after, step_after = subject.weigh_fresh(renamed)
        wanted = given[:, order]
        if _is_same(after, wanted):
            continue
        lengths = np.linalg.norm(renamed.updates, axis=1) + np.linalg.norm(renamed.seconds, axis=1)
        moved = np.abs(after - wanted).max(axis=0) @ lengths  # if all went in one direction
        if np.linalg.norm(step_after - step) <= 0.01 * moved:
            raise Remark(
                "When clients change their names, they get other coefficients, and the step is the"
                " same: several coefficients give it, and the order of names decides which."
            )
        if any(
            not _is_same(subject.weigh_fresh(replies, seed=seed)[0], given) for seed in range(1, 9)
        ):
            raise Remark(
                "The method draws from the seed, and what is drawn goes to clients in the order of"
                " their names: with other names the step is another draw."
            )
        row, k = np.unravel_index(np.argmax(np.abs(after - wanted)), wanted.shape)
        raise Failure(
            f"Given {replies.description}, the client with loss {renamed.column(wire.LOSS)[k]:.2g}"
            f" got the coefficient {wanted[row, k]:.3g}; with other names, and so in another order,"
            f" the same replies got it {after[row, k]:.3g}, and the step is another one. Go by what"
            " clients reply, not by their place in cohort.names: a sort gives equal values ranks by"
            " place."
        )
    return "Clients that are called otherwise, and so come in another order, count as before."


# State --------------------------------------------------------------------------------------------


def check_resume(subject: MethodUnderTest) -> str:
    """A run that is killed and continued from its checkpoint ends as one that is not."""

    def create() -> FairStrategy:
        return subject.create(fraction_train=0.5)

    said = subject.check_resumed(
        create,
        "A checkpoint holds what a Decision remembers and keeps: what weigh uses of earlier rounds"
        " must be in its memory, or in its rows.",
    )
    method = subject.create()
    replies = ordinary_replies(5)
    cohort = subject.show(method, replies, ROUNDS // 2).cohort
    one, other = (
        subject.weigh(method, each, replies.description)
        for each in (cohort, replace(cohort, num_rounds=2 * ROUNDS))
    )
    if not _is_same(one, other) and not method.paced:
        raise Failure(
            f"In round {ROUNDS // 2} the coefficients of a run of {ROUNDS} rounds differ from"
            f" a run of {2 * ROUNDS}. A finished run that is extended by more rounds would"
            " then be neither: say so by a property paced that returns True, and such a run is"
            " refused in words."
        )
    return said


def check_determinism(subject: MethodUnderTest) -> str:
    """The same cohort gets the same coefficients, whatever else the process has done."""
    replies = ordinary_replies(5, seed=4)
    method = subject.create()
    cohort = subject.show(method, replies).cohort
    first = subject.weigh(method, cohort, replies.description)
    with all_seeded(1):
        others = {"asked once more": subject.weigh(method, cohort, replies.description)}
    with all_seeded(2):
        fresh = subject.create()
        others["made afresh"] = subject.weigh(
            fresh, subject.show(fresh, replies).cohort, replies.description
        )
    for what, again in others.items():
        if again.tobytes() != first.tobytes():
            place = tuple(np.argwhere(again != first)[0])
            name = cohort.names[place[-1] % cohort.size]
            raise Failure(
                f"Given the same {replies.description}, {name} got {first[place]:.6g} and, when the"
                f" method was {what}, {again[place]:.6g}. Resumed runs and repeated ones then"
                " differ: draw from fairbloom.protocol.streams.generator(self.seed, 'what for',"
                " cohort.round), and read no clock."
            )
    return "The same replies get the same coefficients to the bit, also in a fresh method."


# What it is good for ------------------------------------------------------------------------------


def check_learns(subject: MethodUnderTest) -> str:
    """Rounds with real clients lower their mean loss."""
    method = subject.create(fraction_evaluate=0.0)
    clients = real_clients(method)
    first = initial_model(clients)
    rounds = subject.run_rounds(method, LEARNING_ROUNDS, first, batch_size=20, learning_rate=0.1)
    coefficients = [subject.weigh_fresh(ordinary_replies(5))[0]]
    coefficients += [np.array(list(finished.coefficients.values())) for finished in rounds]
    if not any(c.any() for c in coefficients):
        raise Remark(
            "All coefficients are 0: the global model stays as it is, and only personal ones could"
            " learn."
        )

    def losses(model: Model) -> FloatArray:
        replies = clients.evaluate(clients.online(1), model, Terms(server_round=1), ())
        return np.array([report[wire.LOSS] for report in replies.metrics.values()])

    before = losses(first)
    after = losses(rounds[-1].arrays)
    sums = [float(np.atleast_2d(c).sum(axis=1)[0]) for c in coefficients]
    between = " to ".join(dict.fromkeys(f"{each:.3g}" for each in (min(sums), max(sums))))
    said = (
        f"In {LEARNING_ROUNDS} rounds on digits, the mean loss of {len(before)} clients went from"
        f" {before.mean():.3g} to {after.mean():.3g}, and that of the worst served from"
        f" {before.max():.3g} to {after.max():.3g}. The sum of the coefficients is"
        f" {between}; FedAvg's is 1."
    )
    # Of a step along the updates above 0, against them below.
    directions = [
        c.sum() if abs(c.sum()) > TOLERANCE * np.abs(c).sum() else 0.0 for c in coefficients
    ]
    if max(directions) <= 0.0:
        what = (
            "are negative: the step goes uphill"
            if min(directions) < 0.0
            else "sum to about 0: where clients agree, no step"
        )
        raise Failure(
            f"The coefficients {what}. {said} An update is u_k = w - w_k and the new model w - sum"
            " of c_k u_k, so coefficients that sum to 1 average the clients' models."
        )
    if not after.mean() < before.mean():
        raise Remark(
            f"{said} The mean loss did not fall: the step is too long, or goes for something else."
        )
    return said


def _is_same(one: FloatArray, other: FloatArray) -> bool:
    """Return whether two arrays are the same to a share of the largest of them."""
    return bool(
        np.abs(one - other).max() <= TOLERANCE * max(np.abs(one).max(), np.abs(other).max())
    )


# The check of every property by the property's name, in the order in which a report has them.
PROPERTIES: Mapping[str, Callable[[MethodUnderTest], str]] = {
    "parameters": check_parameters,
    "needs": check_needs,
    "finite": check_finite,
    "determinism": check_determinism,
    "permutation": check_permutation,
    "resume": check_resume,
    "learns": check_learns,
}
