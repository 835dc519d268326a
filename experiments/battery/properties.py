"""What a method must keep to: each property has a function that checks it and says what it found."""

import difflib
import inspect
import math
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fairbloom.client.generators import all_seeded
from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import ARRAYS_DISPARITY, LOSS, SNAPSHOT
from fairbloom.protocol.parameters import Parameter, parameters_of
from fairbloom.protocol.settings import Value
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.round import Round
from fairbloom.rounds.updates import FloatArray, Model, Vectors, gram_matrix, weighted_sum
from fairbloom.server.checkpoint import load_checkpoint, save_checkpoint
from fairbloom.simulation.loop import LoopClients
from fairbloom.strategies import FairStrategy, FedAvg

from .subject import (
    EVALUATED,
    MEASURED,
    ROUNDS,
    TAKING_PART,
    Failure,
    Situation,
    Subject,
    initial_model,
    ordinary_situation,
    run_config,
    unknown_metrics,
)

SIZES = (1, 2, 3, 10, 50)
"""With so many clients the shape of the coefficients is tried."""

TOLERANCE = 1e-3
"""Coefficients and steps that differ by less than this share are the same: some methods solve a program for them."""

SEVERAL, LARGE = 10, 1_000_000
"""The cost is compared with that of so many updates of so many numbers."""

PATIENCE = 0.003
"""Seconds for which a method may weigh, if it is to be tried with ten times as many clients."""

LEARNED_ROUNDS = 5
"""A method has so many rounds to learn something."""

WORSE = 0.01
"""By this share a client's loss is higher than under FedAvg where it is called worse off."""

LEARNING: Mapping[str, Value] = {"batch_size": 10, "learning_rate": 0.1}
"""How clients train in these rounds."""


class Status(Enum):
    """What became of a property."""

    PASSED = "passed"
    REMARK = "remark"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


Finding = tuple[Status, str]
"""A verdict and its message; a property that fails raises Failure instead."""


# Parameters ---------------------------------------------------------------------------------------------------------


def check_parameters(subject: Subject) -> Finding:
    """The method takes its parameters and the common options, and refuses what it cannot work with."""
    declared = _parameters(subject)
    for parameter in declared:
        if parameter.default is None and parameter.argument not in subject.arguments:
            raise Failure(f"{parameter.argument} has no default: give it by --set {parameter.key}=…, or give it one.")
    subject.create()
    _check_options(subject)
    remarks = [remark for parameter in declared for remark in _try_values(subject, parameter)]
    if remarks:
        return Status.REMARK, " ".join(remarks)
    names = ", ".join(parameter.argument for parameter in declared)
    return Status.PASSED, f"{names}: impossible values are refused by name." if declared else "It has no parameters."


def _parameters(subject: Subject) -> tuple[Parameter, ...]:
    declared = subject.factory
    if not inspect.isclass(subject.factory):
        return ()
    try:
        return parameters_of(declared.__name__.lower(), declared)
    except (FairbloomError, NameError) as error:
        raise Failure(f"{error}. Only so can a setting of a run carry it.") from error


def _check_options(subject: Subject) -> None:
    """Raise Failure where the common options do not reach FairStrategy."""
    remedy = (
        "write def __init__(self, *, share: float = 0.5, **options: Unpack[Options]) and begin it with "
        "super().__init__(**options)"
    )
    try:
        seed = subject.create(seed=5).seed
    except Failure as wrong:
        raise Failure(
            f"The common option seed=5 is not accepted, and runs give it. {wrong} The remedy: {remedy}."
        ) from wrong
    if seed != 5:
        raise Failure(f"The common option seed=5 was given, and the method has seed = {seed!r}: {remedy}.")


def _try_values(subject: Subject, parameter: Parameter) -> Iterator[str]:
    """Yield remarks on the values that a parameter takes; raise Failure where it takes an impossible one."""
    name = parameter.argument
    helper = f"annotate it with its range, as in {name}: Annotated[float, Range('(0, 1]')] = 0.5"
    if parameter.kind in (float, int):
        unbounded = "inf" in parameter.range
        impossible = [math.nan, "many", *([] if unbounded else [math.inf]), *([0.5] if parameter.kind is int else [])]
        for value in impossible:
            if _accepts(subject, name, value):
                raise Failure(
                    f"{name} = {value!r} is taken, and a run with it would fail later or learn nothing: refuse "
                    f"it by a ValueError that names {name}; {helper}."
                )
        if _accepts(subject, name, parameter.kind(-1)) and not parameter.description:
            yield f"{name} = -1 is taken: if that makes no sense, {helper}."
    if parameter.kind is str and _accepts(subject, name, "no such word"):
        yield f"{name} takes any word: where there are choices, annotate them: Annotated[str, Choices('this', 'that')]."


