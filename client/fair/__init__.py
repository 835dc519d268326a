"""A user's own ClientApp, which answers what methods ask by the user's training and test functions.

The client app imports this in place of ClientApp, and makes the app by it; its handlers stay as they are::

    from fairbloom.client.fair import fair

    app = fair(train_fn, test_fn)  # in place of app = ClientApp()
    train_fn = app.train_fn
"""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, TypeVar

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch.utils.data import DataLoader

from fairbloom.errors import ReportableError
from fairbloom.protocol import names as wire
from fairbloom.protocol.helper import advice_on
from fairbloom.protocol.streams import generator
from fairbloom.protocol.terms import ProximalTerms, Terms, keys_of
from fairbloom.protocol.version import check_protocol

from ..rules.registry import kinds_of
from . import randomness
from .training import HONOURED, Function, Session

P = ParamSpec("P")
R = TypeVar("R")

_SESSION: ContextVar[Session | None] = ContextVar("session", default=None)
"""The message that is being worked on; the wrapped training function finds its terms here."""


def fair(
    train: Callable[P, R],
    test: Function,
    *,
    training_data: Callable[[Context], DataLoader[Any]] | None = None,
    mods: Sequence[Mod] = (),
    seeded: bool = True,
) -> "FairClientApp[P, R]":
    """Return a ClientApp that answers what methods ask for, by a user's own functions.

    It serves 19 methods and every server optimizer. QFedSGD, DRFA, PropFair, Ditto, Local, EAGLE, FairFed, FCFL,
    SCAFFOLD and FedDyn need a task of your own (model, loss and data) instead, and are refused by name.

    The handlers that are registered with the app call its `train_fn` in place of `train`, once for a message; they load
    model and data, and write the reply, as they would for Flower's FedAvg.

    Parameters
    ----------
    train
        Trains a model in place with an optimizer of torch.optim. The model is its argument that is a module with
        trained parameters; of several, the one whose arrays are the received ones.
    test
        Measures a model and returns (mean loss, accuracy), (mean loss, dict with accuracy) or a dict with both. It is
        called with batches of the training data too. Parameters beside model and loader take the value that `train`
        has by the same name.
    training_data
        Returns a DataLoader of the training data from a message's context, for methods that measure them. None: the
        dataset of the only DataLoader that `train` is called with.
    mods
        Flower's mods around the train handlers. `@app.evaluate(mods=[...])` takes those for evaluation.
    seeded
        Whether a client's random numbers are drawn from the seeds of run and strategy, so that runs can be repeated.
        The server knows these seeds: noise that protects data needs False.

    """
    return FairClientApp(train, test, training_data, list(mods), seeded)


