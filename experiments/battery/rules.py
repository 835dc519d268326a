"""What a client-side rule must keep to: each property has a function that checks it and says what it found."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from fairbloom.client.generators import all_seeded
from fairbloom.client.rules.arrays import check_finite
from fairbloom.client.rules.at_work import RuleAtWork
from fairbloom.client.rules.base import Arrays, StepsTaken
from fairbloom.client.rules.own import OwnRule
from fairbloom.client.states import load_version, save_version
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import NOTHING, Trained
from fairbloom.rounds.round import Round
from fairbloom.rounds.updates import Model
from fairbloom.server.checkpoint import load_checkpoint, save_checkpoint
from fairbloom.simulation.loop import LoopClients
from fairbloom.strategies import FairStrategy, FedAvg
from fairbloom.tasks.files.targets import join_names

from .properties import LEARNED_ROUNDS, Finding, Status, client_losses, round_bits
from .subject import Failure, Raised, initial_model, run_config, run_rounds

SHAPES = {"first.weight": (3, 4), "first.bias": (3,), "scale": ()}
"""The trainable parameters of a made-up model."""

LEARNING_RATE = 0.1

ROUND = Terms(server_round=1)
"""A round in which the rule is tried."""

TURNS = 3
"""Two clients take so many rounds in turn, and then one after the other."""

GROWTH = (10, 20)
"""What is kept after so many rounds is compared."""

REFUSED_IN = 2
"""In this round a reply is refused."""


@dataclass(frozen=True)
class Steps:
    """A client's gradients in one round: `count` steps of gradients of size `scale`."""

    description: str
    count: int = 5
    scale: float = 1.0
    seed: int = 0

    def draw(self, step: int) -> dict[str, Tensor]:
        """Return the gradients of a step; those of step 0 are taken for the received parameters."""
        generator = torch.Generator().manual_seed(1_000 * self.seed + step)
        return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


SITUATIONS = (
    Steps("5 ordinary steps"),
    Steps("a single step", count=1),
    Steps("no step at all", count=0),
    Steps("gradients of zero", scale=0.0),
    Steps("gradients around 1e-12", scale=1e-12),
    Steps("gradients around 1e+12", scale=1e12),
)


@dataclass(frozen=True)
class RuleSubject:
    """A rule under test, by its import string."""

    name: str

    @property
    def rule(self) -> type:
        """The rule's class."""
        return type(OwnRule(ROUND, self.name).users)

    def play(self, steps: Steps, kept: Arrays) -> tuple[Arrays, dict[str, Tensor]]:
        """Return what a client replies and keeps after a round in which it goes on from what it has kept."""
        received = steps.draw(0)
        with self.explain_errors(f"Given {steps.description}, "):
            work = RuleAtWork(OwnRule(ROUND, self.name), received, kept, {})
            trained = {name: array.clone() for name, array in received.items()}
            for step in range(1, steps.count + 1):
                corrected = work.correct([steps.scale * each for each in steps.draw(step).values()], step)
                for array, gradient in zip(trained.values(), corrected, strict=True):
                    array -= LEARNING_RATE * gradient
            replied, kept = work.finish(trained, StepsTaken((LEARNING_RATE,) * steps.count))
            check_finite(replied, "the reply")
        return replied, kept

    def play_rounds(self, client: int) -> Iterator[tuple[Arrays, dict[str, Tensor]]]:
        """Yield what one client replies and keeps in rounds that follow each other, for ever."""
        kept: dict[str, Tensor] = {}
        number = 0
        while True:
            number += 1
            replied, kept = self.play(Steps(f"round {number} of a client", seed=100 * client + number), kept)
            yield replied, kept

    def create(self) -> FairStrategy:
        """Return a method whose clients follow the rule, three of six in each round."""
        return FedAvg(client_rule=self.name, fraction_train=0.5, fraction_evaluate=0.0)

    def run_rounds(
        self,
        method: FairStrategy,
        rounds: int,
        model: Model | None = None,
        clients: type[LoopClients] = LoopClients,
        **settings: Value,
    ) -> list[Round]:
        """Return the next rounds of the method with real clients, which learn digits in this process."""
        with self.explain_errors("In rounds with real clients, "):
            config = run_config(method, client_rule=self.name, batch_size=20, learning_rate=0.1, **settings)
            return run_rounds(clients(method, config), rounds, model)

    @contextmanager
    def explain_errors(self, given: str) -> Iterator[None]:
        """Turn what is raised inside into Failure; `given` begins the message."""
        end = "A client's reply would be refused."
        try:
            yield
        except Failure:
            raise
        except FairbloomError as error:
            raise Failure(f"{given}{error}. {end}", "arrays") from error
        except Exception as error:
            raised = Raised.of(error, [str(inspect.getsourcefile(self.rule))])
            words = f"{given}{raised.words}"
            raise Failure(f"{words} {end}" if raised.function else words, "arrays") from error


