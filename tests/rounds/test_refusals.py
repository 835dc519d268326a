"""Unusable replies: each is refused by the name of its client, and the round continues without
it.

Impossible evaluations are refused by name; the evaluations of the others are used.
"""

import math
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from itertools import product

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fairbloom.errors import ReportableError
from fairbloom.protocol.advice import ADVICE
from fairbloom.protocol.error_codes import ErrorCode, code_of
from fairbloom.protocol.scores import GroupScore, Score
from fairbloom.rounds.clients import Replies
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.refusals import MAX_REASON_CHARACTERS, Refusals, one_line
from fairbloom.rounds.round import Round
from fairbloom.rounds.screening import screen_evaluations
from fairbloom.strategies import FedAvg
from tests.federation import (
    BUFFERS,
    KINDS,
    TRAINABLE,
    Answer,
    Fault,
    MemoryGrid,
    Quadratic,
    answering,
    arrays,
    bits,
    duplicate,
    error,
    in_float64,
    initial_model,
    metrics,
    no_reply,
    one_faulty,
    quadratics,
    record,
    run,
    to_unknown_message,
    unpack,
    without,
)
from tests.strategies.helpers import ARGUMENTS, make


def corrupt(data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array(dtype="float32", shape=(3,), stype=stype, data=data)


def node_unavailable(sent: Message, reply: Message) -> list[Message]:
    gone = Message(Error(5, "node unavailable"), reply_to=sent)
    gone.metadata.__dict__["_src_node_id"] = 1  # the server's
    return [gone]


# Replies that no method can use, with the reason for their refusal.
BROKEN: list[tuple[Fault, str]] = [
    (error, "out of memory"),
    (node_unavailable, "node unavailable"),
    *(
        (arrays(bias=np.float32([1, value, 2])), "'bias' is not finite")
        for value in (np.nan, -np.inf)
    ),
    (arrays(scale=np.float32(np.nan)), "'scale' is not finite"),
    (arrays(norm_mean=np.float32([np.nan, 0])), "'norm.mean' is not finite"),
    (arrays(bias=np.zeros(4, np.float32)), "'bias' has shape (4,)"),
    (arrays(bias=np.zeros(1, np.float32)), "'bias' has shape (1,)"),
    (arrays(scale=np.zeros(1, np.float32)), "'scale' has shape (1,)"),
    (arrays(norm_steps=np.float32(1)), "'norm.steps' has dtype float32"),
    *(
        (arrays(bias=np.zeros(3, dtype)), f"'bias' has dtype {dtype}")
        for dtype in ("int64", "complex64")
    ),
    (arrays(bias=np.array(["a", "b", "c"])), "'bias' has dtype <U1"),
    (arrays(bias=None), "'bias' is missing"),
    (arrays(extra=np.float32(1)), "'extra' is not in the model"),
    *((without(kind), f"'{kind}' is missing") for kind in ("arrays", "metrics")),
    (arrays(bias=corrupt(b"\x93NUMPY\x01\x00nonsense")), "'bias' can't be read"),
    (arrays(bias=corrupt(b"")), "'bias' can't be read"),
    (arrays(bias=corrupt(b"abc", "pickle")), "'bias' can't be read"),
    *(
        (
            metrics({"num-examples": count}),
            f"num-examples must be an integer of at least 1, got {count}",
        )
        for count in (None, 0, -3, 0.5, 3.0, [3])
    ),
    (metrics({"num-examples": 2**53 + 1}), "num-examples must be at most 2**53"),
]


def check_refused(name: str, fault: Fault, reason: str) -> None:
    """Check that site-2's reply is refused for a reason, and that all else is as if it had not
    come."""
    result, finished = one_faulty(name, fault)
    without, absent = one_faulty(name, no_reply)
    assert list(finished.refused) == ["site-2"], reason
    assert reason in finished.refused["site-2"]
    assert (finished.missing, absent.missing, absent.refused) == ((), ("site-2",), {})
    assert bits(result.arrays) == bits(without.arrays), reason
    assert finished.coefficients == absent.coefficients
    assert finished.metrics["replies-refused"] == 1
    assert finished.metrics["replies-used"] == absent.metrics["replies-used"]
    assert finished.metrics.get("loss-before") == absent.metrics.get("loss-before")
    assert "site-2" not in finished.train_metrics


@pytest.mark.parametrize(("fault", "reason"), BROKEN)
def test_a_broken_reply_is_refused_and_changes_nothing_else(fault: Fault, reason: str) -> None:
    check_refused("fedmgda", fault, reason)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_module.", "_module._orig_mod."])
def test_an_array_that_a_wrapper_renamed_is_found(prefix: str) -> None:
    plain = {"body.0.weight": np.zeros(2), "head": np.zeros(1)}
    for wrapped in (
        {f"{prefix}{name}": array for name, array in plain.items()},
        {name.replace(".0", f".{prefix}0"): array for name, array in plain.items()},
    ):
        for model, reply in ((plain, wrapped), (wrapped, plain)):
            reason = Layout(model).mismatch(reply)
            assert (
                f"'{next(iter(model))}' is missing: the reply has '{next(iter(reply))}'" in reason
            )
            assert "such as model.module.state_dict()" in reason
    reason = Layout(plain).mismatch({"submodule.body.0.weight": np.zeros(2)})
    assert reason == "array 'body.0.weight' is missing"
    both = {"module.head": np.zeros(1), "head": np.zeros(1)}
    assert Layout(both).mismatch({"head": np.zeros(1)}) == "array 'module.head' is missing"


def snapshot(sent: Message, reply: Message) -> list[Message]:
    """Return the reply with a snapshot that is far too long."""
    changed = record(
        {**unpack(reply.content.array_records["snapshot"]), "bias": np.full(3, 1e30, np.float32)}
    )
    return [Message(RecordDict({**reply.content, "snapshot": changed}), reply_to=sent)]


OF_TEN = {"positives-0": 5, "positives-1": 5, "hits-0": 0, "hits-1": 0}

# Replies that are refused only by methods that need the value.
IMPLAUSIBLE: list[tuple[str, Fault, str]] = [
    *(
        (
            "fedfv",
            metrics({"loss-before": loss}),
            f"'loss-before' must be a finite number, got {loss}",
        )
        for loss in (None, math.nan, math.inf, [1.0])
    ),
    ("fedfv", metrics({"loss-before": None}), f"got None: {ADVICE}"),
    ("qfedavg", metrics({"loss-before": -1e300}), "metric 'loss-before' is -1e+300, beyond"),
    ("term", metrics({"loss-before": 1e9}), "1000 times (loss_limit)"),
    (
        "qfedsgd",
        metrics({"learning-rate": 5e-324}),
        "metric 'learning-rate' is 4.94066e-324, outside 0.000",
    ),
    ("qfedsgd", metrics({"learning-rate": 1e4}), "metric 'learning-rate' is 10000, outside 0.000"),
    (
        "qfedsgd",
        metrics({"learning-rate": 0.0}),
        "metric 'learning-rate' must be positive, got 0.0",
    ),
    (
        "qfedsgd",
        metrics({"learning-rate": [0.5]}),
        "metric 'learning-rate' must be a finite number, got [0.5]",
    ),
    (
        "fedfa",
        metrics({"accuracy-after": 1.0000001}),
        "metric 'accuracy-after' must lie in [0, 1], got 1.0000001",
    ),
    (
        "fedfa",
        metrics({"accuracy-after": -1e-9}),
        "metric 'accuracy-after' must lie in [0, 1], got -1e-09",
    ),
    (
        "fcfl",
        metrics({"disparity": -1.0000001}),
        "metric 'disparity' must lie in [-1, 1], got -1.0000001",
    ),
    (
        "eagle",
        metrics({"loss-baseline": None}),
        "metric 'loss-baseline' must be a finite number, got None",
    ),
    ("eagle", metrics({"loss-baseline": -1e6}), "metric 'loss-baseline' is -1e+06, beyond"),
    *(
        ("scaffold", metrics({"step-sum": wrong}), "step-sum")
        for wrong in (None, math.nan, -0.1, 1e-300, 1e-7)
    ),
    ("fairfed", metrics({"positives-0": -1}), "'positives-0' must be a whole number from 0"),
    (
        "fairfed",
        metrics({"positives-1": 3, "hits-1": 4}),
        "'hits-1' must be a whole number from 0 to 3, got 4",
    ),
    ("fairfed", metrics({"positives-0": 10**6}), "'positives-0' must be a whole number from 0 to"),
    ("fairfed", metrics({"positives-1": 2.5}), "'positives-1' must be a whole number"),
    ("fairfed", metrics({"positives-1": None}), "'positives-1'"),
    ("fairfed", metrics({"accuracy-before": 1.5}), "accuracy-before"),
    ("fairfed", metrics({"num-examples": 9, **OF_TEN}), "10 together, of 9 exam"),
    ("drfa", snapshot, "its snapshot has the length "),
]


@pytest.mark.parametrize(("name", "fault", "reason"), IMPLAUSIBLE)
def test_an_implausible_reply_is_refused_where_it_is_needed(
    name: str, fault: Fault, reason: str
) -> None:
    check_refused(name, fault, reason)
    if fault is not snapshot and "num-examples" not in reason and "of 9" not in reason:
        result, finished = one_faulty("fedavg", fault)
        assert finished.refused == {}, reason
        assert bits(result.arrays) == bits(one_faulty("fedavg", None)[0].arrays)


@pytest.mark.parametrize("fine", [-1.0, 0, 1])
def test_a_disparity_from_minus_1_to_1_is_used(fine: float) -> None:
    assert one_faulty("fcfl", metrics({"disparity": fine}))[1].refused == {}


@pytest.mark.parametrize("name", KINDS)
def test_absurd_weights_and_buffers_are_refused_by_every_kind(name: str) -> None:
    filled = {name: np.full(initial_model()[name].shape, 1e6, np.float32) for name in TRAINABLE}
    check_refused(name, arrays(**filled), "update_limit")
    check_refused(
        name,
        arrays(norm_mean=np.full(2, -1e20, np.float32)),
        "its buffers (norm.mean) change by ",
    )


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (duplicate, "a second reply"),
        (to_unknown_message, "no message of this round"),
    ],
)
def test_a_reply_too_many_is_refused_and_the_first_is_used(
    fault: Callable[..., object], reason: str
) -> None:
    result, finished = one_faulty("fedavg", fault)
    assert list(finished.refused) == ["site-2"]
    assert reason in finished.refused["site-2"]
    assert bits(result.arrays) == bits(one_faulty("fedavg", None)[0].arrays)


