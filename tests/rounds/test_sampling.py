"""A sampling scheme of a user's own: who trains in a round, the same for all methods."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.errors import FairbloomError
from fairbloom.rounds.sampling import History, SamplingError
from fairbloom.server.settings import Settings, check_used
from fairbloom.strategies import METHODS, FedAvg, FedFV, find_method
from tests.strategies.helpers import ARGUMENTS, MemoryGrid, initial_model, make, quadratics, record

from .helpers import OPTIONS, bits, run

DRAWN_ITSELF = {"drfa"}


def round_robin(number: int, names: Sequence[str], count: int, random: np.random.Generator) -> list[str]:
    return [names[((number - 1) * count + k) % len(names)] for k in range(count)]


def thirds(number: int, names: Sequence[str], count: int, random: np.random.Generator) -> Sequence[str]:
    return random.permutation(names)[: max(count // 2, 1)]


def test_the_scheme_says_who_trains_for_all_methods_alike() -> None:
    expected = [("site-0", "site-1", "site-2", "site-3"), ("site-0", "site-1", "site-4", "site-5")]
    for name in METHODS.keys() - DRAWN_ITSELF:
        _, rounds = run(make(name, ARGUMENTS[name][0], sampling=round_robin, **OPTIONS), rounds=2)
        assert [r.participants for r in rounds] == expected


def test_a_scheme_with_uniform_draws_gives_uniforms_bits() -> None:
    result, rounds = run(FedFV(**OPTIONS))
    drawn = {r.number: list(r.participants) for r in rounds}
    again, _ = run(FedFV(sampling=lambda number, names, count, random: drawn[number], **OPTIONS))
    assert bits(again.arrays) == bits(result.arrays)
    named, _ = run(FedFV(sampling="uniform", **OPTIONS))
    assert bits(named.arrays) == bits(result.arrays)


def test_draws_depend_on_seed_and_round_alone() -> None:
    def finished(seed: int) -> tuple[Any, list[Any], list[dict[str, Any]]]:
        strategy, states, rounds = FedAvg(sampling=thirds, fraction_train=1.0, seed=seed), [], []

        def note(each: Any) -> None:
            rounds.append(each)
            states.append(strategy.state_dict())

        return strategy.start(MemoryGrid(quadratics(6)), record(initial_model()), 5, on_round=note), rounds, states

    result, rounds, states = finished(3)
    assert len({r.participants for r in rounds}) > 1
    assert [r.participants for r in finished(4)[1]] != [r.participants for r in rounds]
    again, rest = run(
        FedAvg(sampling=thirds, fraction_train=1.0, seed=3),
        rounds=5,
        initial_arrays=rounds[1].arrays,
        resume=states[1],
    )
    assert [r.participants for r in rest] == [r.participants for r in rounds[2:]]
    assert bits(again.arrays) == bits(result.arrays)


def test_a_scheme_gets_the_training_clients_and_the_number() -> None:
    asked = []

    def note(number: int, names: Sequence[str], count: int, random: np.random.Generator) -> Sequence[str]:
        asked.append((number, names, count))
        return names[:1]

    run(FedAvg(sampling=note, training_clients=("site-4", "site-1", "site-2"), fraction_train=0.5), rounds=2)
    assert asked == [(number, ("site-1", "site-2", "site-4"), 2) for number in (1, 2)]


def fails(*arguments: Any) -> Sequence[str]:
    raise ZeroDivisionError("no clients\nto divide")


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "none": (lambda number, names, count, random: [], "in round 1 it drew none of 6 clients"),
    "somebody else": (
        lambda *given: ["site-1", "site-9"],
        "in round 1 it drew 'site-9', which is none of the 6 clients",
    ),
    "twice": (lambda *given: ["site-1", "site-2", "site-1"], "in round 1 it drew 'site-1' twice"),
    "a name, letter by letter": (lambda *given: "site-1", "in round 1 it drew '-', which is none"),
    "places": (lambda *given: [0, 1], "in round 1 it drew '0', which is none"),
    "no list": (lambda *given: None, "in round 1 it failed with TypeError"),
    "an error": (fails, "'fails': in round 1 it failed with ZeroDivisionError: no clients to divide"),
    "too few arguments": (lambda names: names, "in round 1 it failed with TypeError"),
}


@pytest.mark.parametrize("case", WRONG)
def test_impossible_participants_end_the_run_with_the_scheme(case: str) -> None:
    draw, said = WRONG[case]
    with pytest.raises(SamplingError, match=f"sampling = .*{said}"):
        run(FedAvg(sampling=draw))


def test_an_error_in_a_later_round_names_it() -> None:
    with pytest.raises(SamplingError, match="in round 3 it drew none"):
        run(FedAvg(sampling=lambda number, names, *rest: names if number < 3 else []), rounds=4)


def test_a_method_that_draws_itself_refuses_a_scheme_by_name() -> None:
    for name in DRAWN_ITSELF:
        with pytest.raises(
            ValueError, match=f"{find_method(name).__name__} draws its clients itself: leave sampling out"
        ):
            make(name, ARGUMENTS[name][0], sampling=round_robin)
        make(name, ARGUMENTS[name][0], sampling="uniform")


# By what the run knows of its clients ---------------------------------------------------------------------------------


def worst_served(
    number: int, names: Sequence[str], count: int, random: np.random.Generator, history: History
) -> Sequence[str]:
    """Draw all clients once, and then those with the highest losses."""
    new = [name for name in names if name not in history.participations]
    return new[:count] or sorted(names, key=lambda name: history.losses[name])[-count:]


def test_a_scheme_may_draw_by_losses_and_participations() -> None:
    seen: list[History] = []

    def note(number: int, names: Any, count: int, random: Any, history: History) -> Sequence[str]:
        seen.append(history)
        return worst_served(number, names, count, random, history)

    options: dict[str, Any] = {"fraction_train": 0.5, "seed": 3}
    strategy, states, rounds = FedAvg(sampling=note, **options), [], []

    def keep(each: Any) -> None:
        rounds.append(each)
        states.append(strategy.state_dict())

    result = strategy.start(MemoryGrid(quadratics(6)), record(initial_model()), 5, on_round=keep)
    assert seen[0] == History()
    drawn = [r.participants for r in rounds]
    assert drawn[:2] == [("site-0", "site-1", "site-2"), ("site-3", "site-4", "site-5")]
    assert dict(seen[2].participations) == dict.fromkeys((f"site-{k}" for k in range(6)), 1)
    assert dict(seen[2].losses) == {
        name: r.train_metrics[name]["loss-before"] for r in rounds[:2] for name in r.participants
    }
    assert set(drawn[2]) == set(sorted(seen[2].losses, key=lambda name: seen[2].losses[name])[-3:])
    with pytest.raises(TypeError):
        seen[2].losses["site-0"] = 9.0  # type: ignore[index]
    again, rest = run(
        FedAvg(sampling=worst_served, **options), rounds=5, initial_arrays=rounds[2].arrays, resume=states[2]
    )
    assert [r.participants for r in rest] == drawn[3:]
    assert bits(again.arrays) == bits(result.arrays)
    assert "history" not in FedAvg(sampling=round_robin).state_dict()


# By an import string --------------------------------------------------------------------------------------------------

MINE = """
def last(number, names, count, random):
    return names[-count:]


