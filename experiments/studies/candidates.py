"""What `fairbloom recommend` tries: methods, each with a few sensible values of its main parameter."""

from collections.abc import Collection, Mapping, Sequence

from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings
from fairbloom.tasks.measures import TRUE_POSITIVE_RATE

from ..recipes.labels import format_value
from ..recipes.variants import Variant, variants

SPACE: tuple[tuple[str, Mapping[str, Value]], ...] = (
    ("fedavg", {}),
    ("fedavg", {"weighting": "uniform"}),
    ("local", {}),
    ("ditto", {"ditto.lam": 0.1}),
    ("fedfv", {"fedfv.alpha": 0.1}),
    ("fedlf", {}),
    ("qfedavg", {"qfedavg.q": 1.0}),
    ("drfa", {"drfa.gamma": 0.01}),
    ("fedmgdaplus", {"fedmgdaplus.server-lr": 0.1}),
    ("term", {"term.tilt": 1.0}),
    ("ditto", {"ditto.lam": 1.0}),
    ("fedmdfg", {}),
    ("afl", {"afl.gamma": 0.1}),
    ("fedmgda", {"fedmgda.epsilon": 0.1}),
    ("qfedavg", {"qfedavg.q": 0.1}),
    ("term", {"term.tilt": 5.0}),
    ("fedmgdaplus", {"fedmgdaplus.server-lr": 1.0}),
    ("semivred", {"semivred.beta": 0.5}),
    ("gifair", {"gifair.strength": 0.9}),
    ("deltafl", {"deltafl.theta": 0.5}),
    ("adafed", {"adafed.gamma": 1.0}),
    ("fedfv", {"fedfv.alpha": 0.5}),
    ("qfedavg", {"qfedavg.q": 5.0}),
    ("fedfa", {}),
    ("fedavgn", {"fedavgn.server-lr": 0.1}),
    ("drfa", {"drfa.gamma": 0.1}),
    ("afl", {"afl.gamma": 0.01}),
    ("fedprox", {"fedprox.mu": 0.1}),
)
"""The candidates in the order in which they are tried: where time is short, the last are left out. The first is the
baseline, and the second the simplest change of it: every client counts the same.

The values are those of the papers and of the comparisons of this project. Local settings, as the learning rate, are
the same for all, and are not searched.
"""


BETWEEN_GROUPS: tuple[tuple[str, Mapping[str, Value]], ...] = (
    ("fairfed", {"fairfed.beta": 0.05}),
    ("fcfl", {"fcfl.budget": 0.05}),
    ("fairfed", {"fairfed.beta": 0.2}),
    ("fcfl", {"fcfl.budget": 0.1}),
)
"""What is tried beside, and before all others but the first two, where a wish is about gaps between groups."""


def candidates_for(
    config: Mapping[str, Value], wished: Sequence[Variant], gap_scores: Collection[str] = ()
) -> list[Variant]:
    """Return what is tried under these settings, the baseline first.

    A parameter that the settings have already is not varied. Candidates that are the same then are there once.

    Parameters
    ----------
    config
        The settings that all runs share.
    wished
        The methods that a wish names; each is a candidate as it is written.
    gap_scores
        The scores whose gaps between groups a wish is about.
    """
    shared = Settings.of({key: value for key, value in config.items() if "." not in key})
    space = (*SPACE[:2], *BETWEEN_GROUPS, *SPACE[2:]) if gap_scores else SPACE
    searched = [(method, {**parameters, **_fitted(method, shared, gap_scores)}) for method, parameters in space]
    words = [
        _write(method, {key: value for key, value in parameters.items() if key not in config})
        for method, parameters in searched
    ]
    as_wished = [_write(each.method, each.given) for each in wished]
    return variants([*words[:2], *as_wished, *words[2:]], config)


def _fitted(method: str, shared: Settings, gap_scores: Collection[str]) -> Mapping[str, Value]:
    """Return the parameters of a method that follow from the settings and from the wish.

    q-FedAvg's step size is taken from the clients' learning rate, as in the paper. FCFL has half of the rounds for each
    of its two stages, and lowers the difference that the wish is about.
    """
    if method == "qfedavg":
        return {"qfedavg.lipschitz": 1.0 / shared.learning_rate}
    if method == "fcfl":
        opportunity = {"fcfl.disparity": "equal-opportunity"} if TRUE_POSITIVE_RATE.name in gap_scores else {}
        return {"fcfl.stage1-rounds": shared.num_rounds // 2, **opportunity}
    return {}


def _write(method: str, parameters: Mapping[str, Value]) -> str:
    return f"{method}({', '.join(f'{key}={format_value(value)}' for key, value in parameters.items())})"