@pytest.mark.parametrize("wrong", [0, -1.0, math.nan, 10**400, None])
def test_another_weight_must_be_a_positive_number(wrong: int | float | None) -> None:
    faults = {(f"site-{k}", 1): metrics({"tokens": wrong if k == 2 else 0.5}) for k in range(3)}
    strategy = FedAvg(weighted_by_key="tokens", fraction_evaluate=0.0)
    _, (finished,) = run(strategy, MemoryGrid(quadratics(3), faults=faults), rounds=1)
    assert list(finished.refused) == ["site-2"]
    assert "tokens" in finished.refused["site-2"]
    assert finished.coefficients == {"site-0": 0.5, "site-1": 0.5}


def test_other_records_and_floats_of_other_widths_are_used() -> None:
    """Unless there are several of which none has the name; then that is missing."""
    expected = bits(one_faulty("fedavg", None)[0].arrays)

    def renamed(sent: Message, reply: Message) -> list[Message]:
        floats = {
            name: array
            for name, array in unpack(reply.content["arrays"]).items()
            if array.dtype.kind == "f"
        }
        wide = record({name: array.astype(">f8") for name, array in floats.items()})
        content = {
            "mine": ArrayRecord({**reply.content["arrays"], **wide}),
            "hers": reply.content["metrics"],
        }
        return [Message(RecordDict(content), reply_to=sent)]

    def doubled(sent: Message, reply: Message) -> list[Message]:
        numbers = reply.content["metrics"]
        return [
            Message(
                RecordDict({"arrays": reply.content["arrays"], "a": numbers, "b": numbers}),
                reply_to=sent,
            )
        ]

    result, finished = one_faulty("fedavg", renamed)
    assert finished.refused == {}
    assert bits(result.arrays) == expected
    check_refused("fedavg", doubled, "MetricRecord 'metrics' is missing")


