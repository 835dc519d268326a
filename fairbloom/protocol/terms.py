"""The terms of a round's work, which the server sends to clients.

A method may ask clients for more than plain local steps. Each addition is a rule: the request for
it is a Request here, and a class in `fairbloom.client.rules` carries it out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Annotated, Any, Self, get_args

from fairbloom.errors import ReportableError

from .codec import CODECS, Codec
from .names import FROZEN, MODEL_MADE, PROTOCOL
from .options import DECLARED
from .parameters import Parameter, Range, SettingsError, annotated, key_of

# More local work in a round would keep a device for days.
EPOCHS = {"range": Range("[1, 100000]")}
STEPS = {"range": Range("[1, 10000000]")}

# The disparities between two groups that a client can reduce: over all examples, and over the
# positive ones.
DEMOGRAPHIC_PARITY = "demographic-parity"
EQUAL_OPPORTUNITY = "equal-opportunity"


@dataclass(frozen=True)
class Request:
    """Fields of the terms that ask for one rule.

    Each field is a key on the wire, with hyphens, and is not sent at its default.

    Attributes
    ----------
    names
        The fields. The first asks for the rule, the others are its parameters.
    must_be_honoured
        Whether a client must declare that it supports these keys. If not, its reply shows whether
        it does.
    """

    names: tuple[str, ...]
    must_be_honoured: bool = True

    @property
    def asked_by(self) -> str:
        """The field that asks for the rule."""
        return self.names[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all fields on the wire."""
        return tuple(name.replace("_", "-") for name in self.names)


PROXIMAL = Request(("proximal_mu",))
PERSONAL_MODEL = Request(("personal_lambda", "personal_epochs"))
PERSONAL_PARAMETERS = Request(("personal_parameters",))
HEAD_FIRST = Request(("head_epochs",))
FINE_TUNING = Request(("fine_tune_epochs",))
LOCAL_ONLY = Request(("local_only",), must_be_honoured=False)
CLIENT_MOMENTUM = Request(("client_momentum",))
FULL_BATCH = Request(("full_batch_step",))
STEP_COUNT = Request(("local_steps",), must_be_honoured=False)
SNAPSHOT_STEP = Request(("snapshot_step",), must_be_honoured=False)
LOSS_TRANSFORM = Request(("loss_transform", "propfair_baseline", "propfair_epsilon"))
DISPARITY_STEP = Request(("disparity", "disparity_sharpness"))
BASELINE_TRAINING = Request(("baseline_epochs", "baseline_patience", "baseline_tolerance"))
CONTROL_VARIATES = Request(("control_variates",))
DYNAMIC = Request(("dynamic_alpha",))
OWN_RULE = Request(("client_rule",))
ROUNDED_UPDATE = Request(("wire_dtype",))

# The requests for all rules, in the order in which they are sent.
RULES: tuple[Request, ...] = (
    PROXIMAL,
    PERSONAL_MODEL,
    PERSONAL_PARAMETERS,
    HEAD_FIRST,
    FINE_TUNING,
    LOCAL_ONLY,
    CLIENT_MOMENTUM,
    FULL_BATCH,
    STEP_COUNT,
    SNAPSHOT_STEP,
    LOSS_TRANSFORM,
    DISPARITY_STEP,
    BASELINE_TRAINING,
    CONTROL_VARIATES,
    DYNAMIC,
    OWN_RULE,
    ROUNDED_UPDATE,
)

# The terms that say which model a client evaluates, and how it travels.
OF_EVALUATION = frozenset(
    {
        "server_round",
        "personal_lambda",
        "personal_parameters",
        "fine_tune_epochs",
        "local_only",
        "wire_dtype",
    }
)