def _accepts(subject: Subject, name: str, value: object) -> bool:
    """Return whether the method takes a value of one of its parameters; a number may also be refused by TypeError."""
    try:
        subject.factory(**{**subject.arguments, name: value})
    except ValueError as error:
        if name not in str(error):
            raise Failure(
                f"{name} = {value!r} is refused by {error!s}: name {name} in the message, so that it can be corrected."
            ) from error
        return False
    except TypeError:
        return False
    except Exception as error:
        raise Failure(f"{name} = {value!r} raised {error!r}: refuse it by a ValueError that names {name}.") from error
    return True


# What clients are asked for -----------------------------------------------------------------------------------------


def check_needs(subject: Subject) -> Finding:
    """The method asks its clients for what they report, and for all that it reads."""
    method = subject.create()
    if isinstance(method.needs, str) or not all(isinstance(metric, str) for metric in method.needs):
        raise Failure(f"needs = {method.needs!r} is no set of names: write needs = frozenset({{'loss-before'}}).")
    unknown = unknown_metrics(method)
    for metric in unknown:
        close = difflib.get_close_matches(metric, MEASURED, n=1, cutoff=0.8)
        if metric in EVALUATED:
            raise Failure(
                f"needs asks for {metric!r}, which clients report when they evaluate, and not when they train: choose "
                f"among {', '.join(MEASURED)}."
            )
        if close:
            raise Failure(f"needs asks for {metric!r}, which no client reports: {close[0]!r} is meant?")
    _check_terms(subject, method)
    if unknown:
        return Status.REMARK, (
            f"Fairbloom's clients do not report {', '.join(unknown)} for every task: a run whose clients lack it stops."
        )
    asked = ", ".join(sorted(method.needs)) or "no metric"
    return Status.PASSED, f"It asks for {asked}, and reads no other."


def _check_terms(subject: Subject, method: FairStrategy) -> None:
    """Raise Failure where the terms of the clients' work are none, or do not go with the probe."""
    with subject.explain_errors("In round 7, "):
        terms: object = method.terms(7)
    if not isinstance(terms, Terms) or terms.server_round != 7:
        raise Failure(
            f"terms(7) returned {terms!r}: it must return the terms of round 7, as in "
            "dataclasses.replace(super().terms(server_round), local_steps=5)."
        )
    situation = ordinary_situation(4)
    cohort = subject.ask(method, situation).cohort
    coefficients = subject.weigh(method, cohort, situation.description)
    with subject.explain_errors(f"Given {situation.description}, ", method=method):
        mix = method.probe(cohort, coefficients)
    if method.second == SNAPSHOT and terms.snapshot_step is None:
        raise Failure(
            "second = 'snapshot' awaits each client's model in the midst of its work, and terms do not ask for it: set "
            "snapshot_step and local_steps there."
        )
    if method.second == ARRAYS_DISPARITY and not terms.disparity:
        raise Failure(
            f"second = {ARRAYS_DISPARITY!r} awaits each client's model after a step down the difference between two "
            "groups, and terms do not ask for it: set disparity there."
        )
    if terms.disparity and method.second != ARRAYS_DISPARITY:
        raise Failure(
            f"terms ask for a model after a step down disparity = {terms.disparity!r}, which no row is made of: set "
            f"second = {ARRAYS_DISPARITY!r}."
        )
    if mix is not None and method.second != SNAPSHOT:
        raise Failure("probe returns a mix of the clients' snapshots, and there are none: set second = 'snapshot'.")
    if mix is not None and np.shape(mix) != (cohort.size,):
        raise Failure(
            f"probe returned shape {np.shape(mix)} for 4 clients: it must return a number for each, shape (4,)."
        )


# Coefficients -------------------------------------------------------------------------------------------------------


def check_shape(subject: Subject) -> Finding:
    """Weigh returns one finite number for each update and for each kept row."""
    for m in SIZES:
        situation, method = ordinary_situation(m), subject.create()
        subject.weigh(method, subject.ask(method, situation).cohort, situation.description)
    kept = max(len(cohort.memory) for cohort, _ in subject.iterate_rounds(subject.create(), len(TAKING_PART)))
    rows = f"; with {kept} kept rows" if kept else ""
    return Status.PASSED, f"One finite number per client, with {', '.join(map(str, SIZES))} of them{rows}."


