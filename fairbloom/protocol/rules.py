"""The check of the rule that corrects clients' local steps.

See `fairbloom.client.rules`.
"""

from fairbloom.errors import ReportableError
from fairbloom.text import text_if

from .settings import RunSettings
from .terms import OWN_RULE, STATEFUL, Terms


def check_rule(settings: RunSettings, terms: Terms) -> None:
    """Raise FairbloomError if a rule that corrects steps cannot be followed.

    That is if terms and settings ask for two of them, if plain SGD does not take the steps, or if
    the terms contradict the settings.
    """
    # A device checks the settings of a run, not each message: its terms must not name another rule.
    if terms.client_rule not in ("", settings.client_rule):
        raise ReportableError(
            f"client-rule = {terms.client_rule!r}: the run's settings name"
            f" {settings.client_rule!r}: set it for the run"
        )
    names = [
        f"{rule.asked_by.replace('_', '-')} = {getattr(terms, rule.asked_by)!r}"
        for rule in terms.rules
        if rule in STATEFUL and rule is not OWN_RULE
    ]
    if settings.client_rule:
        names.append(f"client-rule = {settings.client_rule!r}")
    if len(names) > 1:
        raise ReportableError(
            f"{names[0]} and {names[1]} ask for a rule of local work each, and there can be one:"
            " leave out one of them"
        )
    momentum = text_if(terms.client_momentum, f"client-momentum = {terms.client_momentum}")
    if not names:
        return
    beyond = settings.beyond_plain_sgd(but="client-rule") or momentum
    if beyond:
        raise ReportableError(f"{names[0]} corrects the steps of plain SGD: leave out {beyond}")
