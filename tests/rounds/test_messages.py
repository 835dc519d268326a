"""The exact records of messages.

Vectors that a method keeps and sends to its clients in addition to the model.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fairbloom.protocol.names import CONTROL
from fairbloom.rounds.aggregation import MethodError
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.rounds.cohort import Cohort, Kept, Probed
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.round import size_on_the_wire
from fairbloom.strategies import METHODS, Ditto, FairStrategy, FedAvg, FedProx, MGDAProx, QFedAvg
from tests.federation import (
    BUFFERS,
    OPTIONS,
    TRAINABLE,
    MemoryGrid,
    Quadratic,
    bits,
    initial_model,
    quadratics,
    record,
    run,
    unpack,
)
from tests.strategies.helpers import ARGUMENTS, make, work_config

MEASURED = {
    **{
        name: ["loss-before"]
        for name in ("qfedavg", "term", "afl", "deltafl", "gifair", "vred", "semivred")
    },
    **{name: ["loss-before"] for name in ("aaggff", "fedfv", "adafed", "fedmdfg")},
    **{name: ["loss-before"] for name in ("fedlf", "fairmoo")},
    "eagle": ["loss-baseline", "loss-before"],
    "scaffold": ["step-sum"],
    "qfedsgd": ["learning-rate", "loss-before"],
    "fedfa": ["accuracy-after"],
    "fairfed": ["accuracy-before", "hits-0", "hits-1", "positives-0", "positives-1"],
    "fcfl": ["disparity", "learning-rate", "loss-before"],
}
"""The metrics that clients are asked for; none for the other methods."""

TERMS: dict[str, Callable[..., dict[str, Any]]] = {
    "fedprox": lambda mu: {"proximal-mu": mu},
    "mgdaprox": lambda mu, **_: {"proximal-mu": mu} if mu > 0 else {},
    "qfedsgd": lambda **_: {"full-batch-step": True},
    "propfair": lambda baseline, epsilon=0.2, **_: {
        **{
            "loss-transform": "propfair",
            "propfair-baseline": baseline,
            "propfair-epsilon": epsilon,
        },
    },
    "fcfl": lambda disparity="demographic-parity", **_: {
        **{"full-batch-step": True, "disparity": disparity, "disparity-sharpness": 10.0},
    },
    "scaffold": lambda **_: {"control-variates": True},
    "feddyn": lambda alpha=0.01: {"dynamic-alpha": alpha},
    "fedfa": lambda client_momentum=0.9, **_: {"client-momentum": client_momentum},
    "drfa": lambda local_steps=10, **_: {"local-steps": local_steps},
    "eagle": lambda **_: {
        "baseline-patience": 5,
        "baseline-tolerance": 1e-4,
        "baseline-epochs": 200,
    },
    "ditto": lambda lam, personal_epochs=1, **_: {
        "personal-lambda": lam,
        "personal-epochs": personal_epochs,
    },
    "local": lambda: {"personal-lambda": 0.0, "personal-epochs": 1, "local-only": True},
}
"""The terms that clients get, from the method's arguments; none for the other methods."""


def test_train_messages_hold_arrays_and_config_to_the_letter(subtests: pytest.Subtests) -> None:
    for name, (arguments, *_) in ARGUMENTS.items():
        with subtests.test(name=name, arguments=arguments):
            grid = MemoryGrid(quadratics(3))
            run(make(name, arguments, **OPTIONS), grid, rounds=2, timeout=60.0)
            sent = [message for _, message in grid.sent_to(MessageType.TRAIN)]
            if name != "drfa":
                assert [m.content.config_records["config"]["server-round"] for m in sent] == [
                    1
                ] * 2 + [2] * 2
            expected: dict[str, Any] = {"measure": MEASURED[name]} if name in MEASURED else {}
            expected |= {"seed": OPTIONS["seed"], **TERMS.get(name, lambda **_: {})(**arguments)}
            for message in sent:
                content = message.content
                config = dict(message.content.config_records["config"])
                number = config.pop("server-round")
                assert type(number) is int
                assert set(content) == {
                    "arrays",
                    "config",
                    *(["control"] if name == "scaffold" and number > 1 else []),
                }
                if name in ("scaffold", "feddyn"):
                    assert config.pop("state-round") in range(number)
                if name == "drfa":
                    assert 1 <= config.pop("snapshot-step") <= arguments.get("local_steps", 10)
                assert config == expected
                assert {key: type(value) for key, value in config.items()} == {
                    k: type(v) for k, v in expected.items()
                }
                assert message.metadata.ttl == 60.0
                assert RecordDict.inflate(
                    content.deflate(), {child.object_id: child for child in content.values()}
                )
                if number == 1:
                    assert bits(content.array_records["arrays"]) == bits(record(initial_model()))