# The properties -----------------------------------------------------------------------------------------------------


def check_arrays(subject: RuleSubject) -> Finding:
    """What is corrected, replied and kept are tensors as they must be, in every round that may come."""
    for steps in SITUATIONS:
        kept: Arrays = {}
        for _ in range(2):
            _, kept = subject.play(steps, kept)
    tried = ", ".join(steps.description for steps in SITUATIONS)
    return Status.PASSED, f"Tensors of the parameters' names and shapes, all finite, with {tried}."


def check_determinism(subject: RuleSubject) -> Finding:
    """The same gradients give the same reply, whatever else the process has done."""
    first, again = (_bits(*_play_two(subject, seed)) for seed in (1, 2))
    if first != again:
        raise Failure(
            "The same gradients gave another reply, or something else to keep, the second time. Runs that are "
            "continued and repeated ones then differ: draw no random numbers, and read no clock."
        )
    return Status.PASSED, "The same gradients give the same reply to the bit."


def _play_two(subject: RuleSubject, seed: int) -> tuple[Arrays, dict[str, Tensor]]:
    with all_seeded(seed):
        *_, last = islice(subject.play_rounds(0), 2)
        return last


def check_apart(subject: RuleSubject) -> Finding:
    """Clients have nothing of each other: nothing is kept but what `finish` returns."""
    before = _attributes(subject.rule)
    in_turn: list[list[object]] = [[], []]
    for each in islice(zip(*(subject.play_rounds(client) for client in range(2)), strict=True), TURNS):
        for client, (replied, kept) in enumerate(each):
            in_turn[client].append(_bits(replied, kept))
    alone = [[_bits(*each) for each in islice(subject.play_rounds(client), TURNS)] for client in range(2)]
    changed = [name for name, value in _attributes(subject.rule).items() if value != before.get(name)]
    remedy = "Many clients share a process: what a client keeps must be what finish returns, and nothing else."
    if changed:
        raise Failure(f"{subject.rule.__name__}.{changed[0]} changes from round to round. {remedy}")
    if in_turn != alone:
        raise Failure(f"Of two clients, one replies something else when the other takes turns with it. {remedy}")
    return Status.PASSED, "A client's reply does not depend on the clients that the same process computed before."


def _attributes(rule: type) -> dict[str, str]:
    """Return the class's own values, as words: what a rule might keep beside what it may."""
    return {name: repr(value) for name, value in vars(rule).items() if not callable(value) and name[:2] != "__"}


def check_kept(subject: RuleSubject) -> Finding:
    """What is kept comes back from a file as it was, and does not grow for ever."""
    sizes = {}
    for number, (_, kept) in enumerate(islice(subject.play_rounds(0), GROWTH[-1]), start=1):
        if number in GROWTH:
            sizes[number] = sum(array.numel() * array.element_size() for array in kept.values())
    with TemporaryDirectory() as folder:
        file = Path(folder) / "1.safetensors"
        try:
            save_version(file, kept)
            stored = load_version(file) or {}
        except Exception as error:
            raise Failure(
                f"What finish has the client keep cannot be stored ({type(error).__name__}: {error}): return plain, "
                "detached tensors that share no memory."
            ) from error
    if _bits({}, stored) != _bits({}, kept):
        raise Failure("What finish has the client keep comes back from a file as something else.")
    if sizes[GROWTH[1]] > sizes[GROWTH[0]]:
        return Status.REMARK, (
            f"A client keeps more with every round, {sizes[GROWTH[1]]} bytes after {GROWTH[1]} rounds of a model of "
            f"{_parameters()} numbers: keep a sum or a mean where that will do."
        )
    if not kept:
        return Status.PASSED, "Clients keep nothing between rounds."
    numbers = sum(array.numel() for array in kept.values())
    return Status.PASSED, f"A client keeps {numbers / _parameters():.3g} times the model: {', '.join(kept)}."


def _parameters() -> int:
    return sum(array.numel() for array in Steps("").draw(0).values())


def check_resume(subject: RuleSubject) -> Finding:
    """A run that is killed and continued, with what its clients kept in files, ends as one that is not."""
    whole = subject.run_rounds(subject.create(), 6)
    stopped, continued = subject.create(), subject.create()
    with TemporaryDirectory() as folder:
        before = subject.run_rounds(stopped, 3, state_dir=folder)
        file = Path(folder) / "3.safetensors"
        save_checkpoint(file, before[-1].arrays, stopped.state_dict())
        model, state = load_checkpoint(file)
        continued.load_state_dict(state)
        after = subject.run_rounds(continued, 3, model, state_dir=folder)
    for one, other in zip(whole, [*before, *after], strict=True):
        _refuse_refused(other)
        if round_bits(one) != round_bits(other):
            raise Failure(
                f"A run was stopped after round 3 and continued from its checkpoint and its clients' files; in round "
                f"{one.number} it differs from one that was not stopped. A client has what finish returned, and "
                "nothing else."
            )
    return Status.PASSED, "Continued after round 3 from what was stored, rounds 4 to 6 are the same to the bit."


