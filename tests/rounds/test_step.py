"""The model after some rounds equals the papers' vectors, and a method sees only small arrays."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict

from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort, Kept, Probed
from fairbloom.rounds.layout import Layout
from fairbloom.strategies import FairStrategy, Round
from tests.federation import (
    KINDS,
    OPTIONS,
    TRAINABLE,
    MemoryGrid,
    Quadratic,
    bits,
    duplicate,
    error,
    flat,
    in_float64,
    initial_model,
    no_reply,
    quadratics,
    record,
    run,
    unpack,
)
from tests.strategies.helpers import ARGUMENTS, Arrays, make
from tests.strategies.reference import WEIGHTING, Seen, expected_step

GROUP_COUNTS = ("positives-0", "positives-1", "hits-0", "hits-1")


def expected_model(name: str, arguments: dict[str, Any], rounds: Sequence[Round]) -> Arrays:
    """Run the method on whole float64 vectors, given the used replies of each round."""
    clients = quadratics(6)
    history = []
    if name == "local":  # its clients return what they received
        return initial_model()
    steps = arguments.get("local_steps", 10) if name == "drfa" else 1
    model = in_float64()
    weighting = arguments.get("weighting", WEIGHTING[name])
    for finished in rounds:
        if not finished.coefficients:
            continue
        replies = {
            client: clients[client].trained(model, steps)
            for client in sorted(finished.coefficients)
        }
        counts = {client: float(clients[client].examples) for client in replies}
        updates = {client: flat(model) - flat(after) for client, after in replies.items()}
        losses = {client: clients[client].loss(model) for client in replies}
        accuracies = {client: clients[client].accuracy(after) for client, after in replies.items()}
        rates = {client: clients[client].rate for client in replies}
        draws = draws_in(finished) if name == "drfa" else {}
        before = {client: clients[client].group_counts(model) for client in replies}
        groups = {
            metric: {client: before[client][metric] for client in replies}
            for metric in GROUP_COUNTS
        }
        if name == "fairfed":
            accuracies = {client: clients[client].accuracy(model) for client in replies}
        known = {client: float(each.examples) for client, each in clients.items()}
        baselines = {client: clients[client].baseline for client in replies}
        seconds = {client: flat(model) - flat(clients[client].evened(model)) for client in replies}
        disparities = {client: clients[client].disparity(model) for client in replies}
        columns = (
            updates,
            losses,
            counts,
            accuracies,
            rates,
            draws,
            groups,
            known,
            baselines,
            seconds,
            disparities,
        )
        history.append(Seen(finished.number, len(rounds), *columns))
        extra = {"seed": OPTIONS["seed"]} if name == "fedfv" else {}
        w = flat(model) - expected_step(name, {**arguments, **extra}, history)
        p = counts if weighting == "examples" else dict.fromkeys(replies, 1.0)
        mean = np.sum([p[c] * after["norm.mean"] for c, after in replies.items()], axis=0) / sum(
            p.values()
        )
        most = max(sorted(replies), key=lambda client: counts[client])
        places = np.split(w, np.cumsum([model[key].size for key in TRAINABLE])[:-1])
        parts = {
            key: place.reshape(model[key].shape)
            for key, place in zip(TRAINABLE, places, strict=True)
        }
        model = {
            key: {**parts, "norm.mean": mean, "norm.steps": replies[most]["norm.steps"]}[key]
            for key in model
        }
    return model


def draws_in(finished: Round) -> dict[str, int]:
    """How often DRFA drew each client, from its coefficients draws / Σ draws; test_drfa.py tests
    the draw itself."""
    shares = np.array([*finished.coefficients.values()])
    total = next(n for n in range(1, 7) if np.abs(n * shares - np.round(n * shares)).max() < 1e-9)
    return {name: round(total * c) for name, c in finished.coefficients.items()}


def test_a_run_ends_where_the_papers_vectors_end(subtests: pytest.Subtests) -> None:
    """Whoever fails or is late; a round without usable replies keeps all there is, and counts."""
    faults = {("site-4", 1): duplicate, ("site-2", 1): error, ("site-0", 2): no_reply}
    faults |= {(client, 3): error for client in quadratics(6)}
    for name in KINDS:
        with subtests.test(name=name):
            strategy = make(name, ARGUMENTS[name][0], **OPTIONS)
            states = list[dict[str, Any]]()

            def note(
                number: int,
                arrays: ArrayRecord,
                strategy: FairStrategy = strategy,
                into: list[Any] = states,
            ) -> None:
                into.append(copy.deepcopy(strategy.state_dict()))

            result, finished = run(strategy, faults=faults, evaluate_fn=note)
            assert (
                [r.number for r in finished]
                == [state["round"] for state in states[1:]]
                == [1, 2, 3, 4]
            )
            assert finished[2].coefficients == {}
            assert bits(finished[2].arrays) == bits(finished[1].arrays)
            for kept in ("memory", "rows"):
                np.testing.assert_equal(states[3][kept], states[2][kept], name)
            model = unpack(result.arrays)
            expected = expected_model(name, ARGUMENTS[name][0], finished)
            assert list(model) == list(expected)
            for key, array in model.items():
                assert (array.dtype, array.shape) == (
                    initial_model()[key].dtype,
                    initial_model()[key].shape,
                )
                most = 2e-5 * np.abs(expected[key]).max()
                np.testing.assert_allclose(array, expected[key], rtol=2e-5, atol=most, err_msg=name)


def sizes_in(value: Any) -> list[int]:
    """The number of entries of every array, list and mapping in a value, functions aside."""
    if isinstance(value, np.ndarray):
        return [value.size]
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return [len(value), *(size for part in inner for size in sizes_in(part))]
    plain = int | float | str | Kept | None
    assert callable(value) or isinstance(value, plain), type(value)
    return []


def large(name: str) -> Callable[[Message], Message]:
    """Return a client of a model of D numbers that measures all that it may be asked for."""
    small = Quadratic(name)

    def answer(message: Message) -> Message:
        content = message.content.array_records.get("arrays")
        if content is None:
            return small(message)
        w = content["w"].numpy()
        config = message.content.config_records["config"]
        after = record(
            {"w": w + np.float32(len(name)) * np.sin(np.arange(D) * small.rate).astype(np.float32)}
        )
        measured = (
            "loss-before",
            "accuracy-after",
            "loss-baseline",
            "step-sum",
            "learning-rate",
            "train-loss",
        )
        numbers = dict.fromkeys((*measured, "disparity", "accuracy-before"), small.rate)
        numbers |= {"num-examples": small.examples, **dict.fromkeys(GROUP_COUNTS, 1)}
        numbers |= {key: config[key] for key in ("state-round",) if key in config}
        replied = RecordDict({"metrics": MetricRecord(numbers)})
        if message.metadata.message_type == MessageType.TRAIN:
            asked = {"snapshot-step": "snapshot", "disparity": "arrays-disparity"}
            for kind in ("arrays", *(kind for key, kind in asked.items() if key in config)):
                replied[kind] = after
        return Message(replied, reply_to=message)

    return answer


D = 10_007


def test_no_vector_of_the_models_length_reaches_the_method(subtests: pytest.Subtests) -> None:
    """Its cohort and its memory have m or (m + r)² numbers, regardless of the model's size."""
    clients = {client: large(client) for client in quadratics(4)}
    initial = record({"w": np.zeros(D, np.float32)})
    for name in KINDS:
        with subtests.test(name=name):
            strategy = make(name, ARGUMENTS[name][0])
            seen = list[int]()
            weigh = strategy.weigh
            remember = strategy.remember

            def weighed(
                cohort: Cohort,
                strategy: FairStrategy = strategy,
                do: Any = weigh,
                into: list[int] = seen,
            ) -> Any:
                into.extend(sizes_in(vars(cohort)))
                c = do(cohort)
                into.extend(sizes_in([vars(cohort), strategy.memory, c]))
                return c

            def remembered(
                cohort: Cohort,
                c: FloatArray,
                probed: Probed,
                do: Any = remember,
                into: list[int] = seen,
            ) -> Any:
                kept = do(cohort, c, probed)
                into.extend(sizes_in([vars(cohort), dict(kept)]))
                return kept

            # no subclass: that would have no fixed weights
            vars(strategy).update(weigh=weighed, remember=remembered)
            _, rounds = run(strategy, MemoryGrid(clients), rounds=3, initial_arrays=initial)
            assert all(r.coefficients for r in rounds), name
            assert max(seen) <= 8**2 < D, name


def test_a_parameter_may_have_the_name_of_a_statistic() -> None:
    arrays = {
        "own.running_mean": np.ones(3, np.float32),
        "w": np.ones(2, np.float32),
        "running_var": np.array(1),
    }
    assert Layout(arrays).buffers == ("own.running_mean",)
    assert Layout(arrays, buffers=()).trainable == ("own.running_mean", "w")
    assert Layout(arrays, buffers=("w",)).trainable == ("own.running_mean",)
