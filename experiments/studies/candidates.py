"""What `fairbloom recommend` tries: methods, each with a few sensible values of its main parameter."""

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from fairbloom.protocol.names import BETWEEN_GROUPS
from fairbloom.protocol.settings import Value, key_of
from fairbloom.server.settings import Settings
from fairbloom.strategies import METHODS, FairStrategy
from fairbloom.tasks.measures import TRUE_POSITIVE_RATE

from ..recipes.labels import format_value
from ..recipes.variants import Variant, method_parameters, variants

EQUAL_WEIGHTS = {"weighting": "uniform"}
"""The simplest change of the baseline: every client counts the same."""


def search_space(about_gaps: bool) -> list[tuple[str, Mapping[str, Value]]]:
    """Return the candidates in the order in which they are tried: where time is short, the last are left out.

    FedAvg is the first, as the baseline. Then come, of all methods, the first of the points that each declares in
    `tries`, then the second ones. A wish about gaps between groups adds the methods that measure groups, before the
    others. Local settings, as the learning rate, are the same for all.
    """
    # Those that gained the most in the comparisons of this project are tried first.
    first = ("local", "ditto", "fedfv", "fedlf", "qfedavg", "drfa", "fedmgdaplus", "term", "fedmdfg")
    names = [name for name in dict.fromkeys((*first, *METHODS)) if name != "fedavg"]
    of_groups = [name for name in names if METHODS[name].needs & BETWEEN_GROUPS]
    others = [name for name in names if name not in of_groups]
    baselines: list[tuple[str, Mapping[str, Value]]] = [("fedavg", {}), ("fedavg", EQUAL_WEIGHTS)]
    return [*baselines, *_values_of(of_groups if about_gaps else []), *_values_of(others)]


def _values_of(methods: Sequence[str]) -> list[tuple[str, Mapping[str, Value]]]:
    """Return the first candidate of each method, then the second ones, and so on."""
    rows = zip_longest(*([(name, point) for point in _points(name)] for name in methods))
    return [candidate for row in rows for candidate in row if candidate is not None]


def _points(name: str) -> list[Mapping[str, Value]]:
    """Return the parameters of a method's candidates; one without a default has a value that is allowed."""
    needed = {key: each.example for key, each in method_parameters(name).items() if each.default is None}
    tries = vars(METHODS[name]).get("tries", FairStrategy.tries)
    return [needed | {f"{name}.{key_of(argument)}": value for argument, value in each.items()} for each in tries]


def candidates_for(
    config: Mapping[str, Value], wished: Sequence[Variant], gap_scores: Collection[str] = ()
) -> list[Variant]:
    """Return what is tried under the shared settings, the baseline first, each once.

    A parameter that the settings have already is not varied. The methods that a wish names are candidates as written.
    """
    shared = Settings.of({key: value for key, value in config.items() if "." not in key})
    space = search_space(about_gaps=bool(gap_scores))
    searched = [(method, {**parameters, **_fitted(method, shared, gap_scores)}) for method, parameters in space]
    words = [
        _write(method, {key: value for key, value in parameters.items() if key not in config})
        for method, parameters in searched
    ]
    as_wished = [_write(each.method, each.given) for each in wished]
    return variants([*words[:2], *as_wished, *words[2:]], config)


def _fitted(method: str, shared: Settings, gap_scores: Collection[str]) -> Mapping[str, Value]:
    """Return the parameters of a method that follow from the settings and from the wish.

    The step size of q-FedAvg follows from the clients' learning rate, as in the paper. FCFL has half of the rounds for
    each of its two stages, and lowers the difference that the wish is about.
    """
    if method == "qfedavg":
        return {"qfedavg.lipschitz": 1.0 / shared.learning_rate}
    if method == "fcfl":
        opportunity = {"fcfl.disparity": "equal-opportunity"} if TRUE_POSITIVE_RATE.name in gap_scores else {}
        return {"fcfl.stage1-rounds": shared.num_rounds // 2, **opportunity}
    return {}


def _write(method: str, parameters: Mapping[str, Value]) -> str:
    return f"{method}({', '.join(f'{key}={format_value(value)}' for key, value in parameters.items())})"