@pytest.mark.parametrize(("name", "method"), METHODS.items())
def test_common_terms_are_sent_where_they_apply(name: str, method: type) -> None:
    options = {"proximal_mu": 0.25, "personal_lambda": 0.5}
    options = {key: value for key, value in options.items() if key not in method.own_terms}
    with_both = work_config(make(name, ARGUMENTS[name][0], **options), 1)
    without = work_config(make(name, ARGUMENTS[name][0]), 1)
    common = {"proximal-mu": 0.25} if "proximal_mu" in options else {}
    common |= {"personal-lambda": 0.5, "personal-epochs": 1} if "personal_lambda" in options else {}
    assert with_both == {**without, **common}
    assert not set(common) & set(without)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Ditto(lam=0.0), {"personal-lambda": 0.0}),
        (FedAvg(proximal_mu=0.25), {}),
    ],
)
def test_evaluation_messages_name_a_personal_model(
    strategy: Ditto | FedAvg, expected: dict[str, float]
) -> None:
    grid = MemoryGrid(quadratics(2))
    run(strategy, grid, rounds=1)
    for _, message in grid.sent_to(MessageType.EVALUATE):
        assert dict(message.content.config_records["config"]) == {
            "server-round": 1,
            **expected,
        }


def test_terms_of_strength_zero_are_sent_only_by_ditto() -> None:
    assert (
        work_config(FedProx(mu=0.0), 1)
        == work_config(FedAvg(proximal_mu=0.0, personal_lambda=0.0), 1)
        == {}
    )
    assert work_config(MGDAProx(mu=0.0), 1) == {}
    assert work_config(Ditto(lam=0.0), 1) == {"personal-lambda": 0.0, "personal-epochs": 1}


def test_the_users_config_and_further_measures_travel_along() -> None:
    grid = MemoryGrid(quadratics(2))
    config = ConfigRecord({"lr": 0.1, "measure": ["accuracy-after"]})
    run(QFedAvg(q=1.0, lipschitz=1.0), grid, rounds=1, train_config=config)
    sent = grid.sent_to(MessageType.TRAIN)[0][1].content.config_records["config"]
    assert dict(sent) == {
        "lr": 0.1,
        "measure": ["accuracy-after", "loss-before"],
        "server-round": 1,
    }
    assert dict(config) == {"lr": 0.1, "measure": ["accuracy-after"]}


