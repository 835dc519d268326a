"""A run's state is one value: written down and read back it has the same bytes, and a run that is
killed between any two of its transitions goes on from it to the same bits.
"""

import ast
import copy
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from fairbloom.rounds.accounts import AccountInRun
from fairbloom.rounds.cohort import Cohort, Decision, Kept, Past
from fairbloom.rounds.method import FrozenMethodError
from fairbloom.rounds.participation import Participations
from fairbloom.rounds.run_state import Average, NormHistory, RunState, ScoreSoFar
from fairbloom.rounds.server_optimizer import Moments
from fairbloom.rounds.states import States
from fairbloom.rounds.vectors import Vectors
from fairbloom.strategies import FairStrategy, FedAvg
from fairbloom.system.values import decode, encode
from tests.checkout import BESIDE, ROOT
from tests.federation import KINDS, OPTIONS, MemoryGrid, initial_model, quadratics, record, run
from tests.strategies.helpers import ARGUMENTS, make

ROUNDS = 3
# Between Flower's hooks, a process may end after each of these.
BOUNDARIES = ("drawn", "stepped", "evaluated")


def bits(value: object) -> object:
    """Return a value in a form that shows whether it has changed."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return [(repr(key), bits(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [bits(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if is_dataclass(value):
        return type(value).__name__, bits(vars(value))
    return repr(value)


WHOLE = st.integers(0, 99)
NUMBERS = st.floats()
FLAT = arrays(np.float64, st.integers(0, 3))
OF_MODEL = arrays(np.float32, st.integers(1, 3))
NAMES = st.text(max_size=3)
SETS = st.frozensets(NAMES, max_size=2)
MEMORIES = st.dictionaries(NAMES, WHOLE | NUMBERS | OF_MODEL | st.lists(NAMES), max_size=2)
AVERAGES = st.builds(Average, WHOLE, st.dictionaries(NAMES, FLAT, max_size=2))
NORMS = st.builds(NormHistory, st.dictionaries(WHOLE, FLAT, max_size=2), NUMBERS)
MOMENTS = st.builds(Moments, OF_MODEL, st.none() | OF_MODEL)
ROWS = st.builds(
    lambda values, extreme: Vectors.of(values, needs_float64=extreme), OF_MODEL, st.booleans()
)
LABELS = st.builds(Kept, NAMES, WHOLE)
ACCOUNTS = st.builds(AccountInRun, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


def by_name(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(NAMES, values, max_size=2)


STATES = st.builds(States, by_name(WHOLE), by_name(WHOLE))
SCORES = st.builds(ScoreSoFar, st.none() | NUMBERS, WHOLE, WHOLE)
PARTICIPATIONS = st.builds(Participations, by_name(WHOLE), by_name(WHOLE), by_name(WHOLE))
WRITTEN: dict[type, st.SearchStrategy[Any]] = {
    RunState: st.builds(
        RunState,
        finished_rounds=WHOLE,
        steps=WHOLE,
        skipped=WHOLE,
        changed=st.booleans(),
        unchanged=WHOLE,
        evaluated_round=WHOLE,
        unevaluated=WHOLE,
        memory=MEMORIES,
        kept=st.dictionaries(LABELS, ROWS, max_size=2),
        first_counts=by_name(NUMBERS),
        first_tests=by_name(WHOLE),
        average=AVERAGES,
        norms=NORMS,
        roster=by_name(NUMBERS),
        moments=st.none() | MOMENTS,
        states=STATES,
        spent=SETS,
        halted=SETS,
        accounts=by_name(ACCOUNTS),
        with_state=SETS,
        configs=by_name(MEMORIES),
        wrappers=st.lists(MEMORIES, max_size=2).map(tuple),
        best=SCORES,
        stopping=SCORES,
        losses=by_name(NUMBERS),
        participations=PARTICIPATIONS,
    ),
    Average: AVERAGES,
    NormHistory: NORMS,
    Moments: MOMENTS,
    States: STATES,
    Kept: LABELS,
    Vectors: ROWS,
    AccountInRun: ACCOUNTS,
    Participations: PARTICIPATIONS,
    ScoreSoFar: SCORES,
}


@pytest.mark.parametrize("kind", WRITTEN)
@settings(max_examples=30)
@given(data=st.data())
def test_a_written_value_is_read_back_as_it_was(kind: type, data: st.DataObject) -> None:
    value = data.draw(WRITTEN[kind])
    assert bits(decode(kind, encode(value))) == bits(value)


@pytest.mark.parametrize("name", KINDS)
def test_a_state_is_read_back_with_the_same_bytes(name: str) -> None:
    strategy = make(name, ARGUMENTS[name][0], **OPTIONS)
    written = list[Any]()
    run(
        strategy,
        rounds=ROUNDS,
        evaluate_fn=lambda number, arrays: written.append(encode(strategy.run_state.in_memory())),
    )
    assert len(written) == ROUNDS + 1
    for state in written:
        assert bits(encode(decode(RunState, copy.deepcopy(state)))) == bits(state)


def hooked(name: str, kills: frozenset[tuple[int, str]] = frozenset()) -> tuple[object, bytes]:
    """Return the state and the model after rounds by Flower's hooks.

    After each of `kills`, a round and a boundary, the strategy is made anew from the state alone.
    """

    def begin(state: dict[str, Any] | None) -> FairStrategy:
        strategy = make(name, ARGUMENTS[name][0], **OPTIONS)
        if state is not None:
            strategy.load_state_dict(state)
        return strategy

    grid = MemoryGrid(quadratics(5))
    config = ConfigRecord()
    strategy = begin(None)
    model: ArrayRecord = record(initial_model())
    for number in range(1, ROUNDS + 1):
        messages = strategy.configure_train(number, model, config, grid)
        if (number, "drawn") in kills:
            strategy = begin(strategy.state_dict())
            messages = strategy.configure_train(number, model, config, grid)
        after, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        model = model if after is None else after
        if (number, "stepped") in kills:
            strategy = begin(strategy.state_dict())
        messages = strategy.configure_evaluate(number, model, config, grid)
        strategy.aggregate_evaluate(number, grid.send_and_receive(messages))
        if (number, "evaluated") in kills:
            strategy = begin(strategy.state_dict())
    numbers = b"".join(array.numpy().tobytes() for array in model.values())
    return bits(strategy.state_dict()), numbers


@cache
def undisturbed(name: str) -> tuple[object, bytes]:
    return hooked(name)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=4)
@given(
    kills=st.frozensets(st.tuples(st.integers(1, ROUNDS), st.sampled_from(BOUNDARIES)), min_size=1)
)
def test_a_kill_between_any_two_transitions_changes_no_bit(
    name: str, kills: frozenset[tuple[int, str]]
) -> None:
    assert hooked(name, kills) == undisturbed(name)


def test_one_module_makes_states_and_few_enter_them() -> None:
    """Others call a transition by its name."""
    making, entering = set(), set()
    for room in ("fairbloom", *BESIDE):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    called = ast.unparse(node.func)
                    if called == "RunState" or (
                        called == "replace" and "state" in ast.unparse(node.args[0])
                    ):
                        making.add(path.relative_to(ROOT))
                    if called.endswith("method.enter"):
                        entering.add(path.relative_to(ROOT))
    assert making <= {Path("fairbloom/rounds/run_state.py"), Path("fairbloom/rounds/method.py")}
    assert entering == {
        Path("fairbloom/rounds/loop.py"),
        Path("fairbloom/rounds/sums.py"),  # what a sum's two questions cost
        Path("strategies/strategy.py"),  # what Flower's hooks have changed
        Path("server/run_folder/recorder.py"),  # what it knows of recorded rounds
        Path("server/app.py"),  # counts and accounts of devices, before the first round
    }


# A method does not change -------------------------------------------------------------------------


class Mixin:
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.late = 1


class Mixed(Mixin, FedAvg):
    """A method with a constructor of another class."""


class Outer(FedAvg):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.own = 2


@pytest.mark.parametrize("kind", [FedAvg, Outer, Mixed])
def test_a_method_is_frozen_after_its_outermost_constructor(kind: type[FedAvg]) -> None:
    method = kind(seed=3)
    with pytest.raises(FrozenMethodError, match=rf"{kind.__name__}.seed = 4: .*memory.*config"):
        method.seed = 4
    assert method.seed == 3


def test_memory_that_is_changed_in_weigh_is_refused() -> None:
    class Changing(FedAvg):
        def weigh(self, cohort: Cohort) -> Decision:
            cohort.past.memory["seen"] = 1  # type: ignore[index]
            return Decision(cohort.prior)

    with pytest.raises(TypeError, match="does not support item assignment"):
        run(Changing(), rounds=1)


def test_rows_beyond_all_numbers_skip_the_round_and_end_no_run() -> None:
    """A client's numbers may make them so: one bad client ends no run."""

    class Endless(FedAvg):
        def weigh(self, cohort: Cohort) -> Decision:
            row = np.full(cohort.rows, np.inf if cohort.round == 2 else 1.0)
            c = np.append(cohort.prior, np.zeros(len(cohort.memory)))
            return Decision(c, {"seen": cohort.round}, {Kept("row", cohort.round): row})

    method = Endless()
    _, (first, second, third) = run(method, rounds=ROUNDS)
    assert [bool(each.coefficients) for each in (first, second, third)] == [True, False, True]
    assert method.past == Past({"seen": 3}, (Kept("row", 3),))


def test_a_decision_that_keeps_no_memory_leaves_it() -> None:
    class Once(FedAvg):
        def weigh(self, cohort: Cohort) -> Any:
            if cohort.round == 1:
                return Decision(cohort.prior, {"first": cohort.size})
            return cohort.prior

    method = Once()
    run(method, rounds=ROUNDS)
    assert method.past.memory == {"first": 6}
    assert np.isfinite(method.run_state.norms.longest_step)
