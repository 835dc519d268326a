"""All rules, and those of a round."""

from collections.abc import Mapping

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
from .personal import FineTuning, HeadFirst, PersonalModel, PersonalParameters
from .propfair import PropFairLoss
from .rounded import RoundedUpdate
from .snapshot import SnapshotRule
from .steps import ClientMomentum, FullBatchStep, LocalOnly, ProximalTerm, StepCount

# All rules, in the order in which a hook that several have is called.
RULES: tuple[type[Rule], ...] = (
    ProximalTerm,
    PersonalModel,
    PersonalParameters,
    HeadFirst,
    FineTuning,
    ClientMomentum,
    FullBatchStep,
    StepCount,
    LocalOnly,
    SnapshotRule,
    PropFairLoss,
    GroupCounts,
    DisparityStep,
    Baseline,
    ControlVariates,
    DynamicRegularizer,
    OwnRule,
    RoundedUpdate,
)

_BY_PARAMETERS: Mapping[Request | None, type[Rule]] = {
    rule.reads: rule for rule in RULES if rule.reads
}
_BY_METRIC: Mapping[str, type[Rule]] = {name: rule for rule in RULES for name in rule.reports}

Rules = tuple[Rule, ...]


def rules_of(settings: RunSettings, terms: Terms) -> Rules:
    """Return the rules of a client's round, by the server's terms and the run's settings."""
    check_rule(settings, terms)
    rules = tuple(
        OwnRule(terms, settings.client_rule) if kind is OwnRule else kind(terms)
        for kind in kinds_of(terms, settings.client_rule)
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
    """Return the rules that terms ask for, and the user's own if `client_rule` names one."""
    asked = {_BY_PARAMETERS[each] for each in terms.rules}
    asked |= {_BY_METRIC[name] for name in terms.measure if name in _BY_METRIC}
    if client_rule:
        asked.add(OwnRule)
    return [rule for rule in RULES if rule in asked]


def transform_of(rules: Rules) -> Transform:
    """Return the function with which a rule transforms the mean loss of a minibatch."""
    changing = [rule.loss for rule in rules if "loss" in rule.hooks()]  # only PropFairLoss has it
    return changing[0] if changing else unchanged
