"""Impossible evaluations are refused by name; the evaluations of the others are used."""

import math

import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fairbloom.protocol.scores import GroupScore, Score
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.refusals import Refusals
from fairbloom.rounds.round import Round
from fairbloom.strategies import FedAvg
from tests.federation import Answer, answering, quadratics, run

FORGED = {
    "auc": (1e308, r"metric 'auc' must lie in \[0, 1\], got 1e\+308"),
    "balanced-accuracy": (57.0, r"metric 'balanced-accuracy' must lie in \[0, 1\], got 57"),
    "accuracy-personal": (87.5, r"metric 'accuracy-personal' must lie in \[0, 1\]"),
    "f1-validation": (-0.1, r"metric 'f1-validation' must lie in \[0, 1\]"),
    "brier": (2.5, r"metric 'brier' must lie in \[0, 2\]"),
    "calibration-error-validation-personal": (1e9, r"must lie in \[0, 1\]"),
    "larger-class": (7.0, r"metric 'larger-class' must lie in \[0, 1\]"),
    "r2": (1.5, r"metric 'r2' must lie in \(-inf, 1\]"),
    "mae": (-1.0, r"metric 'mae' must lie in \[0, inf\)"),
    "rmse": (1e308, r"metric 'rmse' is 1e\+308, beyond 1000"),
    "loss": (-1e308, r"metric 'loss' is -1e\+308, beyond 1000"),
    "loss-validation": (1e308, r"metric 'loss-validation' is 1e\+308, beyond 1000"),
    "train-loss": (1e308, r"metric 'train-loss' is 1e\+308, beyond 1000"),
    "accuracy[sex:female]": (1.5, r"metric 'accuracy\[sex:female\]' must lie in \[0, 1\]"),
    "mae[age:60+]-validation": (1e308, r"metric 'mae\[age:60\+\]-validation' is 1e\+308"),
    "num-examples": (2**53, r"num-examples 9007199254740992 is more than 10 times \(max_growth\)"),
}

ALLOWED = {
    "auc": 1.0,
    "brier": 2.0,
    "r2": -1e300,
    "loss": 900.0,
    "score-of-my-own": 1e308,
    "eval_acc": 87.5,
    "num-examples": 30,
}


def evaluating(client: Answer, **changed: float) -> Answer:
    """Return a client that reports these numbers in its evaluation, besides usual ones."""
    numbers = {"num-examples": 3, "loss": 1.0, **changed}
    content = RecordDict({"metrics": MetricRecord(numbers)})
    return answering(client, evaluate=lambda message: Message(content, reply_to=message))


def forging(changed: dict[str, float], strategy: FedAvg | None = None) -> Round:
    """Return a round of three clients of which site-1 reports changed numbers."""
    usual = dict.fromkeys(changed.keys() - {"num-examples"}, 0.5)
    clients = {name: evaluating(client, **usual) for name, client in quadratics(3).items()}
    clients["site-1"] = evaluating(quadratics(3)["site-1"], **changed)
    _, (finished,) = run(strategy or FedAvg(), clients, rounds=1)
    return finished


@pytest.mark.parametrize("metric", FORGED)
def test_an_impossible_number_refuses_its_evaluation(metric: str) -> None:
    value, reason = FORGED[metric]
    finished = forging({metric: value})
    assert list(finished.evaluations) == ["site-0", "site-2"]
    assert list(finished.refused) == ["site-1"]
    with pytest.raises(ValueError, match=f"^evaluation: .*{reason}"):
        raise ValueError(finished.refused["site-1"])
    assert "site-1" in finished.coefficients  # its update is used


@pytest.mark.parametrize("metric", ALLOWED)
def test_a_possible_number_is_used(metric: str) -> None:
    finished = forging({metric: ALLOWED[metric]})
    assert finished.refused == {}
    assert finished.evaluations["site-1"][metric] == ALLOWED[metric]


def test_a_number_that_is_not_finite_is_left_out() -> None:
    """A client with one class has no AUC, and its other scores count."""
    for value in (math.nan, math.inf, -math.inf):
        finished = forging({"auc": value})
        assert finished.refused == {}
        assert "auc" not in finished.evaluations["site-1"]
        assert "auc" in finished.evaluations["site-0"]


@pytest.mark.parametrize(
    ("numbers", "is_used"),
    [
        ({}, True),
        ({"train-loss": 9.0, "loss-validation": 1.0, "mae[sex:f]-validation-personal": 1.0}, True),
        ({"personal-round": 1, "train-loss": 9.0}, True),
        ({"loss": 1.0}, False),
        ({"train-loss": 9.0, "accuracy[sex:f]": 0.5}, False),
        ({"accuracy-personal": 0.5}, False),
    ],
)
def test_only_scores_of_test_examples_need_their_number(
    numbers: dict[str, float], is_used: bool
) -> None:
    """A device with fewer than its owner's floor does not say how many it has."""

    def average(contents: list[RecordDict], weight_key: str) -> MetricRecord:
        assert contents
        return aggregate_metricrecords(contents, weight_key)

    strategy = FedAvg(evaluate_metrics_aggr_fn=average, unused_rounds=0)
    content = RecordDict({"metrics": MetricRecord(numbers)})
    clients: dict[str, Answer] = {
        name: answering(client, evaluate=lambda message: Message(content, reply_to=message))
        for name, client in quadratics(5).items()
    }
    _, (finished,) = run(strategy, clients, 1)
    assert len(finished.refused) == (0 if is_used else 5)
    assert finished.evaluations == (dict.fromkeys(clients, numbers) if is_used else {})
    assert not finished.evaluation_metrics.keys() & numbers.keys()
    for name in ("site-0", "site-1"):
        clients[name] = evaluating(quadratics(2)[name], **{"train-loss": 2.0})
    _, (finished,) = run(FedAvg(), clients, 1)
    assert finished.evaluation_metrics["train-loss"] == 2.0


def test_test_examples_are_bounded_by_enrolled_sizes() -> None:
    finished = forging({"num-examples": 21}, FedAvg(enrolled_sizes={"site-1": 21}))
    assert finished.refused == {}
    finished = forging({"num-examples": 22}, FedAvg(enrolled_sizes={"site-1": 21}))
    assert "more than the 21 examples that it was enrolled with" in finished.refused["site-1"]


def test_inf_disables_the_limits_that_are_no_intervals() -> None:
    unlimited = FedAvg(loss_limit=math.inf, max_growth=math.inf)
    assert forging({"loss": 1e308}, unlimited).refused == {}
    assert forging({"num-examples": 2**53}, unlimited).refused == {}
    assert list(forging({"auc": 2.0}, unlimited).refused) == ["site-1"]


def test_scores_of_the_run_bound_what_has_their_names() -> None:
    scores = [
        Score("eval_acc", percent=True),
        Score("cost", higher_is_better=False),
        GroupScore("found", percent=True),
    ]
    for metric, value in (("eval_acc", 57.0), ("cost", 1e308), ("found[sex:f]-personal", 2.0)):
        strategy = FedAvg()
        rounds = Rounds(strategy, strategy._flower, 1, scores=scores)
        rounds.current.evaluators = ("a", "b", "c")
        usual = {"num-examples": 3, metric: 0.5}
        replies = rounds.clients.read_evaluate_replies([])
        replies.metrics.update({"a": usual, "b": {**usual, metric: value}, "c": usual})
        rounds.aggregate_evaluate(replies)
        assert list(replies.metrics) == ["a", "c"]
        assert isinstance(replies.refused, Refusals)
        assert metric in replies.refused.reasons["b"]
