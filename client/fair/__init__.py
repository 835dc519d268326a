"""A user's own ClientApp, which answers what methods ask by the user's training and test functions.

The client app imports this in place of ClientApp, and makes the app by it; its handlers stay as they are::

    from fairbloom.client.fair import fair

    app = fair(train_fn, test_fn)  # in place of app = ClientApp()
    train_fn = app.train_fn
"""

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor
from torch.nn import Module

from fairbloom.errors import ReportableError
from fairbloom.protocol import names as wire
from fairbloom.protocol.helper import advice_on
from fairbloom.protocol.streams import generator
from fairbloom.protocol.terms import Terms
from fairbloom.protocol.version import check_protocol

from ..app import load_states, save_states
from ..metrics import OF_PERSONAL, ON_TRAINING
from ..states import ClientStates, StateDict, folder_of
from . import randomness
from .functions import HONOURED, Function, Helpers, Measured, Session, find_unsupported

P = ParamSpec("P")
R = TypeVar("R")

_SESSION: ContextVar[Session | None] = ContextVar("session", default=None)
"""The message that is being worked on; the wrapped training function finds its terms here."""


def fair(
    train: Callable[P, R],
    test: Function,
    *,
    mods: Sequence[Mod] = (),
    loader: Callable[[Any], Any] | None = None,
    arrays: Callable[[Module], Mapping[str, Tensor]] | None = None,
) -> "FairClientApp[P, R]":
    """Return a ClientApp that keeps the terms of every method but FairFed, FCFL, EAGLE, SCAFFOLD and FedDyn.

    These five ask for what a training function does not say, or for groups: its replies are refused by name then.

    The handlers that are registered with the app call its `train_fn` in place of `train`, once for a message; they load
    model and data, and write the reply, as they would for Flower's FedAvg.

    Parameters
    ----------
    train
        Trains a model in place, with an optimizer of torch.optim and `loss.backward()`. The model is its first argument
        that is a module with parameters; the data are its first DataLoader, or else its first dataset, of PyTorch or of
        Hugging Face. Data are needed only by a method that measures them, or sets the number of steps.
    test
        Measures a model and returns (loss, accuracy), (loss, dict with accuracy) or a dict with both. It is called with
        the training data too. Parameters beside model and loader take the value that `train` has by the same name.
    mods
        Flower's mods around the train handlers, which see messages as they travel. Others do not pass them: many mods,
        LocalDpMod among them, refuse what has no arrays. `@app.evaluate(mods=[...])` takes those for evaluation.
    loader
        Makes of a dataset that `train` is called with what `test` takes: a DataLoader, with a collator where the
        examples need one. Its batch_size is that of the training where a method sets the number of steps. None: a
        DataLoader with PyTorch's own collator.
    arrays
        Returns a model's tensors by the names that travel, as `peft.get_peft_model_state_dict` does. None: they travel
        by the names of the model's `state_dict()`, or of that of a module of it: `model.heads.state_dict()`.

    """
    return FairClientApp(train, test, list(mods), Helpers(loader, arrays))


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

    def __init__(self, train: Callable[P, R], test: Function, mods: list[Mod], helpers: Helpers) -> None:
        super().__init__()
        self._helpers = helpers
        self._train_mods = mods
        # Not a function of this scope: Ray would pickle it with all it refers to, and a ContextVar cannot be pickled.
        self.train_fn: Callable[P, R] = functools.update_wrapper(functools.partial(_on_terms, train), train)
        self._functions = train, test
        self._train_handlers: dict[str, ClientAppCallable] = {}
        self.query()(introduce)

    def train(
        self, action: str = "default", *, mods: list[Mod] | None = None
    ) -> Callable[[ClientAppCallable], ClientAppCallable]:
        """Register a train function, as ClientApp does."""
        register = super().train(action, mods=[*self._train_mods, *(mods or [])])

        def decorator(handler: ClientAppCallable) -> ClientAppCallable:
            register(functools.partial(self._answer_train, handler))
            self._train_handlers[action] = handler
            return handler

        return decorator

    def evaluate(
        self, action: str = "default", *, mods: list[Mod] | None = None
    ) -> Callable[[ClientAppCallable], ClientAppCallable]:
        """Register an evaluate function, as ClientApp does."""
        register = super().evaluate(action, mods=mods)

        def decorator(handler: ClientAppCallable) -> ClientAppCallable:
            register(functools.partial(self._answer_evaluate, handler))
            return handler

        return decorator

    def _answer_train(self, handler: ClientAppCallable, message: Message, context: Context) -> Message:
        terms = terms_of(message)
        if terms is None:
            return handler(message, context)
        client, states = ClientIdentity.of(context), states_of(context)
        session = self._session(client, terms, states, message)
        with client.drawing(), _active(session):
            reply = handler(message, context)
        if reply.has_error():
            return reply
        session.check_called()
        metrics_of(reply).update(session.metrics)
        if session.second:
            reply.content[session.record] = ArrayRecord(OrderedDict(session.second))
        save_states(context, states.in_memory)
        if terms.work:
            about = reply.content.config_records.get(wire.CLIENT, ConfigRecord())
            reply.content[wire.CLIENT] = ConfigRecord({**about, wire.HONOURS: HONOURED.keys})
        return reply

    def _answer_evaluate(self, handler: ClientAppCallable, message: Message, context: Context) -> Message:
        terms = terms_of(message)
        if terms is None:
            return handler(message, context)
        client, states = ClientIdentity.of(context), states_of(context)
        with client.drawing():
            reply = handler(message, context)
        if reply.has_error():
            return reply
        metrics = metrics_of(reply)
        if terms.has_personal_models:
            model = states.personal.before(terms.server_round + 1)
            with client.drawing():
                of_model = metrics if model is None else metrics_of(handler(_with(message, model), context))
            scores = {name: value for name, value in of_model.items() if name != wire.NUM_EXAMPLES}
            metrics.update({name: scores[score] for name, score in OF_PERSONAL.names(scores).items()})
        if ON_TRAINING.requests(terms.measure):
            session = self._session(client, terms, states, message, measure_only=True)
            with client.drawing(), _active(session):
                self._let_measure(message, context)
            session.check_called()
            metrics.update(session.metrics)
        return reply

    def _let_measure(self, message: Message, context: Context) -> None:
        """Run the train handler up to its call of the training function, where the received model is measured."""
        action = message.metadata.message_type.partition(".")[2] or "default"
        handler = self._train_handlers.get(action) or self._train_handlers.get("default")
        if handler is None:
            raise ReportableError(
                "measure = train-loss: this ClientApp has no train function, which would load the data"
            )
        with suppress(Measured):
            handler(message, context)

    def _session(
        self,
        client: "ClientIdentity",
        terms: Terms,
        states: ClientStates,
        message: Message,
        *,
        measure_only: bool = False,
    ) -> Session:
        train, test = self._functions
        shapes = {name: tuple(array.shape) for name, array in _received(message)[1].items()}

        def seed(purpose: str) -> None:
            client.seed(purpose, terms.server_round)

        return Session(train, test, terms, seed, states.personal, shapes, self._helpers, measure_only=measure_only)


