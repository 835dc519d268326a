"""Clients in this process, one after the other: nothing travels, so nothing is written into messages."""

import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fairbloom.client.device import choose
from fairbloom.client.local import Local, Update, about
from fairbloom.client.personal import StateDict
from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import AGREED
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import Replies, Reports, Trained
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import Refusals, usable_evaluation, usable_metrics
from fairbloom.rounds.updates import Layout, Model
from fairbloom.tasks import load_task


class LocalClients:
    """All clients of a run, computed in this process.

    A client that raises is one whose reply is refused, with its error as the reason.

    Parameters
    ----------
    method
        Says which metrics it needs and which arrays are buffers.
    settings
        The run config.

    Raises
    ------
    FairbloomError
        When the task cannot be loaded.
    """

    def __init__(self, method: Method, settings: Mapping[str, Any]) -> None:
        self._method = method
        self._names = load_task(settings).clients
        self._device = choose(str(settings["device"]))
        self._settings = settings
        self._locals: dict[str, Local] = {}

    def online(self, fewest: int) -> Collection[str]:
        """Return the names of all clients: they are always there."""
        return self._names

    def free(self) -> Collection[str]:
        """Return the names of all clients: they owe nothing."""
        return self._names

    def about(self, names: Sequence[str]) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, str]]:
        """Ask these clients what is to be agreed about their data; return what each tells, and why some cannot."""
        told: dict[str, Mapping[str, Any]] = {}
        reasons: dict[str, str] = {}
        for name in names:
            try:
                _, told[name] = about(self._settings, self._names.index(name))
            except FairbloomError as error:
                reasons[name] = str(error)
        return told, reasons

    def train(self, names: Sequence[str], model: Model, terms: Terms) -> Trained:
        """Let these clients train the model on the terms, each on its own data."""
        method, refused = self._method, Refusals(terms.server_round)
        layout, received = Layout(model, method.buffers, method.shared), self._on_device(model)
        trained = Trained.none(layout, len(names), refused=refused, missing=(), snapshots=method.snapshots)

        def work(client: Local) -> None:
            update: Update = client.train(received, terms)
            report = usable_metrics(update.metrics, method.weighted_by_key, method.needs)
            trained.add(client.name, report, _arrays(update.arrays), _arrays(update.snapshot))

        self._each(names, terms, work, refused)
        return trained

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; of `participants` alone is asked what the terms ask to measure."""
        received, refused = self._on_device(model), Refusals(terms.server_round)
        reports: Reports = {}
        plain = replace(terms, measure=())

        def work(client: Local) -> None:
            metrics = client.evaluate(received, terms if client.name in participants else plain)
            reports[client.name] = usable_evaluation(metrics, self._method.weighted_by_key)

        self._each(names, terms, work, refused)
        return Replies(metrics=reports, refused=refused)

    def _each(self, names: Sequence[str], terms: Terms, work: Callable[[Local], None], refused: Refusals) -> None:
        if terms.agreed != self._settings.get(AGREED, ""):
            self._settings, self._locals = {**self._settings, AGREED: terms.agreed}, {}
        for name in names:
            try:
                work(self.local(name))
            except Exception as error:  # one client's failure is one refused reply, whatever it is
                refused.add(name, in_words(error))

    def local(self, name: str) -> Local:
        """Return one of the clients."""
        if name not in self._locals:
            self._locals[name] = Local.of(self._settings, self._names.index(name))
        return self._locals[name]

    def _on_device(self, model: Model) -> StateDict:
        return {name: torch.tensor(array, device=self._device) for name, array in model.items()}


def in_words(error: Exception) -> str:
    """Return what is told of a client's failure; of what nobody has foreseen, the file and line too."""
    if isinstance(error, ValueError):
        return str(error)
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


def _arrays(state: StateDict) -> Model:
    return {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}
