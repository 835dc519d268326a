"""The properties of client-side rules: a function checks each and returns its finding."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from fairbloom.client.generators import all_seeded
from fairbloom.client.rules.arrays import check_finite
from fairbloom.client.rules.base import Arrays
from fairbloom.client.rules.own import OwnRule
from fairbloom.client.rules.rule_round import RuleRound
from fairbloom.client.states import Version, serialize
from fairbloom.client.work import StepsTaken
from fairbloom.imports import imported, is_import_string
from fairbloom.protocol.settings import Value
from fairbloom.protocol.terms import Terms
from fairbloom.strategies import FairStrategy, FedAvg

from .report import CheckReport, Failure, Remark, bits, check_properties
from .subject import Subject

# The trainable parameters of a made-up model.
SHAPES = {"first.weight": (3, 4), "first.bias": (3,), "scale": ()}

LEARNING_RATE = 0.1

# A round in which the rule is tried.
ROUND = Terms(server_round=1)

# The numbers of rounds after which kept state is compared.
GROWTH = (10, 20)

# The number of a client's steps in a round and the size of the gradients, by what errors call them.
STEPS = {
    "5 ordinary steps": (5, 1.0),
    "a single step": (1, 1.0),
    "no step at all": (0, 1.0),
    "gradients of zero": (5, 0.0),
    "gradients around 1e-12": (5, 1e-12),
    "gradients around 1e+12": (5, 1e12),
}


@dataclass(frozen=True)
class RuleUnderTest(Subject):
    """A rule, by its import string."""

    name: str

    consequence = "A client's reply would be refused."

    @property
    def source(self) -> Callable[..., Any]:
        """The rule's class."""
        return type(OwnRule(ROUND, self.name).users)

    @property
    def work(self) -> Mapping[str, Value]:
        """How real clients train."""
        return {"client_rule": self.name, "batch_size": 20, "learning_rate": LEARNING_RATE}

    def run_client(
        self, kept: Arrays, seed: int, steps: str = "5 ordinary steps"
    ) -> tuple[Arrays, dict[str, Tensor]]:
        """Return a client's reply and its new state after a round that begins with a state."""
        count, scale = STEPS[steps]
        generator = torch.Generator().manual_seed(seed)
        received = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
        with self.explain_errors(f"Given {steps}, "):
            work = RuleRound(OwnRule(ROUND, self.name), received, Version(0, {**kept}), {})
            trained = {name: array.clone() for name, array in received.items()}
            for step in range(1, count + 1):
                gradients = [
                    scale * torch.randn(shape, generator=generator) for shape in SHAPES.values()
                ]
                for array, gradient in zip(
                    trained.values(), work.correct(gradients, step), strict=True
                ):
                    array -= LEARNING_RATE * gradient
            replied, kept = work.finish(trained, StepsTaken((LEARNING_RATE,) * count))
            check_finite([*work.finished, ("the reply", replied)])
        return replied, kept


def is_rule(name: str) -> bool:
    """Return whether an import string names a client-side rule, and no method."""
    found = imported("method", name) if is_import_string(name) else None
    return (
        isinstance(found, type)
        and hasattr(found, "correct")
        and not issubclass(found, FairStrategy)
    )


def check_rule(name: str) -> CheckReport:
    """Check every property of a client-side rule, such as "my_module:MyRule"; takes about a second.

    Raises
    ------
    CheckFailedError
        When a property fails; the message has the fault of each.
    FairbloomError
        When the import string names no rule.
    """
    OwnRule(ROUND, name)
    return check_properties(name, RULE_PROPERTIES, RuleUnderTest(name))


# The properties -----------------------------------------------------------------------------------


def check_arrays(subject: RuleUnderTest) -> str:
    """Corrections, replies and states are proper tensors in every kind of round."""
    for steps in STEPS:
        _, kept = subject.run_client({}, 1, steps)
        subject.run_client(kept, 2, steps)
    return f"Tensors of the parameters' names and shapes, all finite, with {', '.join(STEPS)}."


def check_determinism(subject: RuleUnderTest) -> str:
    """The same gradients give the same reply, whatever else the process has done."""
    found = []
    for seed in (1, 2):
        with all_seeded(seed):
            _, kept = subject.run_client({}, 1)
            found.append(bits(subject.run_client(kept, 2)))
    if found[0] != found[1]:
        raise Failure(
            "The same gradients gave another reply, or something else to keep, the second time."
            " Runs that are continued and repeated ones then differ: draw no random numbers, read"
            " no clock, and keep nothing but what finish returns."
        )
    return "The same gradients give the same reply to the bit."


def check_kept(subject: RuleUnderTest) -> str:
    """What is kept comes back from a file as it was, and does not grow for ever."""
    kept: dict[str, Tensor] = {}
    sizes = dict[int, int]()
    for number in range(1, GROWTH[-1] + 1):
        _, kept = subject.run_client(kept, number)
        sizes[number] = sum(array.numel() * array.element_size() for array in kept.values())
    try:
        stored = load(serialize(kept))
    except Exception as error:  # whatever a tensor of the user's raises
        raise Failure(
            f"What finish has the client keep cannot be stored ({type(error).__name__}:"
            f" {error}): return plain, detached tensors that share no memory."
        ) from error
    if bits(sorted(stored.items())) != bits(sorted(kept.items())):
        raise Failure("What finish has the client keep comes back from a file as something else.")
    earlier, later = (sizes[number] for number in GROWTH)
    if later > earlier:
        raise Remark(
            f"A client keeps more with every round, {later} bytes after {GROWTH[-1]}: keep a sum or"
            " a mean instead."
        )
    return (
        f"A client keeps {sum(array.numel() for array in kept.values())} numbers:"
        f" {', '.join(kept) or 'nothing'}."
    )


def check_resume(subject: RuleUnderTest) -> str:
    """A run that is killed and continued from its files ends like one that is not."""

    def create() -> FairStrategy:
        return FedAvg(client_rule=subject.name, fraction_train=0.5, fraction_evaluate=0.0)

    return subject.check_resumed(create, "A client has what finish returned, and nothing else.")


# The check of every property of a client-side rule by the property's name, in the order in which a
# report has them.
RULE_PROPERTIES: Mapping[str, Callable[[RuleUnderTest], str]] = {
    "arrays": check_arrays,
    "determinism": check_determinism,
    "kept": check_kept,
    "resume": check_resume,
}