def check_refusals(subject: RuleSubject) -> Finding:
    """A reply that is not used leaves nothing behind: the client goes on from what it kept before."""
    refused, unasked = (subject.run_rounds(subject.create(), 6, clients=kind) for kind in (Refusing, Sparing))
    for one, other in zip(refused, unasked, strict=True):
        if _model_bits(one) != _model_bits(other):
            raise Failure(
                f"A reply of round {REFUSED_IN} was refused; in round {one.number} the model is another one than where "
                "that client was not asked. A refused reply must leave nothing behind: a client has what finish "
                "returned when its reply was used last, and nothing else."
            )
    return Status.PASSED, "A reply that is refused leaves nothing behind: the next rounds are as if nobody had asked."


class Refusing(LoopClients):
    """Clients of which the first one's reply is refused in one round, after it has trained."""

    def train(self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING) -> Trained:
        """Let these clients train; leave out the first reply in the round."""
        trained = super().train(names, model, terms, sent)
        if terms.server_round == REFUSED_IN:
            trained.refuse(names[0], "it is refused for a trial")
        return trained


class Sparing(LoopClients):
    """Clients of which the first one is not asked in that round."""

    def train(self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING) -> Trained:
        """Let these clients train, but for the first one in the round."""
        return super().train(names[terms.server_round == REFUSED_IN :], model, terms, sent)


def check_records(subject: RuleSubject) -> Finding:
    """What the rule reads of that which a server sends beside the model is sent by somebody."""
    sent, received = Listening(), Steps("").draw(0)
    with suppress(Exception):  # which `arrays` reports
        OwnRule(ROUND, subject.name).start(received, {}, sent)
    if not sent.asked:
        return Status.PASSED, "It reads nothing that a server sends beside the model."
    return Status.REMARK, (
        f"start reads the record {join_names(list(map(repr, sent.asked)))}, which no method of ours sends to clients "
        "with a rule of their own: it is not there then. Run it with a method of yours whose sends returns it."
    )


class Listening(Mapping[str, Arrays]):
    """What a server sends, which is nothing, and which records a rule asks it for."""

    def __init__(self) -> None:
        self.asked: dict[str, None] = {}

    def __getitem__(self, record: str) -> Arrays:
        """Note the record, which `in` and `get` ask for, too; raise KeyError."""
        self.asked[str(record)] = None
        raise KeyError(record)

    def __iter__(self) -> Iterator[str]:
        """Yield nothing."""
        return iter(())

    def __len__(self) -> int:
        """Return 0."""
        return 0


def check_learns(subject: RuleSubject) -> Finding:
    """Some rounds with real clients lower their mean loss."""
    method = subject.create()
    rounds = subject.run_rounds(method, LEARNED_ROUNDS)
    for each in rounds:
        _refuse_refused(each)
    before, after = client_losses(method, initial_model(method)), client_losses(method, rounds[-1].arrays)
    losses = (
        f"In {LEARNED_ROUNDS} rounds on digits, the mean loss of {len(before)} clients went from {before.mean():.3g} "
        f"to {after.mean():.3g}"
    )
    if not after.mean() < before.mean():
        return Status.REMARK, f"{losses}: steps go uphill, or are too long for them."
    return Status.PASSED, f"{losses}."


def _refuse_refused(finished: Round) -> None:
    """Raise Failure where replies of a round were refused."""
    for name, reason in finished.refused.items():
        raise Failure(f"In rounds with real clients, the reply of {name} was refused: {reason}.", "arrays")


def _bits(replied: Arrays, kept: Arrays) -> object:
    parts = (sorted(part.items()) for part in (replied, kept))
    return [[(name, str(array.dtype), array.numpy().tobytes()) for name, array in part] for part in parts]


def _model_bits(finished: Round) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in finished.arrays.items()}


RULE_PROPERTIES: Mapping[str, Callable[[RuleSubject], Finding]] = {
    "arrays": check_arrays,
    "determinism": check_determinism,
    "apart": check_apart,
    "kept": check_kept,
    "resume": check_resume,
    "refusals": check_refusals,
    "records": check_records,
    "learns": check_learns,
}
"""The check of every property of a client-side rule by the property's name, in the order in which a report has them."""
