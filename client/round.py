"""The order of a client's round, the same for one client, many at once, and a user's own functions."""

from abc import ABC, abstractmethod

from .metrics import AFTER, BEFORE, Measurement


class ClientRound(ABC):
    """A round of training of one client, or of several at once.

    The parts are called in the order of `run` alone.
    """

    def run(self) -> None:
        """Do the round."""
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
        """Do what rules do before everything else, with the received model."""

    @abstractmethod
    def measure(self, measurement: Measurement) -> None:
        """Measure the model as it is now, where that is asked for."""

    @abstractmethod
    def report(self) -> None:
        """Do what rules do with the received model: report something of it, make a second one of it."""

    @abstractmethod
    def start(self) -> None:
        """Let rules begin to correct steps."""

    @abstractmethod
    def take_steps(self) -> None:
        """Train the received model."""

    @abstractmethod
    def finish(self) -> None:
        """Let rules change the trained model, and keep what they go on from in the next round."""

    @abstractmethod
    def reply(self) -> None:
        """Set down the trained model and what is asked for of the work on it."""

    @abstractmethod
    def after(self) -> None:
        """Train models of the client's own, which change nothing in the reply."""
