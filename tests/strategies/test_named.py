"""`from_config`: the strategy that the run config of a user's app names."""

from collections.abc import Mapping
from typing import Any

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.server.run_folder.flower import collect_options
from fairbloom.server.settings import Settings
from fairbloom.strategies import METHODS, FedAvg, FedFV, from_config


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_one_of_its_settings(name: str) -> None:
    """A run of Fairbloom's own app and an app of a user's have the same method by the same name."""
    config = {"method": name, "seed": 5}
    assert collect_options(from_config(config)) == collect_options(
        Settings.of(config).strategy(seed=5)
    )


def test_options_are_taken_from_the_run_config_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = {"method": "fedfv(alpha=0.25)", "seed": 3, "fraction-train": 0.5, "batch-size": 16}
    with caplog.at_level("INFO", "flwr"):
        # the app gives it as an argument
        strategy = from_config({**config, "min-available-clients": 4}, min_available_nodes=4)
    assert caplog.messages[-1].endswith("of the run config: seed = 3, fraction-train = 0.5")
    assert collect_options(strategy) == collect_options(
        FedFV(alpha=0.25, seed=3, fraction_train=0.5, min_available_nodes=4)
    )
    assert collect_options(from_config({"method": "FedFV"})) == collect_options(FedFV())


def test_the_recorded_options_and_their_order_stay() -> None:
    """Other ones, or another order, would change config.toml of an app's run folder."""
    recorded = """
        method fraction-train fraction-evaluate min-train-nodes min-evaluate-nodes
        min-available-nodes evaluate-every seed proximal-mu personal-lambda control-variates
        personal-parameters fine-tune-epochs client-rule wire-dtype draw prior average-models
        weighted-by-key arrayrecord-key configrecord-key training-clients"""
    assert [*collect_options(FedAvg())] == recorded.split()


def test_text_comes_before_options_and_arguments_before_both() -> None:
    config = {"method": "fedavg(weighting=uniform)", "weighting": "examples", "seed": 3}
    assert from_config(config).weighting == "uniform"
    assert from_config(config, seed=4).seed == 4
    assert from_config({"method": "fedavg", "weighting": ""}).weighting == FedAvg().weighting


def test_numbers_words_and_a_server_optimizer_are_read() -> None:
    strategy = from_config(
        {"method": "fedfv(order=reverse, tau=2, server-optimizer=adam, server-optimizer-lr=0.1)"}
    )
    assert isinstance(strategy, FedFV)
    assert (strategy.order, strategy.tau) == ("reverse", 2)
    assert strategy.server_optimizer is not None
    assert strategy.server_optimizer.lr == 0.1


def test_a_method_of_torchjd_is_recorded_by_its_weighting() -> None:
    pytest.importorskip("torchjd")
    upgrad, mgda = (from_config({"method": f"torchjd:{name}"}) for name in ("upgrad", "mgda"))
    assert collect_options(upgrad)["method"] == "torchjd:upgrad"
    assert collect_options(mgda)["method"] == "torchjd:mgda"


PLAIN = {"method": "fedavg"}

FAULTS: list[tuple[Mapping[str, Any], Mapping[str, Any], str]] = [
    ({"method": 3}, {}, r"method = 3: name a method in"),
    (
        {"method": "collections:OrderedDict"},
        {},
        "it is not a subclass of fairbloom.strategies.Fair",
    ),
    ({"method": "fairbloom.errors:join_names"}, {}, "it is not a subclass of fairbloom.strategies"),
    ({}, {}, r"method = None: name a method in \[tool.flwr.app.config\] of pyproject.toml, as in"),
    ({"method": ""}, {}, r"method = '': name a method"),
    ({"method": "fedfvv"}, {}, "method = 'fedfvv': unknown method: did you mean FedFV?"),
    ({"method": "fedavg;fedfv"}, {}, "separate methods by commas, as in fedavg,fedfv"),
    (
        {"method": "ditto(personal-lambda=0.01)"},
        {},
        "Ditto sets personal_lambda by its own parameter, got 0.01: write lam=0.01$",
    ),
    ({"method": "fedavg,fedfv"}, {}, "method = 'fedavg,fedfv': write one method, with its"),
    ({"method": "fedfv(alpha=0.1"}, {}, "method = 'fedfv.alpha=0.1': write one method"),
    ({"method": "fedfv(alpha=7)"}, {}, r"fedfv.alpha = 7: allowed is float in \[0, 1\]"),
    ({"method": "fedfv(beta=1)"}, {}, "FedFV has no parameter beta; there are alpha, tau, order"),
    (
        {"method": "fedavg(learning-rate=1)"},
        {},
        "method = 'fedavg.learning-rate=1.': learning-rate is not an option of a strategy: give it as a"
        " key of its own",
    ),
    ({"method": "fedfv", "seed": "a"}, {}, "method = 'fedfv': seed = 'a': allowed is int at"),
    (
        {"method": "fedfv(alpha=0.1)"},
        {"alpha": 0.2},
        "method = 'fedfv.alpha=0.1.': alpha is given twice, here and as an argument of from_config",
    ),
    ({**PLAIN, "best-model": "best"}, {}, "best-model = 'best': allowed"),
    ({**PLAIN, "early-stopping": -1}, {}, "early-stopping = -1: allowed"),
    # keys of ours that would change nothing
    ({**PLAIN, "proximal_mu": 0.1}, {}, "proximal_mu = 0.1 has no effect .* name it proximal-mu"),
    ({**PLAIN, "fedavg.x": 1, "fedfv.alpha": 0.2}, {}, r"fedfv.alpha = 0.2 has .*fedfv.alpha=…"),
    ({**PLAIN, "training-clients": "a"}, {}, r"from_config\(config, training_clients=…\)"),
    (
        {**PLAIN, "fraction-fit": 0.5},
        {},
        "fraction-fit = 0.5 has no effect.*name it fraction-train",
    ),
]


@pytest.mark.parametrize(("config", "given", "said"), FAULTS)
def test_a_fault_names_key_value_and_remedy(
    config: Mapping[str, Any], given: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(FairbloomError, match=said):
        from_config(config, **given)
