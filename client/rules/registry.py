"""All rules, and those of a round."""

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from fairbloom.errors import ReportableError
from fairbloom.protocol.rules import check_rule
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Request, Terms

from ..work import Transform, unchanged
from .base import Rule
from .baseline import Baseline
from .control_variates import ControlVariates
from .disparity import DisparityStep, GroupCounts
from .dynamic import DynamicRegularizer
from .own import OwnRule
from .personal import PersonalModel
from .propfair import PropFairLoss
from .proximal import ProximalTerm
from .snapshot import SnapshotRule
from .steps import ClientMomentum, FullBatchStep, LocalOnly, StepCount

RULES: tuple[type[Rule], ...] = (
    *(
        ProximalTerm,
        PersonalModel,
        ClientMomentum,
        FullBatchStep,
        StepCount,
        LocalOnly,
        SnapshotRule,
        PropFairLoss,
    ),
    *(GroupCounts, DisparityStep, Baseline, ControlVariates, DynamicRegularizer, OwnRule),
)
"""The rules in their order: where several have the same hook, that of the first is called first."""

_BY_PARAMETERS: Mapping[Request | None, type[Rule]] = {
    rule.reads: rule for rule in RULES if rule.reads
}
_BY_METRIC: Mapping[str, type[Rule]] = {name: rule for rule in RULES for name in rule.reports}

Rules = tuple[Rule, ...]


def rules_of(settings: RunSettings, terms: Terms) -> Rules:
    """Return the rules of a client's round, as the server's terms and the run's settings ask for them."""
    check_rule(settings, terms)
    kinds = kinds_of(terms, settings.client_rule)
    rules = tuple(
        OwnRule(terms, settings.client_rule) if kind is OwnRule else kind(terms) for kind in kinds
    )
    for rule in rules:
        rule.check(settings)
    seconds = [rule for rule in rules if rule.replies]
    if len(seconds) > 1:
        raise ReportableError(
            f"{seconds[0]} and {seconds[1]} ask for a second model each, and a reply has one: leave"
            " out one of them"
        )
    return rules


def kinds_of(terms: Terms, client_rule: str = "") -> list[type[Rule]]:
    """Return which rules terms ask for, and whether the user's own is one where the settings name it."""
    asked = {_BY_PARAMETERS[each] for each in terms.rules}
    asked |= {_BY_METRIC[name] for name in terms.measure if name in _BY_METRIC}
    asked |= {OwnRule} if client_rule else set()
    return [rule for rule in RULES if rule in asked] if asked else []


def transform_of(rules: Rules) -> Transform:
    """Return what rules make of the mean loss of a minibatch."""
    changing = tuple(rule for rule in rules if "loss" in rule.hooks())
    return partial(_transformed, changing) if changing else unchanged


def _transformed(rules: Rules, loss: Tensor) -> Tensor:
    for rule in rules:
        loss = rule.loss(loss)
    return loss