def check_finiteness(subject: Subject) -> Finding:
    """Coefficients and step are finite in every situation that a run may come to."""
    situations = list(_extremes())
    for situation in situations:
        method = subject.create()
        asked = subject.ask(method, situation)
        coefficients = subject.weigh(method, asked.cohort, situation.description)
        if not np.isfinite(asked.step(coefficients)).all():
            raise Failure(
                f"Given {situation.description}, the coefficients are up to {np.abs(coefficients).max():.0e} and the "
                "step is beyond all numbers. Such a round is skipped: bound what you divide by."
            )
    return Status.PASSED, f"In {len(situations)} extreme situations, as zero updates, zero losses and huge ones."


def _extremes() -> Iterator[Situation]:
    usual, one = ordinary_situation(4), ordinary_situation(1)
    U, losses = usual.updates, usual.losses
    still, first = np.array([1.0, 0.0, 1.0, 1.0]), np.arange(U.shape[1]) < U.shape[1] // 3
    yield usual.move("4 clients that did not move (zero updates)", lambda U: 0.0 * U)
    yield usual.move("4 clients of which one did not move (a zero update)", lambda U: still[:, None] * U)
    yield usual.move("4 clients that did not move one of the arrays", lambda U: np.where(first, 0.0, U))
    yield usual.move(
        "4 clients of which one did not move one of the arrays",
        lambda U: np.where(first & (still[:, None] == 0.0), 0.0, U),
    )
    yield replace(usual, description="4 clients with equal losses", losses=np.ones(4))
    yield replace(usual, description="4 clients with zero losses", losses=np.zeros(4))
    yield replace(usual, description="4 clients of which one has a zero loss", losses=still * losses)
    yield replace(usual, description="4 clients with losses below zero, as that of a density may be", losses=-losses)
    for scale in (1e-12, 1e12):
        yield replace(usual, description=f"4 clients with losses around {scale:.0e}", losses=scale * losses)
        one_off = np.array([1.0, scale, 1.0, 1.0])[:, None]
        yield usual.move(f"4 clients with updates around {scale:.0e}", partial(np.multiply, scale))
        yield usual.move(f"4 clients of which one has an update around {scale:.0e}", partial(np.multiply, one_off))
    yield usual.move("4 clients with the same update", lambda U: np.tile(U[0], (4, 1)))
    yield usual.move("4 clients with opposed updates", lambda U: np.outer([1.0, -1.0, 1.0, -1.0], U[0]))
    yield usual.move("4 clients with orthogonal updates", lambda U: np.eye(*U.shape))
    for accuracy in (0.0, 1.0):
        yield replace(usual, description=f"4 clients with accuracy {accuracy:g}", accuracies=np.full(4, accuracy))
    yield replace(usual, description="4 clients that are as well served alone", baselines=losses)
    yield replace(usual, description="4 clients without a disparity between groups", disparities=np.zeros(4))
    none = usual.of_groups * np.array([[1.0, 0.0, 1.0, 0.0]])
    yield replace(usual, description="4 clients without positive examples in one of two groups", of_groups=none)
    some = np.where(still[:, None] > 0.0, usual.of_groups, none)
    yield replace(usual, description="4 clients of which one has no positive examples in a group", of_groups=some)
    yield replace(usual, description="4 clients with 1 to 1,000,000 examples", counts=np.array([1.0, 10.0, 1e3, 1e6]))
    yield replace(usual, description="4 clients of which one was drawn 3 times", draws=np.array([1.0, 3.0, 1.0, 1.0]))
    alone = one.move("a single client that did not move, with loss 0", lambda U: 0.0 * U)
    yield replace(alone, losses=np.zeros(1))