@dataclass(frozen=True)
class ClientIdentity:
    """The name of a context's client, and the run's seed, from which it draws."""

    name: str
    run_seed: int

    @classmethod
    def of(cls, context: Context) -> "ClientIdentity":
        """Return the client of a context."""
        return cls(name_of(context), int(context.run_config.get("seed", 0)))

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Let a handler draw from global generators that are this client's own: the same in every round.

        So data that it splits at random is split in one way throughout the run.
        """
        with randomness.kept():
            self.seed("handler")
            yield

    def seed(self, purpose: str, *where: int) -> None:
        """Seed the global generators from the run's seed, this client, the purpose and the place alone."""
        randomness.seed(int(generator(self.run_seed, purpose, self.name, *where).integers(2**63)))


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
    """Reply this client's name, and that it honours all terms: what its functions cannot do is an error by name."""
    about = ConfigRecord({wire.NAME: name_of(context), wire.HONOURS: HONOURED.keys})
    return Message(RecordDict({wire.CLIENT: about}), reply_to=message)


def terms_of(message: Message) -> Terms | None:
    """Return the terms of a message, None where it has no round's number: it is of another strategy."""
    configs = message.content.config_records
    config: Mapping[str, Any] = configs.get(wire.CONFIG) or next(iter(configs.values()), {})
    check_protocol(config)
    terms = Terms.of(config) if "server-round" in config else None
    if terms is not None and (unsupported := find_unsupported(terms)):
        remedy = advice_on([unsupported], "install its newest version of Fairbloom")
        raise ReportableError(f"{unsupported}: this client does not know it: {remedy}")
    return terms


def metrics_of(reply: Message) -> MetricRecord:
    """Return the metrics of a reply, which must have one record of them."""
    records = reply.content.metric_records
    if wire.METRICS in records:
        return records[wire.METRICS]
    if len(records) != 1:
        raise ReportableError(f"a reply must have one MetricRecord, got {list(records)}")
    return next(iter(records.values()))


def states_of(context: Context) -> ClientStates:
    """Return what a client keeps between rounds: the last of it in its context, more in its folder if there is one."""
    place = {key: context.node_config[key] for key in ("state-dir",) if key in context.node_config}
    return ClientStates(folder_of({**context.run_config, **place}, name_of(context)), load_states(context))


@contextmanager
def _active(session: Session) -> Iterator[None]:
    token = _SESSION.set(session)
    try:
        yield
    finally:
        _SESSION.reset(token)


def _with(message: Message, model: StateDict) -> Message:
    """Return a message with another model; what the client keeps no copy of, as frozen arrays, is as received."""
    key, received = _received(message)
    other = copy.copy(message)
    arrays = {name: model.get(name, array) for name, array in received.to_torch_state_dict().items()}
    other.content = RecordDict({**message.content, key: ArrayRecord(OrderedDict(arrays))})
    return other


def _received(message: Message) -> tuple[str, ArrayRecord]:
    records = message.content.array_records
    key = wire.ARRAYS if wire.ARRAYS in records else next(iter(records))
    return key, records[key]
