"""The seam: whoever computes, a run is the same to the bit."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord

from fairbloom.client.app import app
from fairbloom.rounds.round import Round
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import METHODS
from fairbloom.tasks import TASKS

from .implementations import CASES, IMPLEMENTATIONS, Outcome, bits, method_and_model, outcome, settings_of
from .normed import INFO

EXPECTED, *OTHERS = IMPLEMENTATIONS


@pytest.fixture(autouse=True, scope="module")
def one_thread_and_a_task_with_buffers() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    TASKS[INFO.name] = INFO
    yield
    del TASKS[INFO.name]
    torch.set_num_threads(threads)


every_case = pytest.mark.parametrize("case", CASES)


@pytest.mark.slow
@every_case
@pytest.mark.parametrize("implementation", OTHERS)
def test_all_who_compute_answer_the_same_to_the_bit(implementation: str, case: str) -> None:
    expected, other = outcome(EXPECTED, case), outcome(implementation, case)
    assert len(other.seen) == len(expected.seen)
    for (what, answer), (expected_what, expected_answer) in zip(other.seen, expected.seen, strict=True):
        assert what == expected_what
        assert [key for key in answer if answer[key] != expected_answer[key]] == []
    assert other.models() == expected.models()
    assert plain(other.state) == plain(expected.state)


def plain(state: Any) -> Any:
    """Return a method's state with its arrays as bytes."""
    if isinstance(state, np.ndarray):
        return state.tobytes()
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return [plain(value) for value in state] if isinstance(state, list) else state


def about(finished: Round) -> dict[str, Any]:
    """Return all of a round but the words of its refusals, which are each implementation's own."""
    average = None if finished.average is None else bits(finished.average)
    told = vars(finished) | {
        "arrays": bits(finished.arrays),
        "average": average,
        "refused": list(finished.refused),
    }
    return told | {key: list(told[key].items()) for key in ("coefficients", "metrics")}


@pytest.mark.slow
@every_case
@pytest.mark.parametrize("implementation", OTHERS)
def test_all_who_compute_end_in_the_same_rounds(implementation: str, case: str) -> None:
    for other, expected in zip(outcome(implementation, case).rounds, outcome(EXPECTED, case).rounds, strict=True):
        assert about(other) == about(expected)


@pytest.mark.slow
@every_case
def test_flowers_start_gives_the_rounds_of_the_loop(case: str) -> None:
    """With a user's own evaluation of the same metrics; the loop asks for a loss in evaluated rounds alone."""
    settings, rounds = settings_of(case), list[Round]()
    method, model = method_and_model(settings)
    result = method.start(
        InProcessGrid(app, settings.run_config(), settings.clients),
        ArrayRecord({name: Array(array) for name, array in model.items()}),
        settings.num_rounds,
        timeout=60.0,
        train_config=ConfigRecord({"measure": ["loss-before"]} if settings.evaluate_every else {}),
        evaluate_config=ConfigRecord({"measure": ["train-loss"]}),
        on_round=rounds.append,
    )
    expected = outcome(EXPECTED, case)
    for finished, looped in zip(rounds, expected.rounds, strict=True):
        forms = {name: getattr(finished, name) for name in ("arrays", "average")}
        numpys = {name: form and {key: array.numpy() for key, array in form.items()} for name, form in forms.items()}
        told = about(Round(**vars(finished) | numpys))
        due = about(looped)
        if not settings.evaluate_every:  # the loop measures in the last round, which it alone knows to be evaluated
            told, due = ({**each, "metrics": [], "train_metrics": {}} for each in (told, due))
        if method.frozen:  # Flower's own loop sends whole models
            told, due = ({**each, "bytes_sent": 0, "bytes_received": 0} for each in (told, due))
        assert told == due
    assert {name: array.numpy().tobytes() for name, array in result.arrays.items()} == {
        name: array.tobytes() for name, array in expected.rounds[-1].evaluated.items()
    }


def replies(case: str, what: str) -> list[dict[str, Any]]:
    return [answer for kind, answer in outcome(EXPECTED, case).seen if kind == what]


def test_the_cases_meet_what_they_are_there_for() -> None:
    """A case in which nothing is refused, kept or measured would compare nothing."""
    assert {case for case in CASES if case in METHODS} == set(METHODS)
    assert any(answer["refused"] for answer in replies("stragglers that are left out", "trained"))
    assert any(finished.refused for finished in outcome(EXPECTED, "replies that are out of proportion").rounds)
    assert all(answer["snapshots"] for answer in replies("drfa", "trained"))
    assert any("loss-personal" in dict(answer["metrics"][0]) for answer in replies("ditto", "evaluated"))
    assert len(replies("evaluated after the last round only", "evaluated")) == 1
    assert all(
        "accuracy-validation" in dict(answer["metrics"][0]) for answer in replies("validation examples", "evaluated")
    )
    assert {name for answer in replies("few clients train", "trained") for name in answer["names"]} == {
        "client-0",
        "client-1",
        "client-4",
    }
    for case in (case for case in CASES if case.startswith("averaged")):
        first, *others = outcome(EXPECTED, case).rounds
        assert bits(first.average) == bits(first.arrays)
        assert all(bits(other.average) != bits(other.arrays) for other in others)
    rates = [
        {dict(told)["learning-rate"] for told in answer["metrics"]}
        for answer in replies("a rate that decays", "trained")
    ]
    assert rates == [{0.1}, {0.05}, {0.025}]
    assert stirred(outcome(EXPECTED, "a model with buffers")) == {"1.running_mean", "1.running_var"}


def stirred(run: Outcome) -> set[str]:
    """Return the float buffers that differ after a round from those after the one before."""
    first, second, *_ = run.models()
    return {name for name, array in second.items() if "running" in name and array != first[name]}