# The rules that correct each step by a state which the client stores between rounds; a client
# follows at most one of them.
STATEFUL: tuple[Request, ...] = (CONTROL_VARIATES, DYNAMIC, OWN_RULE)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a client's work in one round; on the wire a ConfigRecord, with hyphens.

    Defaults are not sent, so that other clients need not know the key. A client refuses a value
    outside its range, so that its rules compute with finite numbers. A term without a range here
    that is also an option has the range in `RunOptions`.

    Attributes
    ----------
    server_round
        t, from 1.
    measure
        Names of the metrics that are asked for, in addition to those of every reply.
    measures
        Replaces `measure` for some clients, by name, in the terms of all clients. `of_client`
        applies it. It is not sent.
    state_round
        The round of the client's last reply that was used: the client resumes from the state that
        it stored then. 0 if no reply was used; None: clients store no states.
    state_rounds
        The state round of each client by name, in the terms of all clients. `of_client` moves it to
        `state_round`. It is not sent.
    seed
        The strategy's seed, on which random numbers of a user's app depend; 0 is not sent.
    privacy_units, privacy_rounds
        What the run may still spend of the client's privacy account, and in how many rounds; None:
        the lowest price is paid.
    privacy_budgets
        `privacy_units` of each client with an account by name, in the terms of all clients.
        `of_client` moves it there. It is not sent.
    others
        Further values that a user's app sends to its clients, by their names on the wire.
    proximal_mu, personal_lambda, personal_parameters, head_epochs, fine_tune_epochs, \