def test_pickled_objects_are_never_loaded() -> None:
    buffer = BytesIO()
    np.save(buffer, np.array([{}, 1, 2], dtype=object), allow_pickle=True)
    pickled = Array(dtype="float32", shape=(3,), stype="numpy.ndarray", data=buffer.getvalue())
    check_refused("fedavg", arrays(bias=pickled), "array 'bias' can't be read")


def test_all_kinds_of_broken_replies_at_once_are_each_refused() -> None:
    clients = {f"site-{k:02}": Quadratic(f"site-{k:02}") for k in range(len(BROKEN) + 2)}
    faults = {(name, 1): fault for name, (fault, _) in zip(clients, BROKEN, strict=False)}
    _, (finished,) = run(FedAvg(buffers=BUFFERS), MemoryGrid(clients, faults=faults), rounds=1)
    assert list(finished.refused) == [name for name, _ in faults]
    assert list(finished.coefficients) == [name for name in clients if (name, 1) not in faults]


@pytest.mark.parametrize(
    ("name", "size"), [*product(("fedavg", "fedlf", "fcfl", "drfa"), (1e160, 1.7e308))]
)
def test_an_update_whose_square_overflows_is_refused(name: str, size: float) -> None:
    huge = {("site-2", 1): arrays(bias=np.full(3, size))}
    strategy = make(name, ARGUMENTS[name][0], buffers=BUFFERS, fraction_evaluate=0.0)
    result, (finished,) = run(strategy, quadratics(4), 1, huge, initial_arrays=record(in_float64()))
    assert list(finished.refused) == ["site-2"], name
    assert "inner products overflow" in finished.refused["site-2"]
    assert set(finished.coefficients) == set(finished.participants) - {"site-2"}
    assert len(finished.coefficients) == 3 or name == "drfa"
    assert all(np.isfinite(a).all() for a in unpack(result.arrays).values())


