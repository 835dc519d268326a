"""What each method sends to clients in a round, to the key, the type and the order."""

from typing import Any

import pytest

from fairbloom.strategies import METHODS
from tests.strategies.helpers import ARGUMENTS, make

SENT: dict[str, list[tuple[str, Any]]] = {
    "fedprox": [("proximal-mu", 0.3)],
    "mgdaprox": [("proximal-mu", 0.3)],
    "ditto": [("personal-lambda", 0.3), ("personal-epochs", 2)],
    "local": [("personal-lambda", 0.0), ("personal-epochs", 1), ("local-only", True)],
    "fedfa": [("client-momentum", 0.9)],
    "qfedsgd": [("full-batch-step", True)],
    "drfa": [("local-steps", 7), ("snapshot-step", 2)],
    "propfair": [("loss-transform", "propfair"), ("propfair-baseline", 5.0), ("propfair-epsilon", 0.2)],
    "fcfl": [("full-batch-step", True), ("disparity", "equal-opportunity"), ("disparity-sharpness", 10.0)],
    "eagle": [("baseline-patience", 5), ("baseline-tolerance", 1e-4), ("baseline-epochs", 200)],
    "scaffold": [("control-variates", True)],
    "feddyn": [("dynamic-alpha", 0.3)],
}
PARAMETERS: dict[str, dict[str, Any]] = {
    **{"fedprox": {"mu": 0.3}, "mgdaprox": {"mu": 0.3}},
    **{"ditto": {"lam": 0.3, "personal_epochs": 2}, "drfa": {"local_steps": 7}, "feddyn": {"alpha": 0.3}},
    **{"propfair": {"baseline": 5.0}, "fcfl": {"disparity": "equal-opportunity"}},
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_sends_these_keys_and_no_others(name: str) -> None:
    method = make(name, {**ARGUMENTS[name][0], **PARAMETERS.get(name, {})})
    config = method.terms(4).to_config()
    assert list(config.items()) == [("server-round", 4), *SENT.get(name, [])]
    assert [type(value) for value in config.values()] == [int, *(type(value) for _, value in SENT.get(name, []))]


def test_options_of_every_method_are_sent_beside_its_own() -> None:
    method = make("fedfv", {}, proximal_mu=0.5, personal_lambda=0.25, client_rule="my_rules:Mine")
    expected = {"proximal-mu": 0.5, "personal-lambda": 0.25, "personal-epochs": 1, "client-rule": "my_rules:Mine"}
    assert list(method.terms(1).to_config().items())[1:] == list(expected.items())