def test_evaluate_messages_hold_the_new_model_and_the_round(subtests: pytest.Subtests) -> None:
    grid = MemoryGrid(quadratics(3))
    _, rounds = run(FedAvg(), grid, rounds=2)
    sent = grid.sent_to(MessageType.EVALUATE)
    assert sorted(name for name, _ in sent[:3]) == ["site-0", "site-1", "site-2"]
    for i, (_, message) in enumerate(sent):
        with subtests.test(i=i, message=message):
            assert set(message.content) == {"arrays", "config"}
            assert dict(message.content.config_records["config"]) == {"server-round": 1 + i // 3}
            assert bits(message.content.array_records["arrays"]) == bits(rounds[i // 3].arrays)


def test_measures_in_evaluation_are_asked_of_participants_alone(subtests: pytest.Subtests) -> None:
    grid = MemoryGrid(quadratics(6))
    config = ConfigRecord({"measure": ["loss-before"]})
    _, (finished,) = run(FedAvg(fraction_train=0.5), grid, rounds=1, evaluate_config=config)
    for name, message in grid.sent_to(MessageType.EVALUATE):
        with subtests.test(name=name, message=message):
            assert ("measure" in message.content.config_records["config"]) == (
                name in finished.participants
            )


def test_other_record_keys_are_used_in_both_directions() -> None:
    names = {"model": "arrays", "settings": "config"}

    def renamed(client: Quadratic, message: Message) -> Message:
        if message.metadata.message_type == MessageType.QUERY:
            return client(message)
        assert set(message.content) == {"model", "settings"}
        message.content = RecordDict(
            {names[key]: record for key, record in message.content.items()}
        )
        reply = client(message).content
        return Message(
            RecordDict({key.replace("arrays", "model"): reply[key] for key in reply}),
            reply_to=message,
        )

    clients = {name: partial(renamed, client) for name, client in quadratics(2).items()}
    result, rounds = run(
        FedAvg(arrayrecord_key="model", configrecord_key="settings"), clients, rounds=1
    )
    assert rounds[0].refused == {}
    assert bits(result.arrays) == bits(run(FedAvg(), quadratics(2), rounds=1)[0].arrays)


FACTOR = 0.25


class Sending(FairStrategy):
    """FedAvg that keeps its last step and sends a quarter of it to the clients of the next
    round."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"buffers": BUFFERS, **options})
        self.cohorts: list[Cohort] = []

    def weigh(self, cohort: Cohort) -> FloatArray:
        self.cohorts.append(cohort)
        return np.concatenate([cohort.prior, np.zeros(len(cohort.memory))])

    def remember(
        self, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> Mapping[Kept, FloatArray]:
        return {Kept("step", cohort.round): coefficients}

    def sends(self) -> Mapping[str, tuple[Kept, float]]:
        kept = next(iter(self.progress.kept), None)
        return {} if kept is None else {CONTROL: (kept, FACTOR)}


def vectors(grid: MemoryGrid) -> dict[int, list[Model]]:
    """Return the vectors that went out in each round, one for each message."""
    found: dict[int, list[Model]] = {}
    for _, message in grid.sent_to(MessageType.TRAIN):
        there = message.content.array_records
        number = int(str(message.content.config_records["config"]["server-round"]))
        found.setdefault(number, []).extend([unpack(there[CONTROL])] if CONTROL in there else [])
    return found


@pytest.mark.parametrize("number", [2, 3])
def test_each_participant_gets_the_kept_row_times_its_factor(number: int) -> None:
    grid = MemoryGrid(quadratics(4))
    method = Sending(fraction_train=0.5)
    models = [initial_model(), *(unpack(each.arrays) for each in run(method, grid, 3)[1])]
    sent = vectors(grid)
    assert {number: len(each) for number, each in sent.items()} == {1: 0, 2: 2, 3: 2}
    before, after = models[number - 2 : number]
    step = {name: np.float32(FACTOR * (before[name] - after[name])) for name in TRAINABLE}
    for each in sent[number]:
        assert list(each) == list(TRAINABLE)
        for name, array in step.items():
            assert (each[name].dtype, each[name].shape) == (array.dtype, array.shape)
            np.testing.assert_allclose(each[name], array, rtol=0, atol=1e-6)
    assert [dict(cohort.sent) for cohort in method.cohorts] == [
        {},
        {CONTROL: FACTOR},
        {CONTROL: FACTOR},
    ]


def test_their_bytes_are_counted_and_who_evaluates_gets_none() -> None:
    """In our own loop as under Flower's hooks."""
    grid = MemoryGrid(quadratics(3))
    method = Sending(fraction_evaluate=0.0)
    loop = Rounds(method, FlowerClients(method, grid, 60.0), 2)
    first, second = loop.run(initial_model(), measure=lambda number: [], measure_after=[])
    (_, in_second) = vectors(grid).values()
    each = sum(size_on_the_wire(array) for array in in_second[0].values())
    assert len(in_second) == 3
    assert second.bytes_sent - first.bytes_sent == 3 * each > 0
    grid = MemoryGrid(quadratics(3))
    _, rounds = run(Sending(fraction_evaluate=0.0), grid, 2)
    assert rounds[1].bytes_sent - rounds[0].bytes_sent == 3 * each
    run(Sending(), grid, 3)
    assert all(CONTROL not in message.content for _, message in grid.sent_to(MessageType.EVALUATE))


def test_a_row_of_another_model_ends_the_run_with_the_remedy() -> None:
    """As where a run goes on with other parameters frozen."""
    method = Sending()
    run(method, quadratics(2), 1)
    with pytest.raises(
        MethodError, match=r"Sending keeps an update of round 1 with 10 numbers, and 7 are trained"
    ):
        run(Sending(frozen=["bias"]), quadratics(2), 2, resume=method.state_dict())