share = 0.5
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"sampling_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return name


def test_a_run_names_its_scheme_by_an_import_string(mine: str) -> None:
    for method in (*(METHODS.keys() - DRAWN_ITSELF), "torchjd:upgrad"):
        settings = Settings.of({"method": method, "sampling": f"{mine}:last"})
        assert settings.strategy().choose(("a", "b", "c"), 2, 1) == ["b", "c"]
    _, rounds = run(FedAvg(sampling=f"{mine}:last", fraction_train=0.5), rounds=1)
    assert rounds[0].participants == ("site-3", "site-4", "site-5")


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ("unifrom", "sampling must be 'uniform' or a function as 'my_module:draw', got 'unifrom'"),
        ("no_such_module:draw", "sampling = 'no_such_module:draw': there is no module no_such_module"),
        ("{mine}:first", "has no first; it has last, share"),
        ("{mine}:share", "must be a function of number, names, count and random, got float"),
    ],
)
def test_a_scheme_that_is_none_is_refused_before_the_run(mine: str, sampling: str, said: str) -> None:
    with pytest.raises(FairbloomError, match=said):
        Settings.of({"sampling": sampling.format(mine=mine)})


def test_where_data_are_pooled_nobody_is_drawn() -> None:
    with pytest.raises(FairbloomError, match=r"sampling has no effect with pooled"):
        check_used({"pooled": True, "sampling": "x:y"}, ["fedavg"], "digits")


def test_clients_get_to_know_nothing_of_the_scheme(mine: str) -> None:
    from fairbloom.client.settings import accepted_settings

    assert "sampling" not in accepted_settings(Settings.of({"sampling": f"{mine}:last"}).run_config())
