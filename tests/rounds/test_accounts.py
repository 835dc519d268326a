"""Privacy accounts in a run: prices, restarts, budgets that end, halts, weights and losses."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.app.error import Error

from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.codec import digest_arrays
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.names import ACCURACY_DEVIATION, LOSS_BEFORE, LOSS_DEVIATION
from fairbloom.protocol.scores import ACCURACY
from fairbloom.rounds.accounts import LOSS_MEMORY, AccountInRun
from fairbloom.rounds.arrays import Model
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.round import Round
from fairbloom.rounds.run_state import RunState
from fairbloom.rounds.screening import impossible_scores
from fairbloom.strategies import TERM, FairStrategy, FedAvg
from tests.federation import BUFFERS, Answer, MemoryGrid, Quadratic, initial_model, replying
from tests.strategies.helpers import Arrays

UNITS = 450.0


def status(**changes: float) -> AccountStatus:
    usual = AccountStatus(
        epsilon=3.0, delta=1e-5, steps=90, tests=1, sigma=10.0, rows=100, units=UNITS, reports=1
    )
    return usual._replace(**changes)


@dataclass
class Device:
    """A client with an account, as a device has one: what is asked again is not charged again."""

    name: str
    units: float = UNITS
    noise: float = 0.0
    halted: bool = False
    silent: bool = False
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    kept: dict[str, Message] = field(default_factory=dict)

    def __call__(self, message: Message) -> Message:
        kind = message.metadata.message_type
        if self.halted:
            return Message(Error(ErrorCode.ACCOUNT_HALTED, "owl"), reply_to=message)
        if kind == MessageType.QUERY:
            return self.said(Quadratic(self.name)(message).content, message, 0.0)
        config = dict(message.content.config_records["config"])
        arrays = message.content.array_records["arrays"]
        key = json.dumps([kind, config, [each.data.hex() for each in arrays.values()]])
        if key in self.kept:
            return Message(self.kept[key].content, reply_to=message)
        content = Quadratic(self.name)(message).content
        spent = 0.0
        if kind == MessageType.TRAIN:
            self.asked.append(config)
            least = 4 + (LOSS_BEFORE in config.get("measure", []))
            left = min(self.units, float(config.get("privacy-units", 0.0)))
            spent = max(1.0, left // (config.get("privacy-rounds", 1) * least)) * least
            if spent > self.units:
                return Message(Error(ErrorCode.BUDGET_SPENT, "newt"), reply_to=message)
            self.units -= spent
            metrics = content.metric_records["metrics"]
            content["metrics"] = MetricRecord({**metrics, LOSS_BEFORE: self.noise})
        self.kept[key] = self.said(content, message, spent)
        return self.kept[key]

    def said(self, content: RecordDict, message: Message, spent: float) -> Message:
        told = status(units=self.units, spent=spent, loss_deviation=0.5, accuracy_deviation=0.25)
        about = content.config_records.get("client", ConfigRecord())
        if not self.silent:
            content["client"] = ConfigRecord({**about, "privacy": [*map(float, told)]})
        return Message(content, reply_to=message)


def play(
    method: FairStrategy,
    clients: Mapping[str, Any],
    rounds: int,
    *,
    stop: int = 0,
    model: Model | None = None,
    **options: Any,
) -> list[Round]:
    """Return the rounds of a run, or of its continuation from a model; up to round `stop`."""
    pool = FlowerClients(method, MemoryGrid(clients), 60.0)
    pool.online(1)
    loop = Rounds(method, pool, rounds, accounts=pool.accounts.items(), **options)
    if not method.run_state.finished_rounds:
        method.enter(method.run_state.charged(loop.accounts, {}))
    done = list[Round]()
    begun = model or initial_model()
    for each in loop.run(begun, measure=lambda number: [LOSS_BEFORE], measure_after=[]):
        done.append(each)
        if each.number == stop:
            break
    return done


def fedavg(**options: Any) -> FedAvg:
    return FedAvg(buffers=BUFFERS, **options)


# Prices -------------------------------------------------------------------------------------------


def test_only_accounts_are_offered_units() -> None:
    """Each client with one gets what the run may still spend of it, and in how many rounds."""
    devices = {name: Device(name, units) for name, units in (("a", UNITS), ("b", 100.0))}
    plain = list[Mapping[str, Any]]()

    def other(message: Message) -> Message:
        if message.metadata.message_type == MessageType.TRAIN:
            plain.append(message.content.config_records["config"])
        return Quadratic("c")(message)

    play(fedavg(), {**devices, "c": other}, 3, spend=math.inf, units=4)
    assert [each["privacy-units"] for each in devices["a"].asked] == [450, 302, 154]
    assert [each["privacy-units"] for each in devices["b"].asked] == [100, 68, 36]
    for device in devices.values():
        assert [each["privacy-rounds"] for each in device.asked] == [3, 2, 1]
        assert device.units < 8
    assert len(plain) == 3
    assert not any(key.startswith("privacy") for config in plain for key in config)


@pytest.mark.parametrize(("spend", "units"), [(100.0, 100), (1e9, 450), (math.inf, 450)])
def test_a_run_spends_no_more_than_it_may(spend: float, units: int) -> None:
    device = Device("a")
    play(fedavg(), {"a": device}, 2, spend=spend, units=4)
    assert device.asked[0]["privacy-units"] == units
    assert UNITS - units <= device.units < UNITS - units + 8


def test_the_lowest_price_is_paid_without_a_word() -> None:
    device = Device("a")
    play(fedavg(), {"a": device}, 3)
    assert not any(key.startswith("privacy") for config in device.asked for key in config)
    assert device.units == UNITS - 12


@pytest.mark.parametrize(
    ("fraction", "rounds", "turns"), [(1.0, 30, 30), (0.1, 31, 4), (0.1, 30, 4), (0.5, 1, 1)]
)
def test_a_client_may_be_drawn_again_by_its_share(fraction: float, rounds: int, turns: int) -> None:
    """It is asked now, and rounding adds no round: a tenth of 30 are 3."""
    device = Device("a")
    play(fedavg(fraction_train=fraction), {"a": device}, rounds, stop=1, spend=math.inf)
    assert device.asked[0]["privacy-rounds"] == turns


# Restarts -----------------------------------------------------------------------------------------


def test_a_round_that_is_asked_again_costs_nothing() -> None:
    """The state has what the killed server knew of accounts: the words are the same."""
    whole = {name: Device(name) for name in ("a", "b")}
    play(fedavg(), whole, 4, spend=math.inf, units=4)
    cut = {name: Device(name) for name in ("a", "b")}
    method = fedavg()
    (first,) = play(method, cut, 4, stop=1, spend=math.inf, units=4)
    state = method.state_dict()
    state["accounts"] = json.loads(json.dumps(state["accounts"]))
    for last in (2, 4):
        again = fedavg()
        again.load_state_dict(state)
        play(again, cut, 4, stop=last, model=first.arrays, spend=math.inf, units=4)
    assert [each.asked for each in cut.values()] == [each.asked for each in whole.values()]
    assert [each.units for each in cut.values()] == [each.units for each in whole.values()]


def test_frozen_arrays_are_sent_to_accounts_each_time() -> None:
    """A restarted server does not know who has them, and must send the same words."""
    frozen = digest_arrays({"scale": initial_model()["scale"]})

    def holding(name: str, **about: Any) -> Answer:
        def train(arrays: Arrays, number: int) -> Arrays:
            moved = {key: each + 1 for key, each in arrays.items() if each.dtype.kind == "f"}
            return {**arrays, **moved, "scale": initial_model()["scale"]}

        def answer(message: Message) -> Message:
            reply = replying(name, train, {})(message)
            known = reply.content.config_records.get("client", ConfigRecord())
            reply.content["client"] = ConfigRecord({**known, "frozen": frozen, **about})
            return reply

        return answer

    told = [*map(float, status())]
    grid = MemoryGrid({"a": holding("a", privacy=told), "b": holding("b")})
    method = fedavg(frozen=("scale",), fraction_evaluate=0.0)
    loop = Rounds(method, FlowerClients(method, grid, 60.0), 3)
    list(loop.run(initial_model(), measure=lambda number: [], measure_after=[]))
    sent = {"a": list[bool](), "b": list[bool]()}
    for name, message in grid.sent_to(MessageType.TRAIN):
        sent[name].append("scale" in message.content.array_records["arrays"])
    assert sent == {"a": [True] * 3, "b": [True, False, False]}


# Budgets that end ---------------------------------------------------------------------------------


def test_a_client_without_units_for_a_round_is_not_asked() -> None:
    """Each round says so; the other goes on."""
    devices = {"a": Device("a"), "b": Device("b", 5.0)}
    done = play(fedavg(), devices, 4, spend=math.inf, units=4)
    assert [len(each.asked) for each in devices.values()] == [4, 1]
    assert [each.excluded for each in done] == [(), ("b",), ("b",), ("b",)]
    assert [each.participants for each in done] == [("a", "b")] + [("a",)] * 3
    assert not any(each.refused for each in done)


def test_a_run_ends_when_no_account_allows_more() -> None:
    """The last trained model is evaluated, and no round is without training."""
    devices = {"a": Device("a", 9.0), "b": Device("b", 8.0)}
    done = play(fedavg(), devices, 20, spend=math.inf, units=4)
    assert [each.participants for each in done] == [("a", "b")] * 2
    assert [sorted(each.evaluations) for each in done] == [[], ["a", "b"]]


def test_a_run_without_a_trained_round_fails() -> None:
    """Also one that stops early, as no account has anything left."""
    with pytest.raises(NothingLearnedError, match="error 103: newt"):
        play(fedavg(), {"a": Device("a", 0.0), "b": Device("b", 3.0)}, 9)


@pytest.mark.parametrize("when", ["train", "evaluate"])
def test_a_halted_client_works_again_once_it_answers(when: str) -> None:
    """It gets no work before; its halts are told while its account has any."""
    device = Device("a")
    rounds = 6

    def sometimes(message: Message) -> Message:
        config = message.content.config_records.get("config", ConfigRecord())
        number = config.get("server-round", 0)
        device.halted |= number == 2 and message.metadata.message_type == when
        return device(message)

    method = fedavg(evaluate_every=2)
    pool = FlowerClients(
        method, MemoryGrid({"a": sometimes, "b": Quadratic("b")}, registered=("a", "b")), 60.0
    )
    loop = Rounds(method, pool, rounds)
    done = list[Round]()
    for each in loop.run(initial_model(), measure=lambda number: [], measure_after=[]):
        done.append(each)
        device.halted = device.halted and each.number < 4
    assert [each["server-round"] for each in device.asked] == (
        [1, 5, 6] if when == "train" else [1, 2, 5, 6]
    )
    assert [each.number for each in done if "a" in each.refused] == [2]
    assert [each.number for each in done if each.excluded] == [3, 4]


def test_a_run_of_halted_accounts_ends() -> None:
    """It does not wait for clients that it asks no more."""
    device = Device("a")

    def later(message: Message) -> Message:
        config = message.content.config_records.get("config", ConfigRecord())
        device.halted |= config.get("server-round", 0) == 2
        return device(message)

    done = play(fedavg(), {"a": later}, 9)
    assert [each.participants for each in done] == [("a",), ("a",)]


# What is released is used with its noise ----------------------------------------------------------


def of_accounts(method: FairStrategy, **accounts: AccountStatus) -> FairStrategy:
    method.enter(RunState().charged(accounts, {}))
    return method


def test_weights_know_the_noise() -> None:
    """n/(1 + σ²/n) with n rows and σ at the start; stated and uniform weights stay."""
    accounts = {"a": status(sigma=10.0, rows=100), "b": status(sigma=40.0, rows=400)}
    names = ["a", "b", "c"]
    method = of_accounts(fedavg(), **accounts)
    assert method.prior_weights_of(names, [100.0, 400.0, 50.0]).tolist() == [50.0, 80.0, 50.0]
    method.enter(method.run_state.charged({"a": status(sigma=1.0, rows=7)}, {}))
    assert method.prior_weights_of(names, [100.0, 400.0, 50.0]).tolist() == [50.0, 80.0, 50.0]
    uniform = of_accounts(fedavg(weighting="uniform"), **accounts)
    assert uniform.prior_weights_of(names, [1.0, 2.0, 3.0]).tolist() == [1.0, 1.0, 1.0]
    stated = of_accounts(fedavg(prior="a=2"), **accounts)
    assert stated.prior_weights_of(names, [1.0, 2.0, 3.0]).tolist() == [2.0, 1.0, 1.0]


def test_losses_are_smoothed_before_they_are_cut() -> None:
    """Earlier ones count for less by a factor a round; a mean of cut ones would be biased."""
    account = AccountInRun()
    for loss in (-3.0, 1.0, 4.0):
        account = account.after(0.0, loss)
    mean = (-3.0 * LOSS_MEMORY**2 + LOSS_MEMORY + 4.0) / (LOSS_MEMORY**2 + LOSS_MEMORY + 1.0)
    assert account.smooth(9.0, 5.0) == pytest.approx(mean)
    assert account.smooth(9.0, 0.5) == 0.5
    assert account.after(0.0, -9.0).smooth(9.0, 5.0) == 0.0
    assert account.after(2.0, None) == replace(account, spent=2.0)
    assert AccountInRun().smooth(9.0, 5.0) == 9.0


def test_methods_see_smoothed_losses_of_accounts_alone() -> None:
    """Negative ones too; what is recorded is what was reported."""
    seen = list[Any]()

    class Watching(TERM):
        def weigh(self, cohort: Any) -> Any:
            seen.append(dict(zip(cohort.names, cohort.losses.tolist(), strict=True)))
            return super().weigh(cohort)

    device = Device("a", noise=2.0)

    def changing(message: Message) -> Message:
        device.noise = -1.0 if device.asked else 2.0
        return device(message)

    done = play(Watching(buffers=BUFFERS), {"a": changing, "b": Quadratic("b")}, 2)
    assert [each.train_metrics["a"][LOSS_BEFORE] for each in done] == [2.0, -1.0]
    assert [each["a"] for each in seen] == [
        2.0,
        pytest.approx((LOSS_MEMORY * 2.0 - 1.0) / (LOSS_MEMORY + 1.0)),
    ]
    assert [each["b"] for each in seen] == [each.train_metrics["b"][LOSS_BEFORE] for each in done]


def test_an_evaluation_has_its_deviations() -> None:
    """Of a client that reports them in its status, with scores; no other has them."""
    (done,) = play(fedavg(), {"a": Device("a"), "b": Quadratic("b")}, 1)
    assert done.evaluations["a"][ACCURACY_DEVIATION] == 0.25
    assert done.evaluations["a"][LOSS_DEVIATION] == 0.5
    assert not any(name.endswith("deviation") for name in done.evaluations["b"])


@pytest.mark.parametrize(
    ("accuracy", "deviation", "refused"),
    [
        (1.1, 0.05, False),
        (-0.1, 0.05, False),
        (1.5, 0.05, True),
        (1.1, 0.0, True),
        (math.nan, 0.05, True),
        (99.0, 1e300, True),
    ],
)
def test_noise_may_leave_an_interval(accuracy: float, deviation: float, refused: bool) -> None:
    report = {"accuracy": accuracy, ACCURACY_DEVIATION: deviation}
    assert bool(impossible_scores({"a": report}, {"accuracy": ACCURACY})) is refused


def test_a_status_out_of_range_is_none() -> None:
    fine = [*status()]
    assert AccountStatus.of(fine) == status()
    for wrong in (math.nan, -1.0, 1e16, "3"):
        assert AccountStatus.of([*fine[:-1], wrong]) is None
    assert AccountStatus.of(fine[:-1]) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"epsilon": 101.0},
        {"delta": 0.0},
        {"delta": 1.0},
        {"steps": 0.0},
        {"steps": 1e7},
        {"tests": 0.0},
        {"rows": 0.0},
        {"units": 451.0},
        {"reports": 2.0},
    ],
    ids=str,
)
def test_impossible_numbers_are_no_account_and_said(
    changes: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on for all, with that client as one without an account."""

    class Liar(Device):
        def said(self, content: RecordDict, message: Message, spent: float) -> Message:
            made = super().said(content, message, spent)
            made.content["client"]["privacy"] = [*map(float, status(**changes))]
            return made

    method = fedavg()
    done = play(method, {"a": Liar("a"), "b": Device("b")}, 2)
    assert [each.participants for each in done] == [("a", "b")] * 2
    assert method.run_state.accounts.keys() == {"b"}
    (warning,) = [each for each in caplog.messages if "privacy account" in each]
    assert warning.startswith("client a says of its privacy account what none has")
    assert "revoke it" in warning


def test_a_claim_of_nothing_left_stops_no_others(caplog: pytest.LogCaptureFixture) -> None:
    devices = {"a": Device("a", 0.0), "b": Device("b"), "c": Device("c")}
    method = fedavg()
    done = play(method, devices, 3)
    assert [each.number for each in done] == [1, 2, 3]
    assert method.run_state.spent == {"a"}
    assert [devices[name].units for name in "abc"] == [0.0, UNITS - 12, UNITS - 12]


def test_a_hostile_status_ends_no_run() -> None:
    """The largest numbers that are accepted are sent and weighed."""
    largest = status(units=2.0**53, sigma=2.0**53, rows=0.0)
    method = of_accounts(fedavg(), a=largest)
    assert np.isfinite(method.prior_weights_of(["a"], [5.0])).all()
    assert method.run_state.accounts["a"].units_left(math.inf) == 2**53
    spent = method.run_state.charged({"a": status(spent=2.0**53)}, {})
    assert spent.accounts["a"].units_left(math.inf) == 0