@pytest.mark.parametrize("code", [3, 4])
def test_a_message_that_has_expired_is_no_answer(code: int) -> None:
    expired = Error(code, "it may have expired")
    result, finished = one_faulty(
        "fedavg", lambda sent, reply, e=expired: [Message(e, reply_to=sent)]
    )
    without, absent = one_faulty("fedavg", no_reply)
    assert (
        (finished.missing, finished.refused)
        == (absent.missing, absent.refused)
        == (("site-2",), {})
    )
    assert bits(result.arrays) == bits(without.arrays)


def test_a_clients_reason_is_one_printable_short_line() -> None:
    reason = "Traceback:\n  File x\r\n\tred \x1b[31m" + 10**6 * "x" + "end"
    assert one_line("Traceback:\n  File x\r\n\tred \x1b[31m") == "Traceback: File x red \ufffd[31m"
    assert (
        one_line("begin" + 10**6 * "x" + "end") == "begin" + 995 * "x" + " … " + 997 * "x" + "end"
    )
    _, finished = one_faulty(
        "fedavg", lambda sent, reply: [Message(Error(2, reason), reply_to=sent)]
    )
    assert finished.refused == {"site-2": one_line(f"error 2: {reason}")}
    assert len(finished.refused["site-2"]) <= MAX_REASON_CHARACTERS + 3


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"loss": 1.0}, "num-examples must be an integer of at least 1, got None"),
        (
            {"num-examples": 5, "loss": 1.0, "accuracy-personal": 87.5},
            "metric 'accuracy-personal' must lie in [0, 1]",
        ),
    ],
)
def test_a_broken_evaluation_is_refused_by_client_name(
    numbers: dict[str, float], reason: str
) -> None:
    clients = quadratics(3)
    content = RecordDict({"metrics": MetricRecord(numbers)})
    broken = answering(
        clients["site-1"], evaluate=lambda m, content=content: Message(content, reply_to=m)
    )
    _, (finished,) = run(FedAvg(), {**clients, "site-1": broken}, rounds=1)
    assert list(finished.evaluations) == ["site-0", "site-2"]
    assert list(finished.refused) == ["site-1"]
    assert finished.refused["site-1"].startswith(f"evaluation: {reason}")
    assert "site-1" in finished.coefficients


