"""A user's own rule, which corrects each step by state that the client stores between rounds."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fairbloom.errors import FairbloomError
from fairbloom.imports import imported, is_import_string
from fairbloom.protocol.settings import SettingsError
from fairbloom.protocol.terms import OWN_RULE, Terms

from ..work import StepsTaken
from .base import Arrays, Corrector, Rule


class OwnRule(Corrector):
    """A user's own rule, found by its import string: a class with `start`, `correct` and `finish`.

    Each round makes a new object, so a rule remembers only what `finish` returned. The steps are
    those of plain SGD; weight decay and a proximal term are part of the gradient.
    """

    reads = OWN_RULE

    def __init__(self, terms: Terms, name: str) -> None:
        super().__init__(terms)
        self._name = name
        kind = imported("client-rule", name) if is_import_string(name) else None
        functions = ("start", "correct", "finish")
        found = (getattr(kind, function, None) for function in functions)
        has_all = all(map(callable, found))
        if not isinstance(kind, type) or not has_all:
            raise SettingsError(
                f"{self}: it must be a class, as in my_module:MyRule, with the functions"
                f" {', '.join(functions)}"
            )
        try:
            self.users: Rule = kind()  # not a subclass, but it has these three hooks
        except Exception as error:
            raise FairbloomError(
                f"{self}: it cannot be made without arguments ({type(error).__name__}: {error}):"
                " give them defaults"
            ) from error

    def __str__(self) -> str:
        """Return the setting that names it."""
        return f"client-rule = {self._name!r}"

    def start(self, received: Arrays, kept: Arrays, sent: Mapping[str, Arrays]) -> Any:
        """Call the user's rule."""
        return self.users.start(received, kept, sent)

    def correct(self, gradients: dict[str, Tensor], state: Any, step: int) -> Arrays:
        """Call the user's rule."""
        return self.users.correct(gradients, state, step)

    def finish(
        self, received: Arrays, trained: Arrays, state: Any, steps: StepsTaken
    ) -> tuple[Arrays, Arrays]:
        """Call the user's rule."""
        return self.users.finish(received, trained, state, steps)