def _on_terms(train: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a training function on the terms of the message that is being answered, if there is one."""
    session = _SESSION.get()
    if session is None:
        return train(*args, **kwargs)
    outcome: R = session(args, kwargs)
    return outcome


class FairClientApp(ClientApp, Generic[P, R]):
    """A ClientApp that answers QUERY, and whose other handlers keep the server's terms; made by `fair`.

    Attributes
    ----------
    train_fn
        Trains on the terms of the message that is being answered. It is called as the user's function is, and returns
        what that returns; outside a message it is that function.
    """

    def __init__(
        self,
        train: Callable[P, R],
        test: Function,
        training_data: Callable[[Context], DataLoader[Any]] | None,
        mods: list[Mod],
        seeded: bool,
    ) -> None:
        super().__init__()
        self._functions, self._training_data, self._train_mods, self._seeded = (
            (train, test),
            training_data,
            mods,
            seeded,
        )
        # Not a function of this scope: Ray would pickle it with all it refers to, and a ContextVar cannot be pickled.
        self.train_fn: Callable[P, R] = functools.update_wrapper(functools.partial(_on_terms, train), train)
        self._checked: set[str] = set()  # the clients for which this process has checked the test function
        self.query()(introduce)

    def train(
        self, action: str = "default", *, mods: list[Mod] | None = None
    ) -> Callable[[ClientAppCallable], ClientAppCallable]:
        """Register a train function, as ClientApp does."""
        return self._wrapping(super().train(action, mods=[*self._train_mods, *(mods or [])]), self._answer_train)

    def evaluate(
        self, action: str = "default", *, mods: list[Mod] | None = None
    ) -> Callable[[ClientAppCallable], ClientAppCallable]:
        """Register an evaluate function, as ClientApp does."""
        return self._wrapping(super().evaluate(action, mods=mods), self._answer_evaluate)

    @staticmethod
    def _wrapping(register: Callable[..., Any], answer: Callable[..., Message]) -> Callable[..., ClientAppCallable]:
        def decorator(handler: ClientAppCallable) -> ClientAppCallable:
            register(functools.partial(answer, handler))
            return handler

        return decorator

    def _answer_train(self, handler: ClientAppCallable, message: Message, context: Context) -> Message:
        terms = terms_of(message)
        if terms is None:
            return handler(message, context)
        client, arrays = name_of(context), message.content.array_records
        received = arrays.get(wire.ARRAYS) or next(iter(arrays.values()))
        session = Session(
            *self._functions,
            terms,
            {name: tuple(array.shape) for name, array in received.items()},
            load=self._training_data and functools.partial(self._training_data, context),
            draw=functools.partial(seed_training, context, terms) if self._seeded else None,
            checked=client in self._checked,
        )
        token = _SESSION.set(session)
        try:
            with self._drawing(context):
                reply = handler(_without_proximal_term(message), context)
        finally:
            _SESSION.reset(token)
        if reply.has_error():
            return reply
        session.check_called()
        metrics_of(reply).update(session.metrics)
        if session.checked:
            self._checked.add(client)
        if terms.work:
            about = reply.content.config_records.get(wire.CLIENT, ConfigRecord())
            reply.content[wire.CLIENT] = ConfigRecord({**about, wire.HONOURS: HONOURED.keys})
        return reply

    def _answer_evaluate(self, handler: ClientAppCallable, message: Message, context: Context) -> Message:
        if terms_of(message) is None:
            return handler(message, context)
        with self._drawing(context):
            return handler(message, context)

    def _drawing(self, context: Context) -> AbstractContextManager[None]:
        """Let a handler draw from global generators that are this client's own: the same in every round.

        So data that it splits at random is split in one way throughout the run.
        """
        return randomness.seeded(_seed(context, "handler")) if self._seeded else _UNSEEDED


_UNSEEDED = nullcontext()


def seed_training(context: Context, terms: Terms) -> None:
    """Seed the global generators from the seeds of run and strategy, the client and the round alone."""
    of_strategy = (terms.seed,) if terms.seed else ()
    randomness.seed(_seed(context, "train", terms.server_round, *of_strategy))


def _seed(context: Context, purpose: str, *where: int) -> int:
    run_seed = int(context.run_config.get("seed", 0))
    return int(generator(run_seed, purpose, name_of(context), *where).integers(2**63))


def name_of(context: Context) -> str:
    """Return what the server calls a client, and the same in every run where there is a name or a partition."""
    node = context.node_config
    partition = node.get("partition-id")
    if "name" in node:
        return str(node["name"])
    if partition is None:
        return str(context.node_id)
    width = len(str(int(node.get("num-partitions", 1)) - 1))
    return f"client-{str(partition).zfill(width)}"


def introduce(message: Message, context: Context) -> Message:
    """Reply this client's name, and which terms it honours."""
    about = ConfigRecord({wire.NAME: name_of(context), wire.HONOURS: HONOURED.keys})
    return Message(RecordDict({wire.CLIENT: about}), reply_to=message)


def terms_of(message: Message) -> Terms | None:
    """Return the terms of a message, None where it has no round's number: it is of another strategy."""
    configs = message.content.config_records
    config: Mapping[str, Any] = configs.get(wire.CONFIG) or next(iter(configs.values()), {})
    check_protocol(config)
    terms = Terms.of(config) if "server-round" in config else None
    if terms is not None and (lacking := HONOURED.find_unsupported(terms, [kind(terms) for kind in kinds_of(terms)])):
        remedy = advice_on([lacking], "install its newest version of Fairbloom")
        raise ReportableError(f"{lacking}: this client does not know it: {remedy}")
    return terms


(_PROXIMAL_MU,) = keys_of(ProximalTerms)


def _without_proximal_term(message: Message) -> Message:
    """Return a message whose config says that the proximal term is 0: the app adds it, so the handler must not."""
    own = {name: each for name, each in message.content.config_records.items() if each.get(_PROXIMAL_MU)}
    if not own:
        return message
    other = copy.copy(message)
    configs = {name: ConfigRecord({**each, _PROXIMAL_MU: 0.0}) for name, each in own.items()}
    other.content = RecordDict({**message.content, **configs})
    return other


def metrics_of(reply: Message) -> MetricRecord:
    """Return the metrics of a reply, which must have one record of them."""
    records = reply.content.metric_records
    if wire.METRICS in records:
        return records[wire.METRICS]
    if len(records) != 1:
        raise ReportableError(f"a reply must have one MetricRecord, got {list(records)}")
    return next(iter(records.values()))
