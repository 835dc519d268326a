"""`fair`: a user's own ClientApp, which answers methods by the user's functions."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader

from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.flower import ClientAppCallable, Mod
from fairbloom.logs import log
from fairbloom.protocol import names as wire
from fairbloom.protocol.advice import SECURE_AGGREGATION, advice_on
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.streams import generator
from fairbloom.protocol.terms import PROXIMAL, Terms
from fairbloom.protocol.version import check_protocol
from fairbloom.tasks.generators import all_seeded

from ..rules.registry import kinds_of
from .contexts import give_own, keep_context, keep_own
from .training import SUPPORTED, Function, TrainingCall

P = ParamSpec("P")
R = TypeVar("R")
Decorator = Callable[[ClientAppCallable], ClientAppCallable]

# The key by which Flower's wrappers with clipping at the clients name the norm to their mods.
CLIPPING_NORM = "clipping_norm"

# The message that is being answered; `train_fn` finds its terms here.
_CALL: ContextVar[TrainingCall | None] = ContextVar("call", default=None)


class fair(ClientApp, Generic[P, R]):  # noqa: N801 # it is called as a function
    """A ClientApp that answers the requests of methods by a user's own functions.

    Write this instead of `app = ClientApp()`; the handlers call `train_fn` as before::

        app = fair(train_fn, test_fn)
        train_fn = app.train_fn  # trains on the terms of the message that is being answered

    It serves most methods and every server optimizer. QFedSGD, DRFA, PropFair, Ditto, Local,
    EAGLE, FairFed, FCFL, SCAFFOLD and FedDyn need a task of your own (model, loss and data)
    instead, and are refused by name.

    The handlers call `train_fn` once per message. They load model and data, and write the reply, as
    for Flower's FedAvg.

    Parameters
    ----------
    train
        Trains a model in place with an optimizer of torch.optim. The model is the argument that is
        a module with trained parameters; of several, the one with the received arrays.
    test
        Measures a model and returns (mean loss, accuracy), (mean loss, dict with accuracy) or a
        dict with both. Methods that measure also call it with batches of the training data, before
        and after training; the model is then restored. Its parameters other than model and loader
        take the value that `train` has by the same name.
    training_data
        Returns a DataLoader of the training data from a message's context, for methods that measure
        them. None: the dataset of the only DataLoader that `train` is called with.
    mods
        Flower's mods around the train handlers. `@app.evaluate(mods=[...])` takes those for
        evaluation.
    seeded
        Whether a client's random numbers are drawn from the seeds of run and strategy, so that runs
        can be repeated. The server knows these seeds: noise that protects data needs False, for
        seeds from the system's entropy.
    """

    def __init__(
        self,
        train: Callable[P, R],
        test: Function,
        *,
        training_data: Callable[[Context], DataLoader[Any]] | None = None,
        mods: Sequence[Mod] = (),
        seeded: bool = True,
    ) -> None:
        super().__init__()
        refuse_secure_aggregation(mods)
        self._make_call = functools.partial(TrainingCall, train, test)
        self._training_data = training_data
        self._train_mods = mods
        self._seeded = seeded
        # Not a closure: Ray would pickle it with its scope, and a ContextVar cannot be pickled.
        self.train_fn: Callable[P, R] = functools.update_wrapper(
            functools.partial(_train_on_terms, train), train
        )
        # the clients for which this process has checked the test function
        self._checked = set[str]()
        self._has_warned = False
        self._clips = False
        super().query()(introduce)

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the app's reply; an error with a code of ours is the reply, and keeps its code."""
        try:
            return super().__call__(message, context)
        except ReportableError as error:
            if error.code is None:
                raise
            log.error("%s", error)
            return Message(Error(error.code, error.reportable), reply_to=message)

    def query(self, action: str = "default", *, mods: list[Mod] | None = None) -> Decorator:
        """Register a query function of another action than the default, as ClientApp does."""
        if action == "default":
            raise FairbloomError(
                "fair(...) answers QUERY itself, with the client's name and the terms that it"
                " supports: give a query function of yours an action, as in @app.query('mine')"
            )
        return super().query(action, mods=mods)

    def train(self, action: str = "default", *, mods: list[Mod] | None = None) -> Decorator:
        """Register a train function, as ClientApp does."""
        refuse_secure_aggregation(mods or ())
        own = [*self._train_mods, *(mods or [])]
        self._clips |= any("clip" in str(mod).casefold() for mod in own)
        return super().train(action, mods=[keep_context, *own, self._answer_train])

    def evaluate(self, action: str = "default", *, mods: list[Mod] | None = None) -> Decorator:
        """Register an evaluate function, as ClientApp does."""
        return super().evaluate(action, mods=[keep_context, *(mods or []), self._answer])

    def _answer_train(
        self, message: Message, context: Context, handler: ClientAppCallable
    ) -> Message:
        """Call a handler, in which `train_fn` works on the message's terms; complete its reply."""
        terms = terms_of(message)
        if terms is None:
            return handler(message, context)
        if CLIPPING_NORM in terms.others and not self._clips:
            raise ReportableError(
                f"the server's {CLIPPING_NORM} = {terms.others[CLIPPING_NORM]} is for a mod of this"
                " app: write fair(..., mods=[fixedclipping_mod]), or adaptiveclipping_mod, of"
                " flwr.clientapp.mod; without it, the noise protects nothing"
            )
        client = name_of(context)
        arrays = next(iter(message.content.array_records.values()), ArrayRecord())
        drawn_by = (terms.server_round, terms.seed) if terms.seed else (terms.server_round,)
        call = self._make_call(
            terms,
            {name: tuple(array.shape) for name, array in arrays.items()},
            load=self._training_data and functools.partial(self._training_data, context),
            seed=_seed(context, "train", *drawn_by) if self._seeded else None,
            is_checked=client in self._checked,
        )
        # The app adds the proximal term itself, so the handler must not: its message says that the
        # term is 0.
        shown = copy.copy(message)
        (key,) = PROXIMAL.keys
        without = {
            name: ConfigRecord({**each, key: 0.0})
            for name, each in message.content.config_records.items()
            if key in each
        }
        shown.content = RecordDict({**message.content, **without})
        token = _CALL.set(call)
        try:
            reply = self._answer(shown, context, handler)
        finally:
            _CALL.reset(token)
        if reply.has_error():
            return reply
        if call.asked and call.calls != 1:
            raise ReportableError(
                f"the server asks for {call.asked}, so the train handler must call app.train_fn"
                f" once for a message, and called it {call.calls} times: write train_fn ="
                " app.train_fn below app = fair(...)"
            )
        if call.is_checked:
            self._checked.add(client)
        for record in reply.content.metric_records.values():
            self._check_count(record, call)
            record.update(call.metrics)
        if call.has_zero_rate:
            about = reply.content.config_records.get(wire.CLIENT, ConfigRecord())
            reply.content[wire.CLIENT] = ConfigRecord({**about, wire.ZERO_RATE: True})
        return reply

    def _check_count(self, record: MetricRecord, call: TrainingCall) -> None:
        """Log once that the handler replies the number of batches for that of examples."""
        if call.sizes is None or self._has_warned:
            return
        batches, examples = call.sizes
        if record.get(wire.NUM_EXAMPLES) == batches != examples:
            self._has_warned = True
            log.warning(
                "num-examples = %d is the number of batches; the training set has %d examples, by"
                " which clients are weighted: reply len(trainloader.dataset)",
                batches,
                examples,
            )

    def _answer(self, message: Message, context: Context, handler: ClientAppCallable) -> Message:
        """Call a handler with the client's seed, the same in every round.

        The handler may split its data at random, and must get the same split each time.
        """
        terms = terms_of(message)
        if terms is None:
            return handler(message, context)
        with all_seeded(_seed(context, "handler") if self._seeded else None):
            reply = handler(give_own(message, context, terms), context)
        keep_own(reply, context, terms)
        return reply


