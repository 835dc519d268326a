"""The names and arguments of Flower's strategies, and what to write with ours instead."""

from collections.abc import Iterable
from typing import Any

from fairbloom.errors import find_nearest
from fairbloom.rounds.options import OPTIONS, Options

# Flower's strategies with other names here: the same with ours, as parameters of FedAvg.
SAME: dict[str, dict[str, Any]] = {
    "FedAdagrad": {"server_optimizer": "adagrad", "server_optimizer_lr": 0.1},
    "FedAdam": {"server_optimizer": "adam", "server_optimizer_lr": 0.1},
    "FedYogi": {"server_optimizer": "yogi", "server_optimizer_lr": 0.01},
    "FedAvgM": {"server_optimizer": "avgm"},
}

# Flower's strategies that have no counterpart here.
ROBUST = "robust aggregation is not Fairbloom's: use Flower's own, or write method=torchjd:krum"
WRAPPER = "import it from flwr.serverapp.strategy, and give it one of our strategies"
OTHERS = {
    **dict.fromkeys(("Bulyan", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum"), ROBUST),
    "FedXgbBagging": "models here are arrays, not trees: use Flower's own",
    "FedXgbCyclic": "models here are arrays, not trees: use Flower's own",
    "DifferentialPrivacyClientSideAdaptiveClipping": WRAPPER,
    "DifferentialPrivacyClientSideFixedClipping": WRAPPER,
    "DifferentialPrivacyServerSideAdaptiveClipping": WRAPPER,
    "DifferentialPrivacyServerSideFixedClipping": WRAPPER,
}

# Arguments of Flower's strategies before 1.21 that have another name since.
RENAMED = {
    "fraction_fit": "fraction_train",
    "min_fit_clients": "min_train_nodes",
    "min_evaluate_clients": "min_evaluate_nodes",
    "min_available_clients": "min_available_nodes",
}

# The arguments of Flower's strategies, now and before 1.21, and what to write instead of each; {}
# is its value.
ARGUMENTS = {
    "train_loss_key": "leave it out: clients report loss-before",
    "eta": "write server_optimizer_lr={}",
    "eta_l": "give clients their learning rate by train_config",
    "beta_1": "write server_optimizer_beta1={}",
    "beta_2": "write server_optimizer_beta2={}",
    "tau": "write server_optimizer_tau={}",
    "server_learning_rate": "write server_optimizer='avgm', server_optimizer_lr={}",
    "server_momentum": "write server_optimizer='avgm', server_optimizer_beta1={}",
    **dict.fromkeys(("num_malicious_nodes", "num_nodes_to_select", "beta"), ROBUST),
    **{old: f"write {new}={{}}" for old, new in RENAMED.items()},
    "fit_metrics_aggregation_fn": "write train_metrics_aggr_fn, which gets RecordDicts",
    "evaluate_metrics_aggregation_fn": "write evaluate_metrics_aggr_fn, which gets RecordDicts",
    "evaluate_fn": "give it to start",
    "initial_parameters": "give initial_arrays to start",
    "on_fit_config_fn": "give train_config to start, or change it in configure_train",
    "on_evaluate_config_fn": "give evaluate_config to start, or change it in configure_evaluate",
    "accept_failures": "leave it out: a client that fails is refused by name",
    "inplace": "leave it out",
}


def advise_on_name(name: str) -> str:
    """Return what to write instead of one of Flower's strategies, "" for any other name."""
    if name in OTHERS:
        return OTHERS[name]
    if name in SAME:
        return f"write {as_call(SAME[name])}"
    return ""


def advise_on_method(plain: str) -> str:
    """Return the same as the text of a method, by the name without upper case and hyphens."""
    names = {name.casefold(): name for name in SAME}
    if plain not in names:
        return ""
    words = ",".join(f"{key}={value}" for key, value in SAME[names[plain]].items())
    return f"write fedavg({words}) for Flower's {names[plain]}; "


def as_call(parameters: dict[str, Any]) -> str:
    """Return the call of FedAvg with these parameters."""
    return f"FedAvg({', '.join(f'{key}={value!r}' for key, value in parameters.items())})"


def advise_on_argument(name: str, value: object, own: Iterable[str]) -> str:
    """Return what to write instead of an argument that a strategy does not take.

    `own` are the parameters of its constructor.
    """
    if name == "client_learning_rate" and "lipschitz" in own:
        if isinstance(value, int | float) and value > 0:
            return f"write lipschitz={1 / value:g} (1 / {value:g})"
        return "write lipschitz, which is 1 / the clients' learning rate"
    if name in ARGUMENTS:
        return ARGUMENTS[name].format(repr(value))
    nearest = find_nearest(name, [*own, *OPTIONS, *Options.__optional_keys__])
    return "" if nearest is None else f"did you mean {nearest}?"
