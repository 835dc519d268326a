"""The terms of a round's work, which the server sends to clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from .names import FROZEN, PROTOCOL

Value = bool | int | float | str | list[str]

DEMOGRAPHIC_PARITY, EQUAL_OPPORTUNITY = "demographic-parity", "equal-opportunity"
"""The disparities between two groups that a client can step down: over all examples, and over the positive ones."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a client's work in one round; on the wire, a ConfigRecord of these names with hyphens.

    What is at its default here is not sent, so that clients of others need not know it.

    Attributes
    ----------
    server_round
        t, from 1.
    measure
        Names of the metrics that are asked for, beside those that every reply has.
    proximal_mu
        Strength of the proximal term (mu/2)‖x − w‖², w the received model.
    personal_lambda
        Strength of the personal model's pull to w; None: there is no personal model.
    personal_epochs
        Passes over the local data for the personal model; sent where there is one.
    local_only
        Whether the global model is left as it is.
    client_momentum
        Momentum of local SGD in place of the run's; None: the run's.
    full_batch_step
        Whether the work is one step on all examples.
    local_steps
        Steps of the work in place of epochs; None: epochs.
    snapshot_step
        The step after which the model is kept and replied as well; None: it is not.
    loss_transform
        What becomes of the mean loss of a minibatch: "propfair", or "" for nothing.
    propfair_baseline, propfair_epsilon
        M and ε of that transform; sent with it.
    disparity
        Which disparity between two groups of its examples a client steps down from the received model, to reply that
        model as well: DEMOGRAPHIC_PARITY or EQUAL_OPPORTUNITY; "": none.
    disparity_sharpness
        Factor of the logits in the smoothed decisions of that disparity; None: 10.
    baseline_patience, baseline_tolerance, baseline_epochs
        Before its first reply, a client trains alone until its loss fell by less than this share of itself over so many
        epochs, or so many were run, and keeps the least loss that it met; sent where that is asked for.
    control_variates
        Whether each local step is corrected by the server's control variate, which comes as a record of its own and is
        zero where it does not, and by the client's, which the client keeps.
    dynamic_alpha
        Strength of the dynamic regularizer of FedDyn, whose linear term the client keeps; None: there is none.
    client_rule
        The user's own rule of local work, as the run's setting `client-rule` names it; "": none.
    state_round
        The round of the client's last reply that was used, from whose state it goes on, 0 where there is none; None:
        clients keep no states.
    state_rounds
        That of each client by name, as long as the terms are those of all of them; `of_client` makes them those of one.
        It is not sent.
    agreed
        What the clients of the run have agreed on about their data; "" where nothing needs to be agreed.
    others
        What a user's app sends to its clients beside these, by its name on the wire.
    """

    server_round: int
    measure: tuple[str, ...] = ()
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
    state_round: int | None = None
    state_rounds: Mapping[str, int] = field(default_factory=dict)
    agreed: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)

    def to_config(self) -> dict[str, Any]:
        """Return what is sent: the names with hyphens, without what is at its default."""
        set_ = {name: getattr(self, name) for name in _DEFAULTS if getattr(self, name) != _DEFAULTS[name]}
        sent = {name.replace("_", "-"): value for name, value in set_.items()}
        return {**self.others, "server-round": self.server_round, "measure": list(self.measure), **sent}

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
        known = {_FIELDS[key]: value for key, value in config.items() if key in _FIELDS}
        others = {key: value for key, value in config.items() if key not in (*_FIELDS, "measure", FROZEN, PROTOCOL)}
        return cls(**known, measure=tuple(config.get("measure", ())), others=others)


_MAPPINGS = ("state_rounds", "others")

_FIELDS: Mapping[str, str] = {
    each.name.replace("_", "-"): each.name for each in fields(Terms) if each.name not in ("measure", *_MAPPINGS)
}
_DEFAULTS: Mapping[str, Any] = {
    each.name: each.default for each in fields(Terms) if each.name not in ("server_round", "measure", *_MAPPINGS)
}

_NEEDLESS = ("agreed", "local_only", "local_steps", "snapshot_step", "state_round")
"""Terms that no client needs to say it honours: without agreement there is no task, with `local_only` the reply counts
for nothing, and who overlooks the steps of a snapshot, or the round of its state, has none to reply, for which it is
refused."""

WORK = tuple(name.replace("_", "-") for name in _DEFAULTS if name not in _NEEDLESS)
"""The keys by which a client's local work may be changed; a client says which of them it honours."""