def check_permutation(subject: Subject) -> Finding:
    """A coefficient goes with what a client replied, whatever the client is called."""
    for m, common in ((3, 1.0), (5, 0.0), (8, 0.3), (50, 1.0)):
        situation, order = ordinary_situation(m, seed=1, common=common), np.random.default_rng(m).permutation(m)[::-1]
        renamed = situation.select(order)
        before, after = subject.weigh_fresh(situation), subject.weigh_fresh(renamed)
        wanted = before.coefficients[:, order]
        if _is_same(after.coefficients, wanted):
            continue
        lengths = np.linalg.norm(renamed.updates, axis=1) + np.linalg.norm(renamed.seconds, axis=1)
        moved = np.abs(after.coefficients - wanted).max(axis=0) @ lengths  # if all went in one direction
        if np.linalg.norm(after.step - before.step) <= 0.01 * moved:
            return Status.REMARK, (
                "When clients change their names, they get other coefficients, and the step is the same: several "
                "coefficients give it, and the order of names decides which."
            )
        others = (subject.weigh_fresh(situation, seed=seed) for seed in range(1, 9))
        if any(not _is_same(other.coefficients, before.coefficients) for other in others):
            return Status.REMARK, (
                "The method draws from the seed, and what is drawn goes to clients in the order of their names: with "
                "other names the step is another draw."
            )
        row, k = np.unravel_index(np.argmax(np.abs(after.coefficients - wanted)), wanted.shape)
        raise Failure(
            f"Given {situation.description}, the client with loss {situation.losses[order][k]:.2g} got the coefficient "
            f"{wanted[row, k]:.3g}; with other names, and so in another order, the same replies got it "
            f"{after.coefficients[row, k]:.3g}, and the step is another one. Nobody should count for a name: go by "
            "what clients reply, not by their place in cohort.names."
        )
    return Status.PASSED, "Clients that are called otherwise, and so come in another order, count as before."


def check_scaling(subject: Subject) -> Finding:
    """What becomes of the step where all updates are so many times as long."""
    situation = ordinary_situation(5, seed=2)
    step = subject.weigh_fresh(situation).step
    length = float(np.linalg.norm(step))
    if length == 0.0:
        return Status.NOT_APPLICABLE, "There is no step among ordinary clients."
    powers = []
    for scale in (1e-3, 7.0, 1e3):
        longer = situation.move(f"updates {scale:g} times as long", partial(np.multiply, scale))
        scaled = subject.weigh_fresh(longer).step
        if not scaled.any():
            return Status.REMARK, (
                f"With updates {scale:g} times as long there is no step any more: compare with what other updates "
                "measure, not with a fixed number, as updates get short towards the end of a run."
            )
        if scaled @ step < -TOLERANCE * length * np.linalg.norm(scaled):
            raise Failure(
                f"With updates {scale:g} times as long, the step points the other way. The unit of a model's numbers "
                "should not decide between up and down: divide by a length that the updates have themselves."
            )
        powers.append(math.log(np.linalg.norm(scaled) / length) / math.log(scale))
    words = {
        1: "With updates s times as long the step is s times as long, as FedAvg's.",
        0: "The step has the same length however long the updates are: its step size must fit the model.",
        -1: "With updates s times as long the step is 1/s as long: a parameter has their unit.",
    }
    power = round(powers[0])
    if max(abs(each - power) for each in powers) > TOLERANCE or power not in words:
        return (
            Status.PASSED,
            "The step's length follows that of the updates in no fixed way: a parameter has their unit.",
        )
    return Status.PASSED, words[power]


def check_duplicates(subject: Subject) -> Finding:
    """Two clients that replied the same count the same."""
    usual = ordinary_situation(4, seed=3)
    remark = ""
    for k in range(4):
        twins = replace(usual.select([0, 1, 2, 3, k]), description="5 clients of which two replied the same")
        c, step = subject.weigh_fresh(twins)
        if _is_same(c[:, k], c[:, 4], of=c):
            continue
        nudge = np.ones(5)
        nudge[[k, 4]] += 1e-9, -1e-9
        near = replace(
            twins.move("5 clients of which two replied nearly the same", partial(np.multiply, nudge[:, None])),
            losses=nudge * twins.losses,
            accuracies=nudge * twins.accuracies,
        )
        row = int(np.argmax(np.abs(c[:, k] - c[:, 4])))
        found = f"Of two clients that replied the same, one got {c[row, k]:.3g} and the other {c[row, 4]:.3g}"
        if not _is_same(subject.weigh_fresh(near).step, step, within=10 * TOLERANCE):
            raise Failure(
                f"{found}, and the step is another one than that of two that replied nearly the same. So a client that "
                "is like another one loses its say, or gets too much of it: do not look clients up by their loss."
            )
        remark = (
            f"{found}, for the order of names or a draw decides between them. The step is what it would be; the "
            "records will show different numbers for two clients that are alike."
        )
    if remark:
        return Status.REMARK, remark
    return Status.PASSED, "Two clients that replied the same get the same coefficient."


