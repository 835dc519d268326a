"""The terms of a round's work, which the server sends to clients.

A method may ask clients for more than plain local steps. Each such thing is a rule. The parameters of a rule are one
class here, and what a client does of it is one class in `fairbloom.client.rules`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from .names import FROZEN, PROTOCOL

Value = bool | int | float | str | list[str]

DEMOGRAPHIC_PARITY, EQUAL_OPPORTUNITY = "demographic-parity", "equal-opportunity"
"""The disparities between two groups that a client can step down: over all examples, and over the positive ones."""


class Parameters:
    """The parameters of one rule. A field is a key on the wire, with hyphens, and is not sent at its default.

    Attributes
    ----------
    asked_by
        The field that asks for the rule; the others say more about it.
    must_be_honoured
        Whether a client must say that it acts on these keys. Where it need not, its reply shows whether it did.
    """

    asked_by: ClassVar[str]
    must_be_honoured: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class ProximalTerms(Parameters):
    """A proximal term of strength mu: (mu/2)‖x − w‖², w the received model."""

    asked_by = "proximal_mu"

    proximal_mu: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PersonalTerms(Parameters):
    """A personal model, which the client also trains and keeps: its pull to w, and passes over the local data.

    None: none.
    """

    asked_by = "personal_lambda"

    personal_lambda: float | None = None
    personal_epochs: int | None = None

    @property
    def has_personal_models(self) -> bool:
        """Whether clients have personal models."""
        return self.personal_lambda is not None


@dataclass(frozen=True, kw_only=True)
class LocalOnlyTerms(Parameters):
    """No step on the global model: the client's reply has no weight."""

    asked_by, must_be_honoured = "local_only", False

    local_only: bool = False


@dataclass(frozen=True, kw_only=True)
class MomentumTerms(Parameters):
    """A momentum of local SGD in place of the run's; None: the run's."""

    asked_by = "client_momentum"

    client_momentum: float | None = None


@dataclass(frozen=True, kw_only=True)
class FullBatchTerms(Parameters):
    """One plain step on all examples, so that the update is the gradient times the learning rate."""

    asked_by = "full_batch_step"

    full_batch_step: bool = False


@dataclass(frozen=True, kw_only=True)
class StepCountTerms(Parameters):
    """A number of steps in place of epochs; None: epochs."""

    asked_by, must_be_honoured = "local_steps", False

    local_steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class SnapshotTerms(Parameters):
    """A second model in the reply, that after this step of the work; None: none. A reply that lacks it is refused."""

    asked_by, must_be_honoured = "snapshot_step", False

    snapshot_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class LossTerms(Parameters):
    """A transform of a minibatch's mean loss: "propfair" with its M (baseline) and ε, or "" for none."""

    asked_by = "loss_transform"

    loss_transform: str = ""
    propfair_baseline: float | None = None
    propfair_epsilon: float | None = None


@dataclass(frozen=True, kw_only=True)
class DisparityTerms(Parameters):
    """A second model in the reply: the received one after a step down the disparity between two groups.

    `disparity` is DEMOGRAPHIC_PARITY, EQUAL_OPPORTUNITY or "" for none; the sharpness is the factor of the logits in
    its smoothed decisions, 10 where it is None.
    """

    asked_by = "disparity"

    disparity: str = ""
    disparity_sharpness: float | None = None


@dataclass(frozen=True, kw_only=True)
class BaselineTerms(Parameters):
    """Training alone, once, before the first reply.

    A client trains alone until its loss fell by less than the share `baseline_tolerance` of itself over
    `baseline_patience` epochs, or `baseline_epochs` were run, and keeps the least loss that it met.
    """

    asked_by = "baseline_epochs"

    baseline_patience: int | None = None
    baseline_tolerance: float | None = None
    baseline_epochs: int | None = None


@dataclass(frozen=True, kw_only=True)
class ControlTerms(Parameters):
    """Control variates: each step is corrected by the server's, sent as a record, and by the client's own."""

    asked_by = "control_variates"

    control_variates: bool = False


@dataclass(frozen=True, kw_only=True)
class DynamicTerms(Parameters):
    """FedDyn's dynamic regularizer of strength alpha, whose linear term the client keeps; None: there is none."""

    asked_by = "dynamic_alpha"

    dynamic_alpha: float | None = None