def test_a_reason_that_several_clients_share_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    refused = Refusals(3)
    for name in ("c", "a", "b"):
        refused.add(name, "it has no loss")
    refused.add("d", "its array is not finite")
    assert caplog.messages == []
    refused.log(Counter())
    lines = [line for line in caplog.messages if line.startswith("refused")]
    assert [("(a, b, c)" in line, "client d" in line) for line in lines] == [
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize(
    ("reason", "noted"),
    [
        (
            "/home/ann/data/ward 3.csv cannot be read: Is a directory",
            "ward 3.csv cannot be read: Is a directory",
        ),
        ("[Errno 5] Input/output error: '/srv/x/y.npz'", "[Errno 5] Input/output error: 'y.npz'"),
        (
            "OSError: broken (/usr/lib/python3/PIL/ImageFile.py, line 3)",
            "OSError: broken (ImageFile.py, line 3)",
        ),
        ("data-dir=/a/b/c is no folder", "data-dir=c is no folder"),
        (
            "3/4 of the loss, n/a, see https://example.org/a/b",
            "3/4 of the loss, n/a, see https://example.org/a/b",
        ),
    ],
)
def test_a_reason_names_no_folder_of_a_site(reason: str, noted: str) -> None:
    refused = Refusals(1)
    refused.add("site-a", reason)
    assert refused.reasons == {"site-a": noted}


@pytest.mark.parametrize(
    ("reason", "joined"),
    [
        (lambda k: f"num-examples {k} is more than 5", "num-examples 0, 1, 2 and 7 more is more"),
        (
            lambda k: f"loss is {k / 4:g}, beyond 1e+30",
            "loss is 0, 0.25, 0.5 and 7 more, beyond 1e+30",
        ),
        (
            lambda k: f"it returned {k}e-9 for {k + 9}",
            "it returned 0e-9, 1e-9, 2e-9 and 7 more for 9,",
        ),
        (lambda k: "the same", "10 clients (c0, c1, c2 and 7 more): the same"),
    ],
)
def test_reasons_with_other_numbers_are_logged_in_one_line(
    reason: Callable[[int], str], joined: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused = Refusals(1)
    for k in range(10):
        refused.add(f"c{k}", reason(k))
    refused.log(Counter())
    (line,) = caplog.messages
    assert joined in line
    assert refused.reasons["c4"] == reason(4)  # tables have each client's own


def test_what_was_said_of_a_client_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """In training and evaluation, until its reason changes; the record of each round has all."""

    def reply(message: Message) -> Message:
        number = message.content.config_records["config"]["server-round"]
        return Message(Error(2, "no file" if number != 3 else "the disk is full"), reply_to=message)

    broken = {
        name: answering(Quadratic(name), train=reply, evaluate=reply)
        for name in ("site-1", "site-3")
    }
    _, finished = run(FedAvg(), {**quadratics(5), **broken}, rounds=4)
    assert [line for line in caplog.messages if line.startswith("refused")] == [
        "refused the replies of 2 clients (site-1, site-3): error 2: no file",
        "refused the replies of 2 clients (site-1, site-3): error 2: the disk is full",
        "refused again, for the reasons above: site-1 (6 times), site-3 (6 times)",
    ]
    assert [each.refused["site-1"] for each in finished] == [
        f"error 2: {reason}; evaluation: error 2: {reason}"
        for reason in ("no file", "no file", "the disk is full", "no file")
    ]


def test_reasons_with_other_words_stay_apart(caplog: pytest.LogCaptureFixture) -> None:
    refused = Refusals(1)
    for name, reason in (
        ("a", "array 'w1' is 1"),
        ("b", "array 'w2' is 1"),
        ("c", "client-1 is 3"),
    ):
        refused.add(name, reason)
    refused.log(Counter())
    assert len(caplog.messages) == 3


def test_a_hundred_clients_with_a_sum_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    clients = {
        f"site-{k:02}": answering(
            Quadratic(f"site-{k:02}"),
            train=lambda message, k=k: Message(  # type: ignore[misc]
                Error(2, f"it returned {k + 0.5} for 16 examples"), reply_to=message
            ),
        )
        for k in range(100)
    }
    with pytest.raises(
        NothingLearnedError, match=r"all since error 2: it returned 0.5, 1.5, 2.5 and"
    ):
        run(FedAvg(), MemoryGrid(clients), rounds=3)
    assert len([words for words in caplog.messages if "it returned" in words]) == 1


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
    "num-examples": (
        2**53,
        r"num-examples 9007199254740992 is more than 1e\+06 times the median of the others",
    ),
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
    content = RecordDict({"metrics": MetricRecord({"num-examples": 3, "loss": 1.0, **changed})})
    return answering(client, evaluate=lambda message: Message(content, reply_to=message))


def forging(changed: dict[str, float], strategy: FedAvg | None = None) -> Round:
    """Return a round of three clients of which site-1 reports changed numbers."""
    usual = dict.fromkeys(changed.keys() - {"num-examples"}, 0.5)
    clients = {name: evaluating(client, **usual) for name, client in quadratics(3).items()}
    clients["site-1"] = evaluating(quadratics(3)["site-1"], **changed)
    _, (finished,) = run(strategy or FedAvg(), clients, rounds=1)
    return finished


def test_test_examples_are_compared_with_test_examples() -> None:
    """A site may have many more of them than training examples, but not suddenly."""
    method = FedAvg(max_growth=10.0)
    method.enter(method.run_state.screened({"a": 10.0, "b": 10.0}))
    refused = []
    for counts in ((500, 20), (5000, 20), (5001, 200), (50, 201)):
        replies = Replies(
            metrics={name: {"num-examples": n} for name, n in zip("ab", counts, strict=True)},
            refused=Refusals(server_round=1),
        )
        method.enter(method.run_state.tested(screen_evaluations(method, replies, {})))
        refused.append([*replies.refused.reasons])
    assert refused == [[], [], ["a"], ["b"]]
    continued = FedAvg(max_growth=10.0)
    continued.load_state_dict(method.state_dict())
    assert continued.run_state.first_tests == {"a": 500, "b": 20}


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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_left_out(value: float) -> None:
    """A client with one class has no AUC, and its other scores count."""
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


@pytest.mark.parametrize(
    ("metric", "value", "refused"),
    [("loss", 1e308, []), ("num-examples", 2**53, []), ("auc", 2.0, ["site-1"])],
)
def test_inf_disables_the_limits_that_are_no_intervals(
    metric: str, value: float, refused: list[str]
) -> None:
    unlimited = FedAvg(loss_limit=math.inf, max_growth=math.inf)
    assert list(forging({metric: value}, unlimited).refused) == refused


@pytest.mark.parametrize(
    ("metric", "value"), [("eval_acc", 57.0), ("cost", 1e308), ("found[sex:f]-personal", 2.0)]
)
def test_scores_of_the_run_bound_what_has_their_names(metric: str, value: float) -> None:
    scores = [
        Score("eval_acc", percent=True),
        Score("cost", higher_is_better=False),
        GroupScore("found", percent=True),
    ]
    strategy = FedAvg()
    rounds = Rounds(strategy, FlowerClients(strategy), 1, scores=scores)
    rounds.current.evaluators = ("a", "b", "c")
    usual = {"num-examples": 3, metric: 0.5}
    replies = rounds.clients.read_evaluate_replies([])
    replies.metrics.update({"a": usual, "b": {**usual, metric: value}, "c": usual})
    rounds.aggregate_evaluate(replies)
    assert list(replies.metrics) == ["a", "c"]
    assert isinstance(replies.refused, Refusals)
    assert metric in replies.refused.reasons["b"]


def test_what_a_client_says_decides_nothing() -> None:
    """Its code does, whatever the words."""
    refused = Refusals(1)
    refused.add("a", "owl", ErrorCode.BUDGET_SPENT)
    refused.add("b", "the privacy budget is spent: newt", ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
    refused.add("c", ValueError("newt"))
    refused.add("d", "owl", ErrorCode.ACCOUNT_HALTED)
    refused.add("d", "newt", ErrorCode.BUDGET_SPENT)
    assert refused.with_code(ErrorCode.BUDGET_SPENT) == {"a", "d"}
    assert refused.with_code(ErrorCode.ACCOUNT_HALTED) == {"d"}
    assert not refused.with_code(ErrorCode.UNKNOWN_TERM)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("owl"), SystemExit(ErrorCode.BUDGET_SPENT), ReportableError("newt")]
)
def test_an_error_of_the_app_has_no_code_of_ours(error: BaseException) -> None:
    assert code_of(error) == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
