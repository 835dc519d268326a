"""What `fairbloom recommend` tries: methods, each with a few sensible values of its main parameter."""

from collections.abc import Mapping, Sequence

from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings

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


def candidates_for(config: Mapping[str, Value], wished: Sequence[Variant]) -> list[Variant]:
    """Return what is tried under these settings, the baseline first.

    A parameter that the settings have already is not varied. Candidates that are the same then are there once.

    Parameters
    ----------
    config
        The settings that all runs share.
    wished
        The methods that a wish names; each is a candidate as it is written.
    """
    rate = Settings.of({key: value for key, value in config.items() if "." not in key}).learning_rate
    searched = [(method, {**parameters, **_step(method, rate)}) for method, parameters in SPACE]
    words = [
        _write(method, {key: value for key, value in parameters.items() if key not in config})
        for method, parameters in searched
    ]
    as_wished = [_write(each.method, each.given) for each in wished]
    return variants([*words[:2], *as_wished, *words[2:]], config)


def _step(method: str, learning_rate: float) -> Mapping[str, Value]:
    """Return the step size of q-FedAvg, which the paper takes from the clients' learning rate."""
    return {"qfedavg.lipschitz": 1.0 / learning_rate} if method == "qfedavg" else {}


def _write(method: str, parameters: Mapping[str, Value]) -> str:
    return f"{method}({', '.join(f'{key}={format_value(value)}' for key, value in parameters.items())})"
