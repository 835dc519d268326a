"""The order of a client's round, the same for one client and for many at once."""

from abc import ABC, abstractmethod

from .metrics import AFTER, BEFORE, Measurement


class ClientRound(ABC):
    """A round of training of one client, or of several at once; `run` defines its order."""

    def run(self) -> None:
        """Call the parts of the round in their order."""
        self.before()
        self.measure(BEFORE)
        self.report()
        self.start()
        self.take_steps()
        self.finish()
        self.measure(AFTER)
        self.reply()
        self.after()

    @abstractmethod
    def before(self) -> None:
        """Call the rules that work before everything else, with the received model."""

    @abstractmethod
    def measure(self, measurement: Measurement) -> None:
        """Measure the current model, if the terms ask for it."""

    @abstractmethod
    def report(self) -> None:
        """Call the rules that report on the received model, or make a second one from it."""

    @abstractmethod
    def start(self) -> None:
        """Start the rules that correct steps."""

    @abstractmethod
    def take_steps(self) -> None:
        """Train the received model."""

    @abstractmethod
    def finish(self) -> None:
        """Finish these rules: they may change the trained model, and store state."""

    @abstractmethod
    def reply(self) -> None:
        """Make the reply: the trained model, and the metrics that the terms ask for."""

    @abstractmethod
    def after(self) -> None:
        """Train models of the client's own, which change nothing in the reply."""