@dataclass(frozen=True, kw_only=True)
class OwnRuleTerms(Parameters):
    """A user's own rule of local work, as the setting `client-rule` names it; "": none."""

    asked_by = "client_rule"

    client_rule: str = ""


RULES: tuple[type[Parameters], ...] = (
    *(ProximalTerms, PersonalTerms, LocalOnlyTerms, MomentumTerms, FullBatchTerms, StepCountTerms, SnapshotTerms),
    *(LossTerms, DisparityTerms, BaselineTerms, ControlTerms, DynamicTerms, OwnRuleTerms),
)
"""The parameters of each rule, in the order in which they are sent; `Terms` has the fields of all of them."""

STATEFUL: tuple[type[Parameters], ...] = (ControlTerms, DynamicTerms, OwnRuleTerms)
"""The rules that correct each step by a state which the client keeps between rounds; a client follows one of them."""


def keys_of(rule: type[Parameters]) -> tuple[str, ...]:
    """Return the keys of a rule on the wire."""
    return tuple(each.name.replace("_", "-") for each in fields(rule))  # type: ignore[arg-type] # each is a dataclass


@dataclass(frozen=True, kw_only=True)
class Terms(
    ProximalTerms,
    PersonalTerms,
    LocalOnlyTerms,
    MomentumTerms,
    FullBatchTerms,
    StepCountTerms,
    SnapshotTerms,
    LossTerms,
    DisparityTerms,
    BaselineTerms,
    ControlTerms,
    DynamicTerms,
    OwnRuleTerms,
):
    """The terms of a client's work in one round; on the wire, a ConfigRecord of these names with hyphens.

    What is at its default here is not sent, so that clients of others need not know it.

    Attributes
    ----------
    server_round
        t, from 1.
    measure
        Names of the metrics that are asked for, in addition to those that every reply has.
    state_round
        The round of the client's last reply that was used, from whose state it goes on, 0 where there is none; None:
        clients keep no states.
    state_rounds
        That of each client by name, as long as the terms are those of all of them; `of_client` makes them those of one.
        It is not sent.
    seed
        The strategy's seed, on which random numbers of a user's app depend; 0 is not sent.
    others
        What a user's app sends to its clients in addition to these, by its name on the wire.
    """

    server_round: int
    measure: tuple[str, ...] = ()
    state_round: int | None = None
    state_rounds: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rules(self) -> tuple[type[Parameters], ...]:
        """The rules that are asked for."""
        of_this = vars(self)
        return tuple(rule for rule in RULES if of_this[rule.asked_by] != _DEFAULTS[rule.asked_by])

    def to_config(self) -> dict[str, Any]:
        """Return what is sent: the names with hyphens, without what is at its default."""
        of_this = vars(self)
        sent = {key: of_this[name] for key, name in _FIELDS.items() if of_this[name] != _DEFAULTS[name]}
        config = {**self.others, "server-round": self.server_round, "measure": list(self.measure), **sent}
        return {key: value for key, value in config.items() if key != "measure" or value}

    def of_client(self, name: str) -> Self:
        """Return the terms of one client's work, where these are those of all clients."""
        if not self.state_rounds:  # those of all clients are those of each: no copy for each of a round
            return self
        return replace(self, state_round=self.state_rounds.get(name, self.state_round), state_rounds={})

    @property
    def work(self) -> dict[str, Any]:
        """What is sent of `WORK`: a client that does not act on it would do other work than the method needs."""
        return {key: value for key, value in self.to_config().items() if key in WORK}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Return the terms that were sent; what is not known here is among the others."""
        names = {"server-round": "server_round", **_FIELDS}
        known = {names[key]: value for key, value in config.items() if key in names}
        others = {key: value for key, value in config.items() if key not in (*names, "measure", FROZEN, PROTOCOL)}
        return cls(**known, measure=tuple(config.get("measure", ())), others=others)


_NAMES = (*(each.name for rule in RULES for each in fields(rule)), "state_round", "seed")  # type: ignore[arg-type]
_FIELDS: Mapping[str, str] = {name.replace("_", "-"): name for name in _NAMES}
_DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(Terms) if each.name in _NAMES}

WORK = tuple(key for rule in RULES if rule.must_be_honoured for key in keys_of(rule))
"""The keys by which a client's local work may be changed; a client says which of them it honours."""
