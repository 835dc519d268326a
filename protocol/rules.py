"""Which rule corrects clients' local steps, by a run's settings and a server's terms.

See `fairbloom.client.rules`.
"""

from fairbloom.errors import ReportableError

from .settings import RunSettings
from .terms import OWN_RULE, STATEFUL, Terms


def check_rule(settings: RunSettings, terms: Terms) -> str:
    """Return what asks for a rule that corrects steps, as key = value; "" where nothing does.

    Two such requests, steps other than plain SGD's, or terms that contradict the settings raise
    FairbloomError.
    """
    # a device has looked at its settings, and at no message's
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
    names += [f"client-rule = {settings.client_rule!r}"] if settings.client_rule else []
    if not names:
        return ""
    if len(names) > 1:
        raise ReportableError(
            f"{names[0]} and {names[1]} ask for a rule of local work each, and there can be one:"
            " leave out one of them"
        )
    momentum = f"client-momentum = {terms.client_momentum}" if terms.client_momentum else ""
    if beyond := settings.beyond_corrected_sgd or momentum:
        raise ReportableError(f"{names[0]} corrects the steps of plain SGD: leave out {beyond}")
    return names[0]
