"""The properties of methods: a function checks each and returns its finding."""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fairbloom.client.generators import all_seeded
from fairbloom.errors import FairbloomError
from fairbloom.protocol import names as wire
from fairbloom.protocol.parameters import Parameter, parameters_of
from fairbloom.protocol.settings import Value
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.server.checkpoint import load_checkpoint, save_checkpoint
from fairbloom.strategies import FairStrategy

from .report import CheckFailedError, Failure, NotApplicable, bits, silence
from .subject import MethodUnderTest, initial_model, real_clients

# What the memory of a method may consist of.
STORED = "dicts by str, lists, str, int, float, bool, None and NumPy arrays of numbers"

# A sum of coefficients that is less than this share of their sizes is about 0.
TOLERANCE = 1e-3

# The number of rounds in which a method must learn something.
LEARNING_ROUNDS = 3


def check_method(
    method: Callable[..., FairStrategy], arguments: Mapping[str, Value] | None = None
) -> dict[str, str]:
    """Check every property of a method; takes a few seconds.

    Parameters
    ----------
    method
        The method's class, or another function that makes it.
    arguments
        The values of its parameters, as {"share": 0.3}; by default all have their defaults.

    Returns
    -------
    dict
        What was found, by property. What you should judge yourself begins with "Remark: ", a
        property that cannot be checked with "Not checked: ".

    Raises
    ------
    CheckFailedError
        When a property fails; the message has the fault.
    """
    subject = MethodUnderTest(method, arguments or {})
    found = dict[str, str]()
    with silence():
        for name, check_property in PROPERTIES.items():
            try:
                found[name] = check_property(subject)
            except NotApplicable as reason:
                found[name] = f"Not checked: {reason}"
            except Failure as fault:
                raise CheckFailedError(f"{subject.name} fails {name}: {fault}") from None
    return found


# Parameters ---------------------------------------------------------------------------------------


def check_parameters(subject: MethodUnderTest) -> str:
    """The method takes its parameters and the common options."""
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
    return f"Its own: {', '.join(each.argument for each in declared) or 'none'}."


# State --------------------------------------------------------------------------------------------


def check_determinism(subject: MethodUnderTest) -> str:
    """Rounds with the same clients end in the same bits, whatever else the process has done."""
    found = []
    for seed in (1, 2):
        with all_seeded(seed):
            found.append(subject.run_rounds(subject.create(fraction_train=0.5), 3))
    subject.compare(
        found[0],
        found[1],
        "Repeated with the same seed, it differs: draw from fairbloom.protocol.streams.generator("
        "self.seed, 'what for', cohort.round), and read no clock.",
    )
    return "Repeated, three rounds are the same to the bit."


def check_resume(subject: MethodUnderTest) -> str:
    """A run that is killed and continued from its checkpoint ends as one that is not."""
    rounds = subject.run_rounds(subject.create(fraction_train=0.5), 4)
    with (
        TemporaryDirectory() as folder,
        all_seeded(1),
        subject.explain_errors("Stopped after round 2 and continued, "),
    ):
        stopped = subject.create(fraction_train=0.5)
        continued = subject.create(fraction_train=0.5)
        file = Path(folder, "checkpoint.safetensors")
        again = subject.run_rounds(stopped, 2, state_dir=folder)
        with subject.explain_errors(f"Saved in a checkpoint, which keeps {STORED}, "):
            save_checkpoint(file, again[-1].arrays, stopped.state_dict())
        model, state = load_checkpoint(file)
        continued.load_state_dict(state)
        memory = stopped.run_state.memory
        if bits(continued.run_state.memory) != bits(memory):
            raise Failure(
                f"The memory {memory!r} comes back from a checkpoint as something else: it keeps"
                f" {STORED}."
            )
        again += subject.run_rounds(continued, 2, model, state_dir=folder)
    subject.compare(
        rounds,
        again,
        "Stopped after round 2 and continued from its checkpoint and its clients' files, it"
        " differs: what weigh uses of earlier rounds must be in a Decision's memory, or in its"
        " rows.",
    )
    return "Continued after round 2 from what was stored, rounds 3 and 4 are the same to the bit."


# What it is good for ------------------------------------------------------------------------------


def check_learns(subject: MethodUnderTest) -> str:
    """Rounds with real clients lower their mean loss."""
    method = subject.create(fraction_evaluate=0.0)
    clients = real_clients(method)
    first = initial_model(clients)
    rounds = subject.run_rounds(method, LEARNING_ROUNDS, first, batch_size=20, learning_rate=0.1)
    coefficients = [np.array(list(finished.coefficients.values())) for finished in rounds]
    if not any(c.any() for c in coefficients):
        return (
            "Remark: all coefficients are 0: the global model stays as it is, and only personal"
            " ones could learn."
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
        return (
            f"Remark: the mean loss did not fall: the step is too long, or goes for something else."
            f" {said}"
        )
    return said


# The check of every property by the property's name, in the order in which a report has them.
PROPERTIES: Mapping[str, Callable[[MethodUnderTest], str]] = {
    "parameters": check_parameters,
    "determinism": check_determinism,
    "resume": check_resume,
    "learns": check_learns,
}
