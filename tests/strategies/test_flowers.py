"""Names and arguments of Flower's strategies are refused with what to write instead."""

import inspect
import re
from typing import Any

import flwr.serverapp.strategy as flowers
import pytest

from fairbloom import strategies
from fairbloom.errors import FairbloomError
from fairbloom.strategies import METHODS, Ditto, FedAvg, FedProx, MGDAProx, QFedAvg, from_config
from fairbloom.strategies.flowers import ARGUMENTS, SAME, advise_on_name, as_call

FLOWERS = [name for name in flowers.__all__ if name not in ("Result", "Strategy")]


@pytest.mark.parametrize("name", FLOWERS)
def test_each_strategy_of_flower_is_there_or_advised_on(name: str) -> None:
    if name in strategies.__all__:
        return
    with pytest.raises(ImportError, match=re.escape(advise_on_name(name) or "no advice")):
        getattr(strategies, name)


@pytest.mark.parametrize("name", SAME)
def test_what_is_advised_is_a_strategy(name: str) -> None:
    parameters = SAME[name]
    assert as_call(parameters) in advise_on_name(name)
    assert isinstance(FedAvg(**parameters), FedAvg)
    with pytest.raises(FairbloomError, match=r"unknown method: .*fedavg") as refusal:
        from_config({"method": name.lower()})
    (text,) = re.findall(r"fedavg\(\S*\)", str(refusal.value))
    assert isinstance(from_config({"method": text}), FedAvg)


def test_other_names_are_unknown_as_in_any_module() -> None:
    with pytest.raises(ImportError, match="cannot import name 'FedNothing'"):
        from fairbloom.strategies import FedNothing  # noqa: F401
    assert not hasattr(strategies, "FedNothing")


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        (FedProx, {"proximal_mu": 0.1}, "write mu=0.1"),
        (MGDAProx, {"proximal_mu": 0.2}, "write mu=0.2"),
        (Ditto, {"personal_lambda": 1.0}, "write lam=1.0"),
        (QFedAvg, {"client_learning_rate": 0.01}, "write lipschitz=100 (1 / 0.01)"),
        (QFedAvg, {"client_learning_rate": "0.01"}, "write lipschitz, which is 1 /"),
        (FedAvg, {"fraction_fit": 0.5}, "write fraction_train=0.5"),
        (FedAvg, {"min_available_clients": 3}, "write min_available_nodes=3"),
        (FedAvg, {"server_momentum": 0.9}, "server_optimizer='avgm', server_optimizer_beta1=0.9"),
        (FedAvg, {"fration_train": 0.5}, "did you mean fraction_train?"),
        (FedProx, {"mu_": 0.5}, "did you mean mu?"),
    ],
)
def test_an_argument_of_flower_is_advised_on(
    method: Any, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        method(**arguments)


def test_an_argument_without_a_like_has_no_advice() -> None:
    with pytest.raises(TypeError, match=r"FedAvg takes no parameter 'zzz'$"):
        FedAvg(**{"zzz": 1})  # type: ignore[arg-type]


def test_each_argument_of_flowers_strategies_is_known(subtests: pytest.Subtests) -> None:
    own = set(inspect.signature(flowers.FedAvg).parameters)
    for name in FLOWERS:
        if name.startswith(("DifferentialPrivacy", "FedXgb")) or name == "Bulyan":
            continue
        for argument in set(inspect.signature(getattr(flowers, name)).parameters) - own:
            method: Any = METHODS.get(name.lower(), FedAvg)
            if argument in method.own_parameters():
                continue
            with subtests.test(name=name, argument=argument):
                with pytest.raises((TypeError, ValueError), match=r"write|leave it out|give"):
                    method(**{argument: 0.5})
    assert all(argument not in own for argument in ARGUMENTS)