def _train_on_terms(train: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a training function on the terms of the current message, if there is one."""
    call = _CALL.get()
    outcome: R = train(*args, **kwargs) if call is None else call(args, kwargs)
    return outcome


def refuse_secure_aggregation(mods: Sequence[Mod]) -> None:
    """Raise ReportableError if Flower's mods for secure aggregation are among these."""
    if any(getattr(mod, "__name__", "") in ("secaggplus_mod", "secagg_mod") for mod in mods):
        raise ReportableError(SECURE_AGGREGATION)


def _seed(context: Context, purpose: str, *where: int) -> int:
    seed = int(context.run_config.get("seed", 0))
    random = generator(seed, purpose, name_of(context), *where)
    return int(random.integers(2**63))


def name_of(context: Context) -> str:
    """Return the server's name of a client; a name or partition makes it the same in all runs."""
    node = context.node_config
    if "name" in node or "partition-id" not in node:
        return str(node.get("name", context.node_id))
    last = int(node.get("num-partitions", 1)) - 1
    width = len(str(last))
    return f"client-{str(node['partition-id']).zfill(width)}"


def introduce(message: Message, context: Context) -> Message:
    """Reply this client's name, and the terms that it supports."""
    about = ConfigRecord({wire.NAME: name_of(context), wire.HONOURS: SUPPORTED.wire_keys})
    return Message(RecordDict({wire.CLIENT: about}), reply_to=message)


def terms_of(message: Message) -> Terms | None:
    """Return the terms of a message, None without a round: it is another strategy's."""
    configs = message.content.config_records
    config: Mapping[str, Any] = configs.get(wire.CONFIG) or next(iter(configs.values()), {})
    check_protocol(config)
    if "server-round" not in config:
        return None
    terms = Terms.of(config)
    unsupported = SUPPORTED.find_unsupported(terms, [kind(terms) for kind in kinds_of(terms)])
    if unsupported:
        remedy = advice_on([unsupported], "install its newest version of Fairbloom")
        raise ReportableError(
            f"{unsupported}: this client does not know it: {remedy}", code=ErrorCode.UNKNOWN_TERM
        )
    return terms