control_variates, client_rule, wire_dtype
        The options of these names, see `options`. Without personal models, `personal_lambda` is
        None; `head_epochs` is None if personal parameters are trained with the others.
    personal_epochs
        Passes over the local data for the personal model.
    local_only
        Whether no step is taken on the global model: the client's reply has no weight.
    client_momentum
        A momentum of local SGD instead of the run's; None: the run's.
    full_batch_step
        Whether one plain step is taken on all examples: the update is then the gradient times the
        learning rate.
    local_steps
        A number of steps instead of epochs; None: epochs.
    snapshot_step
        The reply has a second model, the one after this step of the work; None: no second model. A
        reply without it is refused.
    loss_transform, propfair_baseline, propfair_epsilon
        A transform of a minibatch's mean loss: "propfair" with its M and ε, or "": no transform.
    disparity, disparity_sharpness
        The reply has a second model: the received one after a step down this disparity between two
        groups, DEMOGRAPHIC_PARITY, EQUAL_OPPORTUNITY or "": no disparity. The sharpness is the
        factor of the logits in its smoothed decisions; None: 10.
    baseline_epochs, baseline_patience, baseline_tolerance
        The client trains once without the others, before its first reply, until its loss fell by
        less than the share `baseline_tolerance` of itself over `baseline_patience` epochs, or after
        `baseline_epochs`. It stores the least loss.
    dynamic_alpha
        Strength of FedDyn's dynamic regularizer; the client stores its linear term. None: no
        regularizer.
    """

    server_round: int = field(metadata={"range": Range("[1, 999999999]")})
    measure: tuple[str, ...] = ()
    measures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    state_round: int | None = field(default=None, metadata={"range": Range("[0, 999999999]")})
    state_rounds: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    privacy_units: int | None = field(default=None, metadata={"range": Range("[1, inf)")})
    privacy_rounds: int | None = field(default=None, metadata={"range": Range("[1, inf)")})
    privacy_budgets: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    proximal_mu: float = 0.0
    personal_lambda: float | None = None
    personal_epochs: int | None = field(default=None, metadata=EPOCHS)
    personal_parameters: str = ""
    head_epochs: int | None = field(default=None, metadata=EPOCHS)
    fine_tune_epochs: int = field(default=0, metadata=EPOCHS)
    local_only: bool = False
    client_momentum: float | None = field(default=None, metadata={"range": Range("[0, 1)")})
    full_batch_step: bool = False
    local_steps: int | None = field(default=None, metadata=STEPS)
    snapshot_step: int | None = field(default=None, metadata=STEPS)
    loss_transform: str = ""
    propfair_baseline: float | None = field(default=None, metadata={"range": Range("(0, inf)")})
    propfair_epsilon: float | None = field(default=None, metadata={"range": Range("(0, inf)")})
    disparity: str = ""
    disparity_sharpness: float | None = field(default=None, metadata={"range": Range("(0, inf)")})
    baseline_patience: int | None = field(default=None, metadata=EPOCHS)
    baseline_tolerance: float | None = field(default=None, metadata={"range": Range("[0, inf)")})
    baseline_epochs: int | None = field(default=None, metadata=EPOCHS)
    control_variates: bool = False
    dynamic_alpha: float | None = field(default=None, metadata={"range": Range("[0, inf)")})
    client_rule: str = ""
    wire_dtype: str = "float32"

    @property
    def keeps_arrays(self) -> bool:
        """Whether clients keep some arrays of the model for themselves."""
        return self.personal_parameters != ""

    @property
    def keeps_personal_models(self) -> bool:
        """Whether clients keep personal models, or arrays of them, between rounds."""
        return self.personal_lambda is not None or self.keeps_arrays

    @property
    def has_personal_models(self) -> bool:
        """Whether clients have personal models."""
        return self.keeps_personal_models or self.fine_tune_epochs > 0

    @classmethod
    def of_options(cls, server_round: int, values: Mapping[str, Any]) -> Self:
        """Return the terms that the common options among a method's attributes ask for."""
        asked = {name: values[name] for name in DECLARED if name in _NAMES}
        if asked["personal_lambda"]:
            asked["personal_epochs"] = 1
        else:  # a pull of 0 is local training, which a method must ask for
            asked["personal_lambda"] = None
        return cls(server_round=server_round, **asked)

    def for_evaluation(self, measure: Sequence[str], others: Mapping[str, Any]) -> Self:
        """Return the terms of evaluation in the same round.

        They say which model a client evaluates and how it travels; no rule of training is asked
        for.
        """
        kept = {name: value for name, value in vars(self).items() if name in OF_EVALUATION}
        return type(self)(**kept, measure=tuple(measure), others=others)

    @property
    def rules(self) -> tuple[Request, ...]:
        """The rules that are asked for."""
        return tuple(
            rule for rule in RULES if getattr(self, rule.asked_by) != _DEFAULTS[rule.asked_by]
        )

    def to_config(self) -> dict[str, Any]:
        """Return the config to send: the names with hyphens, without fields at their defaults."""
        values = vars(self)
        config = {
            **self.others,
            "server-round": self.server_round,
            "measure": list(self.measure),
            **{
                key: values[name]
                for key, name in _FIELDS.items()
                if values[name] != _DEFAULTS[name]
            },
        }
        return {key: value for key, value in config.items() if key != "measure" or value}

    def of_client(self, name: str) -> Self:
        """Return these terms with this client's metrics, state round and units."""
        # Nothing differs by client: share the object.
        if not self.state_rounds and not self.measures and not self.privacy_budgets:
            return self
        units = self.privacy_budgets.get(name)
        return replace(
            self,
            measure=self.measures.get(name, self.measure),
            measures={},
            state_round=self.state_rounds.get(name, self.state_round),
            state_rounds={},
            privacy_units=units,
            privacy_rounds=None if units is None else self.privacy_rounds,
            privacy_budgets={},
        )

    @property
    def codec(self) -> Codec:
        """How the round's models and updates travel."""
        return CODECS[self.wire_dtype]

    @property
    def work(self) -> dict[str, Any]:
        """The sent terms in `WORK`, which a client must support to do the work of the method."""
        return {key: value for key, value in self.to_config().items() if key in WORK}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Return the terms of a received config; `others` has the unknown keys.

        Raise ReportableError for a value that is not allowed.
        """
        for key, value in config.items():
            if key in ALLOWED:
                try:
                    ALLOWED[key].checked(value)
                except SettingsError as error:
                    raise ReportableError(f"the server asks for {str(error)[:200]}") from error
        names = {"server-round": "server_round", **_FIELDS}
        known = {names[key]: value for key, value in config.items() if key in names}
        return cls(
            **known,
            measure=tuple(config.get("measure", ())),
            others={
                key: value
                for key, value in config.items()
                if key not in (*names, "measure", FROZEN, PROTOCOL, MODEL_MADE)
            },
        )


_NAMES = (
    *(name for rule in RULES for name in rule.names),
    "state_round",
    "seed",
    "privacy_units",
    "privacy_rounds",
)
_FIELDS: Mapping[str, str] = {name.replace("_", "-"): name for name in _NAMES}
_DEFAULTS: Mapping[str, Any] = {
    each.name: each.default for each in fields(Terms) if each.name in _NAMES
}


def _declared(term: Field[Any]) -> Any:
    """Return what a term may be, without None, which is not sent."""
    kind = next(iter(get_args(term.type)), term.type)
    if "range" in term.metadata:
        return Annotated[kind, term.metadata["range"]]
    return DECLARED.get(term.name, kind)


# What each term may be on the wire, by its key.
ALLOWED: Mapping[str, Parameter] = {
    key_of(each.name): parameter
    for each in fields(Terms)
    if each.name in ("server_round", *_NAMES)
    and (parameter := annotated(each.name, _declared(each), None))
}

# The keys that change a client's local work; a client declares which of them it supports.
WORK = tuple(key for rule in RULES if rule.must_be_honoured for key in rule.keys)