# State --------------------------------------------------------------------------------------------------------------


def check_memory(subject: Subject) -> Finding:
    """Weigh changes nothing; what is remembered can be written down, and does not grow for ever."""
    _check_weigh_changes_nothing(subject, subject.create(), number=1)
    method = subject.create()
    sizes, had = {}, _own_attributes(method)
    changed: dict[str, int] = {}
    for number, _ in enumerate(subject.iterate_rounds(method, ROUNDS + 1)):
        _check_savable(method)
        has = _own_attributes(method)
        changed |= {name: number for name in has if name not in changed and has[name] != had.get(name)}
        if number in (ROUNDS // 2, ROUNDS):  # a file takes milliseconds to reach the disk
            sizes[number] = _size(method)
    _check_weigh_changes_nothing(subject, method, number=ROUNDS + 2)
    if changed:
        name, number = next(iter(changed.items()))
        return Status.REMARK, (
            f"self.{name} changes in round {number} and is no part of self.memory, which alone a checkpoint holds: a "
            "run that is continued begins without it. Keep it in self.memory, if weigh, terms or remember use it."
        )
    (bytes_then, rows_then), (bytes_now, rows_now) = sizes[ROUNDS // 2], sizes[ROUNDS]
    if rows_now > rows_then:
        return Status.REMARK, (
            f"It keeps more old updates with every round, {rows_now} after {ROUNDS} rounds, each of the model's size: "
            "drop those that weigh uses no longer."
        )
    if bytes_now > 1.1 * bytes_then + 64:
        return Status.REMARK, (
            f"Its memory grows with every round, to {bytes_now} bytes after {ROUNDS} rounds: keep a moving average, or "
            "the last rounds, where that will do."
        )
    remembered = [f"{rows_now} old updates"] if rows_now else []
    remembered += [f"{bytes_now} bytes"] if method.memory else []
    what = f"After {ROUNDS} rounds it keeps {' and '.join(remembered)}." if remembered else "It has no memory."
    return Status.PASSED, f"weigh changes nothing. {what}"


def _check_weigh_changes_nothing(subject: Subject, method: FairStrategy, number: int) -> None:
    six = ordinary_situation(6)  # as in the rounds that the method may remember: a model keeps its size
    cohort = subject.ask(method, six, number).cohort
    arrays = {
        f"cohort.{name}": getattr(cohort, name)
        for name in ("counts", "prior", "draws", "gram", "grams", "squared_norms")
    }
    arrays |= {f"cohort.metrics[{metric!r}]": values for metric, values in cohort.metrics.items()}
    before, had = _snapshot(arrays), _snapshot(vars(method))
    subject.weigh(method, cohort, six.description)
    now, has = _snapshot(arrays), _snapshot(vars(method))
    for name in now:
        if now[name] != before[name]:
            raise Failure(
                f"weigh changes {name} in place, and the step and the records read it afterwards: work on a copy, "
                f"{name}.copy()."
            )
    for name in has:
        if name not in had or has[name] != had[name]:
            raise Failure(
                f"weigh changes self.{name}. It may be asked for a round whose step is not taken then: change "
                "self.memory in remember, which comes after the step."
            )


def _own_attributes(method: FairStrategy) -> dict[str, object]:
    """Return what a method has outside its memory, in a form that shows whether it has changed."""
    of_base = ("memory", "progress", "_flower", "_loop", "_outer")  # which FairStrategy keeps
    own = {name: value for name, value in vars(method).items() if name not in of_base}
    return {name: _bits(value, _pickled) for name, value in own.items()}


def _snapshot(values: Mapping[str, object]) -> dict[str, object]:
    """Return values in a form that shows whether they have changed; of other objects, which object it is."""
    return {name: _bits(value, id) for name, value in values.items()}


def _bits(value: object, of_object: Callable[[object], object]) -> object:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return [(repr(key), _bits(item, of_object)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_bits(item, of_object) for item in value]
    plain = value is None or isinstance(value, str | int | float | set | frozenset)
    return repr(value) if plain else of_object(value)


def _pickled(value: object) -> object:
    """Return an object's own state, as that of a generator; of what cannot be pickled, which object it is."""
    try:
        return id(value), pickle.dumps(value)
    except Exception:  # whatever a class of the user's raises
        return id(value)


def _check_savable(method: FairStrategy) -> None:
    fault = _unsavable(method.memory, "self.memory")
    if not isinstance(method.memory, dict) or fault:
        raise Failure(
            f"{fault or f'self.memory is a {type(method.memory).__name__}'}. A checkpoint keeps dicts by str, lists, "
            "str, int, float, bool, None and NumPy arrays of numbers, and gives nothing else back as it was: turn it "
            "into one of these.",
            "memory",
        )


def _unsavable(value: object, where: str) -> str:
    """Return what in a memory a checkpoint cannot keep, and where it is; "" where there is nothing."""
    if isinstance(value, np.ndarray):
        return "" if value.dtype.kind in "fiub" else f"{where} is an array of {value.dtype}"
    if isinstance(value, dict):
        odd = [key for key in value if type(key) is not str]
        if odd:
            return f"{where} has the key {odd[0]!r}, a {type(odd[0]).__name__}"
        return next(filter(None, (_unsavable(item, f"{where}[{key!r}]") for key, item in value.items())), "")
    if isinstance(value, list):
        return next(filter(None, (_unsavable(item, f"{where}[{k}]") for k, item in enumerate(value))), "")
    return "" if value is None or isinstance(value, str | int | float) else f"{where} is a {type(value).__name__}"


def _size(method: FairStrategy) -> tuple[int, int]:
    """Return the bytes of a method's memory as a checkpoint keeps it, and the number of its old updates."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "memory.safetensors"
        save_checkpoint(file, {}, method.memory)
        return file.stat().st_size, len(method.progress.kept)


def check_resume(subject: Subject) -> Finding:
    """A run that is killed and continued from its checkpoint ends as one that is not."""
    whole = subject.create(fraction_train=0.5)
    rounds = subject.run_rounds(whole, 6)
    stopped, continued = (subject.create(fraction_train=0.5) for _ in range(2))
    with TemporaryDirectory() as folder:
        before = subject.run_rounds(stopped, 3, state_dir=folder)
        _check_savable(stopped)
        file = Path(folder) / "3.safetensors"
        save_checkpoint(file, before[-1].arrays, stopped.state_dict())
        model, state = load_checkpoint(file)
        with subject.explain_errors("Continued from a checkpoint after round 3, "):
            continued.load_state_dict(state)
        after = subject.run_rounds(continued, 3, model, state_dir=folder)
    for one, other in zip(rounds, [*before, *after], strict=True):
        if round_bits(one) == round_bits(other):
            continue
        if list(map(round_bits, subject.run_rounds(subject.create(fraction_train=0.5), 6))) != list(
            map(round_bits, rounds)
        ):
            raise Failure("The same rounds differ when they are run again.", "determinism")
        had, has = _own_attributes(subject.create(fraction_train=0.5)), _own_attributes(whole)
        changed = [f"self.{name}" for name in has if has[name] != had.get(name)]
        found = (
            f"{' and '.join(changed)} changed in these rounds and is not part of it: keep it in self.memory."
            if changed
            else "What weigh uses of earlier rounds must be in self.memory, or in the rows that remember returns."
        )
        raise Failure(
            f"A run was stopped after round 3 and continued from its checkpoint; in round {one.number} it differs from "
            f"one that was not stopped. A checkpoint holds self.memory and the kept rows. {found}"
        )
    _check_paced(subject)
    return Status.PASSED, "Continued from a checkpoint after round 3, rounds 4 to 6 are the same to the bit."


def _check_paced(subject: Subject) -> None:
    """Raise Failure where a run of more rounds would have taken other steps, and the method does not say so."""
    method, situation = subject.create(), ordinary_situation(5)
    cohort = subject.ask(method, situation, ROUNDS // 2).cohort
    longer = replace(cohort, num_rounds=2 * ROUNDS)
    same = _is_same(
        subject.weigh(method, cohort, situation.description), subject.weigh(method, longer, situation.description)
    )
    if not same and not method.paced:
        raise Failure(
            f"In round {ROUNDS // 2} the coefficients of a run of {ROUNDS} rounds are others than those of one of "
            f"{2 * ROUNDS}. A finished run that is extended by more rounds would then be neither: say so by a property "
            "paced that returns True, and such a run is refused in words."
        )


def check_determinism(subject: Subject) -> Finding:
    """The same cohort gets the same coefficients, whatever else the process has done."""
    situation, method = ordinary_situation(5, seed=4), subject.create()
    cohort = subject.ask(method, situation).cohort
    first = subject.weigh(method, cohort, situation.description)
    with all_seeded(1):
        others = {"asked once more": subject.weigh(method, cohort, situation.description)}
    with all_seeded(2):
        fresh = subject.create()
        others["made afresh"] = subject.weigh(fresh, subject.ask(fresh, situation).cohort, situation.description)
    remedy = (
        "Resumed runs and repeated ones then differ: draw from "
        "fairbloom.protocol.streams.generator(self.seed, 'what for', cohort.round), and read no clock."
    )
    for what, again in others.items():
        if again.tobytes() != first.tobytes():
            place = tuple(np.argwhere(again != first)[0])
            name = cohort.names[place[-1] % cohort.size]
            raise Failure(
                f"Given the same {situation.description}, {name} got {first[place]:.6g} and, when the method was "
                f"{what}, {again[place]:.6g}. {remedy}"
            )
    if not unknown_metrics(method):
        with all_seeded(3):
            rounds = subject.run_rounds(subject.create(fraction_train=0.5), 3)
        with all_seeded(4):
            again_rounds = subject.run_rounds(subject.create(fraction_train=0.5), 3)
        for one, other in zip(rounds, again_rounds, strict=True):
            if round_bits(one) != round_bits(other):
                raise Failure(f"The same run, begun twice, differs in round {one.number}. {remedy}")
    return Status.PASSED, "The same replies get the same coefficients to the bit, also in a fresh method."


def round_bits(finished: Round) -> object:
    """Return what is equal of two rounds that are the same to the bit."""
    return finished.participants, dict(finished.coefficients), _snapshot(finished.arrays)


# What it is good for ------------------------------------------------------------------------------------------------


def check_reports(subject: Subject) -> Finding:
    """The metrics of the method are finite numbers, and those that `reports` names."""
    method = subject.create()
    cohort, coefficients = next(subject.iterate_rounds(method, 1))
    with subject.explain_errors("Given 6 ordinary clients, ", method=method):
        metrics = method.own_metrics(cohort, coefficients)
    if not metrics and not method.reports:
        return Status.NOT_APPLICABLE, "It records no metrics."
    missing = [name for name in method.reports if name not in metrics]
    if missing:
        raise Failure(f"reports names {missing[0]!r}, which own_metrics does not return: its column would be empty.")
    for name, value in metrics.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise Failure(
                f"own_metrics returned {name} = {value!r}: it must be a finite number, as float(…) makes one."
            )
        if name not in method.reports:
            raise Failure(f"own_metrics returned {name!r}: name it in reports = ({name!r},), and it gets a column.")
    return Status.PASSED, f"Each round records {', '.join(metrics)}."


def check_cost(subject: Subject) -> Finding:
    """How long weigh takes, beside the products of updates that every round or this method needs."""
    seconds_with: dict[int, float] = {}
    asks_for_products = False
    for m in (10, 100, 1000):
        if seconds_with and max(seconds_with.values()) > PATIENCE:
            break
        method = subject.create()
        cohort = subject.ask(method, ordinary_situation(m)).cohort
        begin = time.perf_counter()
        subject.weigh(method, cohort, f"{m} ordinary clients")
        seconds_with[m] = time.perf_counter() - begin
        asks_for_products = "gram" in vars(cohort)
    summed, multiplied = _seconds_of_products()
    weigh = ", ".join(f"{1e3 * seconds:.2g} ms with {m}" for m, seconds in seconds_with.items())
    left = "" if len(seconds_with) == 3 else f" (with {10 * max(seconds_with)} it would take too long to try)"
    beside = f"the weighted sum takes {1e3 * summed:.0f} ms"
    beside += f" and the Gram matrix, which it asks for, {1e3 * multiplied:.0f} ms" if asks_for_products else ""
    return Status.PASSED, f"weigh takes {weigh} clients{left}. Of {SEVERAL} updates of a million numbers, {beside}."


def _seconds_of_products() -> tuple[float, float]:
    """Return what a weighted sum, and a Gram matrix, of SEVERAL updates of LARGE numbers take on this machine."""
    rows = np.ones((SEVERAL, LARGE), np.float32)
    vectors, total = Vectors((rows,), np.ones(SEVERAL)), np.zeros(LARGE, np.float32)
    begin = time.perf_counter()
    weighted_sum(np.ones(SEVERAL), vectors, into=total)
    middle = time.perf_counter()
    gram_matrix(vectors)
    return middle - begin, time.perf_counter() - middle


def check_learns(subject: Subject) -> Finding:
    """Some rounds with real clients lower their mean loss, and leave no client worse off than FedAvg's worst."""
    method = subject.create(fraction_evaluate=0.0)
    rounds = subject.run_rounds(method, LEARNED_ROUNDS, None, **LEARNING)
    coefficients = [subject.weigh_fresh(ordinary_situation(5)).coefficients]
    coefficients += [np.array(list(finished.coefficients.values())) for finished in rounds]
    if not any(c.any() for c in coefficients):
        return (
            Status.REMARK,
            "All coefficients are 0: the global model stays as it is, and only personal ones could learn.",
        )
    before = client_losses(method, initial_model(method))
    after = client_losses(method, rounds[-1].arrays)
    plain = _losses_under_fedavg(method)
    losses = (
        f"In {LEARNED_ROUNDS} rounds on digits, the mean loss of {len(before)} clients went from {before.mean():.3g} "
        f"to {after.mean():.3g} (FedAvg: {plain.mean():.3g}), and that of the worst served from {before.max():.3g} "
        f"to {after.max():.3g} (FedAvg: {plain.max():.3g}). {_format_sums(coefficients)}"
    )
    signs = {_sign(c) for c in coefficients}
    if max(signs) <= 0:
        what = "are negative" if min(signs) < 0 else "sum to about 0"
        raise Failure(
            f"The coefficients {what}: the step goes {'uphill' if min(signs) < 0 else 'nowhere where clients agree'}. "
            f"{losses} An update is u_k = w - w_k and the new model w - sum of c_k u_k, so coefficients that sum to 1 "
            "average the clients' models."
        )
    remarks = []
    if not after.mean() < before.mean():
        remarks.append("The step is too long for them, or goes for something else than their mean.")
    if after.max() > (1.0 + WORSE) * plain.max():
        remarks.append("The worst served is worse off than under FedAvg: the step is too short, or goes for others.")
    if remarks:
        return Status.REMARK, " ".join([losses, *remarks])
    return Status.PASSED, losses


def _losses_under_fedavg(method: FairStrategy) -> FloatArray:
    """Return each client's loss on its test set after the same rounds of the same clients under FedAvg."""
    fedavg, task = FedAvg(fraction_evaluate=0.0), {"task": run_config(method)["task"]}
    rounds = Subject(FedAvg, {}).run_rounds(fedavg, LEARNED_ROUNDS, initial_model(method), **LEARNING, **task)
    return client_losses(method, rounds[-1].arrays)


def _format_sums(coefficients: Sequence[FloatArray]) -> str:
    """Return what a round's coefficients sum to, in words; those of a method with second updates are of both."""
    sums = [float(np.atleast_2d(c).sum(axis=1)[0]) for c in coefficients]
    least, most = f"{min(sums):.3g}", f"{max(sums):.3g}"
    return f"The coefficients sum to {least if least == most else f'between {least} and {most}'} (FedAvg: 1)."


def _sign(coefficients: FloatArray) -> int:
    """Return whether coefficients add up to a step along the updates, 1, against them, -1, or to neither, 0."""
    total, size = coefficients.sum(), np.abs(coefficients).sum()
    return 0 if abs(total) <= TOLERANCE * size else int(np.sign(total))


def client_losses(method: FairStrategy, model: Model) -> FloatArray:
    """Return each client's loss of a model on its test set."""
    clients = LoopClients(method, run_config(method))
    names = sorted(clients.online(1))
    replies = clients.evaluate(names, model, Terms(server_round=1), ())
    return np.array([report[LOSS] for report in replies.metrics.values()])


def _is_same(one: FloatArray, other: FloatArray, *, of: FloatArray | None = None, within: float = TOLERANCE) -> bool:
    """Return whether two arrays are the same to a share of the largest of them, or of those in `of`."""
    largest = max(np.abs(one).max(), np.abs(other).max()) if of is None else np.abs(of).max()
    return bool(np.abs(one - other).max() <= within * largest)


PROPERTIES: Mapping[str, Callable[[Subject], Finding]] = {
    "parameters": check_parameters,
    "needs": check_needs,
    "shape": check_shape,
    "finiteness": check_finiteness,
    "permutation": check_permutation,
    "scaling": check_scaling,
    "duplicates": check_duplicates,
    "memory": check_memory,
    "resume": check_resume,
    "determinism": check_determinism,
    "reports": check_reports,
    "cost": check_cost,
    "learns": check_learns,
}
"""The check of every property by the property's name, in the order in which a report has them."""
