"""What a client with a privacy account may be asked for: an allowlist, which both sides know.

Each term, metric and setting of the protocol is classified here; whatever is not is refused.
"""

import math
from collections.abc import Mapping, Set

from fairbloom.errors import ReportableError, join_names

from .accounts import EPSILONS
from .conditions import Under, Where
from .names import LEARNING_RATE, LOSS_BEFORE, STEP_SUM, UPDATE_NORM
from .parameters import SettingsError, key_of, split_pairs
from .settings import SETTINGS, Mark, RunSettings, marked
from .terms import Terms

# The value of privacy.mode with which clients in one process add noise, and an example of epsilon.
SIMULATED = "simulated"

# What each output says of such noise.
SIMULATED_NOISE = "simulated, no privacy: the noise follows from the run's seed"

EXAMPLE = "site-a=1 site-b=3"

# Metrics of training: a report that is charged, and numbers of what is released anyway.
METRICS = frozenset({LOSS_BEFORE, LEARNING_RATE, UPDATE_NORM, STEP_SUM})

# Terms that choose public arithmetic on what is released. All others are refused unless they have
# their default, which is not sent: they would show rows by other numbers, by arrays that no noise
# is added to, or by a user's own code.
TERMS = frozenset(
    {
        "server_round",
        "state_round",
        "seed",
        "measure",
        "measures",
        "state_rounds",
        "proximal_mu",
        "client_momentum",
        "full_batch_step",
        "local_steps",
        "control_variates",
        "dynamic_alpha",
        "privacy_units",
        "privacy_rounds",
        "privacy_budgets",
    }
)


def epsilon_of_client(settings: RunSettings, client: str) -> float | None:
    """Return ε of a client's simulated account, None if it has none.

    Raise SettingsError if the setting is neither a number that an account may have nor one for each
    name.
    """
    if settings.privacy__mode != SIMULATED:
        return None
    given = settings.privacy__epsilon
    try:
        pairs = split_pairs(given, EXAMPLE) if "=" in given else {client: given}
    except ValueError as error:
        raise SettingsError(f"privacy.epsilon = {given!r}: {error}") from error
    if client not in pairs:
        return None
    try:
        epsilon = float(pairs[client])
    except ValueError:
        epsilon = math.nan
    if epsilon not in EPSILONS:
        low, high = EPSILONS.ends
        raise SettingsError(
            f"privacy.epsilon = {given!r}: write a number above {low:g} and at most {high:g}, as in"
            f" 3, or one for each client, as in {EXAMPLE!r}; more would protect no row"
        )
    return epsilon


def check_settings(settings: RunSettings) -> None:
    """Raise ReportableError for the first setting of clients' work that no account allows.

    One whose declaration does not say what an account allows is refused but at its default.
    """
    for key in marked(Mark.SENT_TO_CLIENTS):
        parameter = SETTINGS[key]
        value = settings.value_of(parameter)
        declared = parameter.values_in(Where.ACCOUNT)
        allowed = declared or Under(Where.ACCOUNT, parameter.default)
        if not allowed.allows(value):
            raise ReportableError(
                f"{key} = {value!r}: a privacy account allows only"
                f" {', '.join(map(repr, allowed.values))}: set {key} = {allowed.values[0]}"
            )


def check_terms(terms: Terms, metrics: Set[str] = METRICS) -> None:
    """Raise ReportableError for the first term that no account allows, or another metric."""
    if (terms.privacy_units is None) != (terms.privacy_rounds is None):
        raise ReportableError(
            "the server sends privacy-units without privacy-rounds, or these without units: send"
            " both, or none"
        )
    default = Terms(server_round=1)
    for name, value in vars(terms).items():
        if name not in TERMS and value != getattr(default, name):
            what = join_names(value) if isinstance(value, Mapping) else f"{key_of(name)} = {value}"
            raise ReportableError(
                f"the server asks for {what[:200]}, and a privacy account does not allow it: take"
                " another method, fedavg for example, or leave the option out"
            )
    for name in terms.measure:
        if name not in metrics:
            raise ReportableError(
                f"the server asks for {name[:100]}, and a privacy account reports only"
                f" {', '.join(sorted(metrics)) or 'noisy results in an evaluation'}: take a method"
                " that needs none but these"
            )
