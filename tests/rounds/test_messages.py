"""The exact records of messages.

Vectors that a method keeps and sends to its clients in addition to the model.

A client declares the terms of local work that it supports; else its replies are refused.

A method that reads values it has not declared is an error, and so is an option as a class
attribute.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Unpack, get_args, get_type_hints

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import CONTROL
from fairbloom.protocol.options import DECLARED, RunOptions, SharedOptions
from fairbloom.protocol.parameters import Default, Meaning, Range
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import RULES, WORK, Terms
from fairbloom.rounds.aggregation import MethodError
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.rounds.cohort import Cohort, Decision, Kept
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.options import CommonOptions, Options, OptionsWithoutPrior
from fairbloom.rounds.round import size_on_the_wire
from fairbloom.strategies import (
    METHODS,
    Ditto,
    FairStrategy,
    FedAvg,
    FedFV,
    FedProx,
    MGDAProx,
    QFedAvg,
)
from tests.federation import (
    BUFFERS,
    OPTIONS,
    TRAINABLE,
    Answer,
    MemoryGrid,
    Quadratic,
    about_itself,
    bits,
    error,
    initial_model,
    quadratics,
    record,
    run,
    unpack,
)
from tests.strategies.helpers import ARGUMENTS, make, work_config

# The metrics that clients are asked for; none for the other methods.
MEASURED = {
    **{
        name: ["loss-before"]
        for name in ("qfedavg", "term", "afl", "deltafl", "gifair", "vred", "semivred")
    },
    **{name: ["loss-before"] for name in ("aaggff", "fedfv", "adafed", "fedmdfg")},
    **{name: ["loss-before"] for name in ("fedlf", "fairmoo", "fedpw")},
    "eagle": ["loss-baseline", "loss-before"],
    "scaffold": ["step-sum"],
    "qfedsgd": ["learning-rate", "loss-before"],
    "fedfa": ["accuracy-after"],
    "fairfed": ["accuracy-before", "hits-0", "hits-1", "positives-0", "positives-1"],
    "fcfl": ["disparity", "learning-rate", "loss-before"],
}

# The terms that clients get, from the method's arguments; none for the other methods.
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


@pytest.mark.parametrize(
    ("name", "arguments"), [(name, arguments) for name, (arguments, *_) in ARGUMENTS.items()]
)
def test_train_messages_hold_arrays_and_config_to_the_letter(
    name: str, arguments: dict[str, Any]
) -> None:
    grid = MemoryGrid(quadratics(3))
    run(make(name, arguments, **OPTIONS), grid, rounds=2, timeout=60.0)
    sent = [message for _, message in grid.sent_to(MessageType.TRAIN)]
    if name != "drfa":
        assert [m.content.config_records["config"]["server-round"] for m in sent] == [1] * 2 + [
            2
        ] * 2
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


@pytest.mark.parametrize(
    ("strategy", "sent"),
    [
        (FedProx(mu=0.0), {}),
        (FedAvg(proximal_mu=0.0, personal_lambda=0.0), {}),
        (MGDAProx(mu=0.0), {}),
        (Ditto(lam=0.0), {"personal-lambda": 0.0, "personal-epochs": 1}),
    ],
)
def test_terms_of_strength_zero_are_sent_only_by_ditto(
    strategy: FairStrategy, sent: dict[str, float]
) -> None:
    assert work_config(strategy, 1) == sent


def test_the_users_config_and_further_measures_travel_along() -> None:
    grid = MemoryGrid(quadratics(2))
    config = ConfigRecord({"lr": 0.1, "measure": ["accuracy-after"]})
    run(QFedAvg(q=1.0, lipschitz=1.0), grid, rounds=1, train_config=config)
    assert dict(grid.sent_to(MessageType.TRAIN)[0][1].content.config_records["config"]) == {
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

    def weigh(self, cohort: Cohort) -> Decision:
        self.cohorts.append(cohort)
        c = np.concatenate([cohort.prior, np.zeros(len(cohort.memory))])
        return Decision(c, keep={Kept("step", cohort.round): c})

    def sends(self) -> Mapping[str, tuple[Kept, float]]:
        kept = next(iter(self.past.kept), None)
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


# The terms of each method that clients must act on; test_messages.py has them to the letter.
SENT = {name: [*work] for name in METHODS if (work := make(name, ARGUMENTS[name][0]).terms(1).work)}


def client(
    name: str,
    *,
    on_query: Sequence[str] | None = (),
    on_train: Sequence[str] = (),
    asked: list[str] | None = None,
) -> Answer:
    """Return a client that declares to support these terms; with `on_query` None it answers QUERY
    with an error."""
    honest = quadratics(4)[name]

    def answer(message: Message) -> Message | None:
        kind = message.metadata.message_type
        if kind == MessageType.QUERY and asked is not None:
            asked.append(name)
        if kind == MessageType.QUERY and on_query is None:
            return error(message, message)[0]
        reply = honest(message)
        for where, honours in ((MessageType.QUERY, on_query), (MessageType.TRAIN, on_train)):
            if kind == where:
                about = {**reply.content.config_records.get("client", ConfigRecord())}
                about.pop("honours", None)
                reply.content["client"] = ConfigRecord(
                    about | ({"honours": list(honours)} if honours else {})
                )
        return reply

    return answer


@pytest.mark.parametrize(("name", "terms"), SENT.items())
def test_a_client_without_a_methods_terms_is_refused_with_remedy(
    name: str, terms: list[str]
) -> None:
    clients: dict[str, Answer] = dict(quadratics(3))
    method = partial(make, name, ARGUMENTS[name][0], buffers=BUFFERS, unused_rounds=0)
    _, (finished,) = run(method(), {**clients, "site-1": client("site-1")}, rounds=1)
    assert set(finished.refused) == {"site-1"} & set(finished.participants)
    assert set(finished.coefficients) == {"site-0", "site-2"}
    assert [
        words
        for words in ("docs/flower.md", "'honours'", *terms)
        if not all(words in reason for reason in finished.refused.values())
    ] == []
    honouring = client("site-1", on_query=terms)
    _, (finished,) = run(method(), {**clients, "site-1": honouring}, rounds=1)
    assert finished.refused == {}


def test_that_is_about_all_terms_and_about_no_other_key() -> None:
    of_options = {"client-rule", "personal-parameters", "head-epochs", "fine-tune-epochs"}
    of_options.add("wire-dtype")
    assert {key for keys in SENT.values() for key in keys} | of_options == set(WORK)
    assert not {"local-only", "local-steps", "snapshot-step"} & set(WORK)
    assert Terms(server_round=3, measure=("loss-before",), others={"lr": 0.1}).work == {}


def test_a_common_option_asks_as_a_methods_own_term_does() -> None:
    grid = MemoryGrid(
        {**dict(quadratics(2)), "site-2": client("site-2", on_query=["personal-lambda"])}
    )
    _, (finished,) = run(
        FedFV(proximal_mu=0.5, personal_lambda=1.0, buffers=BUFFERS), grid, rounds=1
    )
    assert set(finished.refused) == {"site-2"}
    reason = finished.refused["site-2"]
    assert "proximal-mu = 0.5" in reason
    assert "personal-lambda" not in reason


@pytest.mark.parametrize(
    ("last", "refused"), [(client("site-2", on_query=None), 1), (quadratics(3)["site-2"], 0)]
)
def test_a_node_that_answers_no_query_may_say_it_in_its_replies(last: Any, refused: int) -> None:
    telling = {
        name: client(name, on_query=None, on_train=["proximal-mu"]) for name in ("site-0", "site-1")
    }
    _, rounds = run(
        FedProx(mu=0.1, buffers=BUFFERS), MemoryGrid({**telling, "site-2": last}), rounds=2
    )
    for finished in rounds:
        assert len(finished.coefficients) == 3 - refused
        assert len(finished.refused) == refused


def test_a_named_node_is_asked_once_if_its_reply_says_nothing() -> None:
    asked: list[str] = []
    says = {
        "site-0": {"on_query": ["proximal-mu"]},
        "site-1": {"on_train": ["proximal-mu"]},
        "site-2": {},
    }
    clients = {name: client(name, asked=asked, **how) for name, how in says.items()}
    _, rounds = run(
        FedProx(mu=0.1, buffers=BUFFERS), MemoryGrid(clients, registered=clients), rounds=3
    )
    assert [set(finished.refused) for finished in rounds] == [{"site-2"}] * 3
    assert sorted(asked) == ["site-0", "site-2"]
    asked.clear()
    run(FedAvg(buffers=BUFFERS), MemoryGrid(clients, registered=clients), rounds=2)
    assert asked == []  # a method without terms asks no client


def test_a_client_without_the_users_rule_is_refused_by_its_key() -> None:
    clients = {**quadratics(3), "site-1": client("site-1")}
    ruled = FedAvg(buffers=BUFFERS, client_rule="mine:Rule", unused_rounds=0)
    _, (finished,) = run(ruled, MemoryGrid(clients), rounds=1)
    assert "client-rule" in finished.refused["site-1"]


@pytest.mark.parametrize("honours", ["proximal-mu", 7, [1, 2], b"proximal-mu"])
def test_an_answer_of_another_kind_honours_nothing(honours: Any) -> None:
    odd = about_itself(quadratics(1)["site-0"], name="site-0", honours=honours)
    _, (finished,) = run(
        FedProx(mu=0.1, buffers=BUFFERS, unused_rounds=0), {"site-0": odd}, rounds=1
    )
    assert set(finished.refused) == {"site-0"}


def reading(read: str) -> type[FairStrategy]:
    """Return a method that reads something of a cohort without having asked for it."""

    def weigh(self: FairStrategy, cohort: Cohort) -> FloatArray:
        eval(f"cohort.{read}", {}, {"cohort": cohort})  # noqa: S307 (an expression of these tests)
        return cohort.prior

    return type("Reading", (FairStrategy,), {"weigh": weigh})


@pytest.mark.parametrize(
    "read", ["['site-1']", ".get('site-1')", ".values().__iter__().__next__()", ".__len__()"]
)
def test_a_roster_that_was_not_asked_for_is_an_error(read: str) -> None:
    method = reading(f"roster{read}")(**OPTIONS)
    with pytest.raises(MethodError, match=r'cohort\.roster.*requires = frozenset\(\{"roster"\}\)'):
        run(method, rounds=1)
    assert method.state_dict()["roster"] == {}
    with pytest.raises(MethodError, match=r"loss-before.*needs = frozenset"):
        run(reading("losses")(**OPTIONS), rounds=1)


def test_a_constructor_without_its_bases_one_is_refused() -> None:
    def construct(self: FairStrategy, strength: float = 0.5) -> None:
        self.strength = strength  # type: ignore[attr-defined]

    with pytest.raises(FairbloomError, match=r"Mine.*super\(\)\.__init__"):
        type("Mine", (FedAvg,), {"__init__": construct})()


class Strength(Options, total=False):
    strength: float
    power: Annotated[float, Range("[0, 1]"), Default(0.5)]


def test_options_of_a_users_typeddict_need_no_default() -> None:
    class Mine(FedAvg):
        def __init__(self, power: float = 0.25, **options: Unpack[Strength]) -> None:  # type: ignore[misc]
            self.strength = options.pop("strength", power)
            super().__init__(**options)

    assert [Mine().strength, Mine(strength=2.0).strength] == [0.25, 2.0]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("weighting", "uniform", r"Mine\.weighting = 'uniform'.*constructor"),
        ("proximal_mu", 0.1, r"Mine\.proximal_mu = 0\.1.*constructor"),
        ("seed", 3, r"Mine\.seed = 3.*constructor"),
        ("requires", frozenset({"grams"}), "requires has 'grams'"),
    ],
)
def test_wrong_declarations_are_refused(name: str, value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        type("Mine", (FedAvg,), {name: value})


def choosing(*drawn: str) -> type[FairStrategy]:
    def choose(
        self: FairStrategy, names: Sequence[str], wanted: int, server_round: int
    ) -> list[str]:
        return [*drawn]

    return type("Choosing", (FedAvg,), {"choose": choose})


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        (("site-1", "stranger"), "drew 'stranger', .* not one of the 6 available clients"),
        ((), "selected none of the 6"),
    ],
)
def test_an_empty_draw_and_a_stranger_are_errors_by_name(
    drawn: tuple[str, ...], words: str
) -> None:
    with pytest.raises(MethodError, match=rf"Choosing\.choose, in round 1, {words}"):
        run(choosing(*drawn)(**OPTIONS), rounds=1)
    assert run(choosing("site-4", "site-1")(**OPTIONS), rounds=1)[1][0].participants == (
        "site-1",
        "site-4",
    )


@pytest.mark.parametrize("name", DECLARED)
def test_an_option_is_declared_once(name: str) -> None:
    """Two other places repeat its name and type; a third, the terms, if clients are asked for it."""
    kind, *limits = get_args(DECLARED[name])
    assert any(isinstance(each, Meaning) for each in limits)
    assert get_type_hints(OptionsWithoutPrior)[name] == kind
    assert get_type_hints(RunSettings, include_extras=True)[name] == kind
    assert RunSettings.model_fields[name].default == getattr(RunOptions, name)
    listing = (SharedOptions, RunOptions, CommonOptions, Options, Method, RunSettings, Terms)
    places = [each for each in listing if name in inspect.get_annotations(each)]
    assert len(places) == 3 + (Terms in places)
    assert len([rule for rule in RULES if name in rule.names]) == (Terms in places)
