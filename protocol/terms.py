"""The terms of a round's work, which the server sends to clients.

A method may ask clients for more than plain local steps. Each such thing is a rule: what asks for
it is a Request here, and what a client does of it is one class in `fairbloom.client.rules`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from .names import FROZEN, PROTOCOL

Value = bool | int | float | str | list[str]

DEMOGRAPHIC_PARITY = "demographic-parity"
EQUAL_OPPORTUNITY = "equal-opportunity"
"""The disparities between two groups that a client can step down: over all examples, and over the
positive ones."""


@dataclass(frozen=True)
class Request:
    """Fields of the terms that ask for one rule.

    Each is a key on the wire, with hyphens, and not sent at its default.

    Attributes
    ----------
    names
        The fields, of which the first asks for the rule; the others say more about it.
    must_be_honoured
        Whether a client must say that it acts on these keys. Where it need not, its reply shows
        whether it did.
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

RULES: tuple[Request, ...] = (
    *(PROXIMAL, PERSONAL_MODEL, LOCAL_ONLY, CLIENT_MOMENTUM, FULL_BATCH, STEP_COUNT, SNAPSHOT_STEP),
    *(LOSS_TRANSFORM, DISPARITY_STEP, BASELINE_TRAINING, CONTROL_VARIATES, DYNAMIC, OWN_RULE),
)
"""What asks for each rule, in the order in which it is sent."""

STATEFUL: tuple[Request, ...] = (CONTROL_VARIATES, DYNAMIC, OWN_RULE)
"""The rules that correct each step by a state which the client keeps between rounds; a client
follows one of them."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a client's work in one round.

    On the wire, a ConfigRecord of these names with hyphens.

    What is at its default here is not sent, so that clients of others need not know it.

    Attributes
    ----------
    server_round
        t, from 1.
    measure
        Names of the metrics that are asked for, in addition to those that every reply has.
    state_round
        The round of the client's last reply that was used, from whose state it goes on, 0 where
        there is none; None: clients keep no states.
    state_rounds
        That of each client by name, as long as the terms are those of all of them; `of_client`
        makes them those of one. It is not sent.
    seed
        The strategy's seed, on which random numbers of a user's app depend; 0 is not sent.
    others
        What a user's app sends to its clients in addition to these, by its name on the wire.
    proximal_mu
        Strength mu of a proximal term: (mu/2)‖x − w‖², w the received model.
    personal_lambda, personal_epochs
        A personal model, which the client also trains and keeps: its pull to w, and passes over the
        local data. None: none.
    local_only
        Whether no step is taken on the global model: the client's reply has no weight.
    client_momentum
        A momentum of local SGD in place of the run's; None: the run's.
    full_batch_step
        Whether one plain step is taken on all examples: the update is then the gradient times the
        learning rate.
    local_steps
        A number of steps in place of epochs; None: epochs.
    snapshot_step
        The reply has a second model, that after this step of the work; None: none. A reply that
        lacks it is refused.
    loss_transform, propfair_baseline, propfair_epsilon
        A transform of a minibatch's mean loss: "propfair" with its M and ε, or "" for none.
    disparity, disparity_sharpness
        The reply has a second model: the received one after a step down this disparity between two
        groups, DEMOGRAPHIC_PARITY, EQUAL_OPPORTUNITY or "" for none. The sharpness is the factor of
        the logits in its smoothed decisions, 10 where it is None.
    baseline_epochs, baseline_patience, baseline_tolerance
        The client trains alone, once, before its first reply, until its loss fell by less than the
        share `baseline_tolerance` of itself over `baseline_patience` epochs, or `baseline_epochs`
        were run, and keeps the least loss that it met.
    control_variates
        Whether each step is corrected by the server's control variate, sent as a record, and by the
        client's own.
    dynamic_alpha
        Strength of FedDyn's dynamic regularizer, whose linear term the client keeps; None: there is
        none.
    client_rule
        A user's own rule of local work, as the setting `client-rule` names it; "": none.
    """

    server_round: int
    measure: tuple[str, ...] = ()
    state_round: int | None = None
    state_rounds: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    others: Mapping[str, Any] = field(default_factory=dict)
    proximal_mu: float = 0.0
    personal_lambda: float | None = None
    personal_epochs: int | None = None
    local_only: bool = False
    client_momentum: float | None = None
    full_batch_step: bool = False
    local_steps: int | None = None
    snapshot_step: int | None = None
    loss_transform: str = ""
    propfair_baseline: float | None = None
    propfair_epsilon: float | None = None
    disparity: str = ""
    disparity_sharpness: float | None = None
    baseline_patience: int | None = None
    baseline_tolerance: float | None = None
    baseline_epochs: int | None = None
    control_variates: bool = False
    dynamic_alpha: float | None = None
    client_rule: str = ""

    @property
    def has_personal_models(self) -> bool:
        """Whether clients have personal models."""
        return self.personal_lambda is not None

    @property
    def rules(self) -> tuple[Request, ...]:
        """The rules that are asked for."""
        of_this = vars(self)
        return tuple(rule for rule in RULES if of_this[rule.asked_by] != _DEFAULTS[rule.asked_by])

    def to_config(self) -> dict[str, Any]:
        """Return what is sent: the names with hyphens, without what is at its default."""
        of_this = vars(self)
        sent = {
            key: of_this[name] for key, name in _FIELDS.items() if of_this[name] != _DEFAULTS[name]
        }
        config = {
            **self.others,
            "server-round": self.server_round,
            "measure": list(self.measure),
            **sent,
        }
        return {key: value for key, value in config.items() if key != "measure" or value}

    def of_client(self, name: str) -> Self:
        """Return the terms of one client's work, where these are those of all clients."""
        # those of all clients are those of each: no copy for each of a round
        if not self.state_rounds:
            return self
        return replace(
            self, state_round=self.state_rounds.get(name, self.state_round), state_rounds={}
        )

    @property
    def work(self) -> dict[str, Any]:
        """What is sent of `WORK`: a client that does not act on it would do other work than the method needs."""
        return {key: value for key, value in self.to_config().items() if key in WORK}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Return the terms that were sent; what is not known here is among the others."""
        names = {"server-round": "server_round", **_FIELDS}
        known = {names[key]: value for key, value in config.items() if key in names}
        others = {
            key: value
            for key, value in config.items()
            if key not in (*names, "measure", FROZEN, PROTOCOL)
        }
        return cls(**known, measure=tuple(config.get("measure", ())), others=others)


_NAMES = (*(name for rule in RULES for name in rule.names), "state_round", "seed")
_FIELDS: Mapping[str, str] = {name.replace("_", "-"): name for name in _NAMES}
_DEFAULTS: Mapping[str, Any] = {
    each.name: each.default for each in fields(Terms) if each.name in _NAMES
}

WORK = tuple(key for rule in RULES if rule.must_be_honoured for key in rule.keys)
"""The keys by which a client's local work may be changed; a client says which of them it
honours."""
