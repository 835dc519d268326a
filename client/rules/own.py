"""A user's own rule, which corrects each step by what the client keeps between rounds."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from fairbloom.errors import FairbloomError
from fairbloom.imports import imported, is_import_string
from fairbloom.protocol.settings import SettingsError
from fairbloom.protocol.terms import OWN_RULE, Terms

from .base import Arrays, Corrector, StepsTaken


class ClientRule(Protocol):
    """What a user's own rule has; every round makes another one, which remembers nothing by itself.

    The steps are those of plain SGD; weight decay and a proximal term are part of the gradient.
    """

    def start(self, received: Arrays, kept: Arrays, sent: Mapping[str, Arrays]) -> Any:
        """Return the state of this round; see `Rule.start`."""

    def correct(self, gradients: dict[str, Tensor], state: Any, step: int) -> Arrays:
        """Return what a step goes down in place of the gradients; see `Rule.correct`."""

    def finish(
        self, received: Arrays, trained: Arrays, state: Any, steps: StepsTaken
    ) -> tuple[Arrays, Arrays]:
        """Return the trainable parameters to reply, and what the client keeps.

        See `Rule.finish`.
        """


class OwnRule(Corrector):
    """A user's own rule at its client, found by its import string."""

    reads = OWN_RULE

    def __init__(self, terms: Terms, name: str) -> None:
        super().__init__(terms)
        self._name = name
        found = imported("client-rule", name) if is_import_string(name) else None
        functions = ("start", "correct", "finish")
        if not (
            isinstance(found, type)
            and all(callable(getattr(found, each, None)) for each in functions)
        ):
            raise SettingsError(
                f"{self}: it must be a class, as in my_module:MyRule, with the functions"
                f" {', '.join(functions)}"
            )
        try:
            self.users: ClientRule = found()
        except Exception as error:
            raise FairbloomError(
                f"{self}: it cannot be made without arguments ({type(error).__name__}: {error}):"
                " give them defaults"
            ) from error

    def __str__(self) -> str:
        """Return the setting that names it."""
        return f"client-rule = {self._name!r}"

    def start(self, received: Arrays, kept: Arrays, sent: Mapping[str, Arrays]) -> Any:
        """Return what the user's rule does."""
        return self.users.start(received, kept, sent)

    def correct(self, gradients: dict[str, Tensor], state: Any, step: int) -> Arrays:
        """Return what the user's rule does."""
        return self.users.correct(gradients, state, step)

    def finish(
        self, received: Arrays, trained: Arrays, state: Any, steps: StepsTaken
    ) -> tuple[Arrays, Arrays]:
        """Return what the user's rule does."""
        return self.users.finish(received, trained, state, steps)
