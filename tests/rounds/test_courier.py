"""A grid of ours is asked what it can do; any other carries messages and does nothing besides."""

import inspect
from typing import Any

import pytest
from flwr.serverapp import Grid

from fairbloom.rounds.courier import Courier, FlowerCourier, courier_of
from tests.federation import MemoryGrid, quadratics


class Noting(MemoryGrid):
    """Notes each call with its arguments, and returns its name."""

    def __init__(self) -> None:
        super().__init__(quadratics(2))
        self.calls = list[tuple[str, Any]]()

    def __getattribute__(self, name: str) -> Any:
        if name not in Grid.__abstractmethods__ or name == "run":
            return super().__getattribute__(name)

        def call(*arguments: Any, **named: Any) -> str:
            self.calls.append((name, (*arguments, *named.values())))
            return name

        return call


class Own(MemoryGrid, Courier):
    """A grid of ours."""


def test_a_grid_of_ours_is_taken_as_it_is() -> None:
    grid = Own(quadratics(2))
    assert courier_of(grid) is grid


@pytest.mark.parametrize("method", sorted(Grid.__abstractmethods__ - {"run"}))
def test_each_call_reaches_the_grid_with_its_arguments(method: str) -> None:
    grid = Noting()
    names = list(inspect.signature(getattr(Grid, method)).parameters)[1:]
    given = dict(zip(names, range(len(names)), strict=True))
    got = getattr(courier_of(grid), method)(**given)
    assert grid.calls == [(method, tuple(range(len(names))))]
    assert got == (None if method == "set_run" else method)


def test_the_run_is_that_of_the_grid() -> None:
    grid = MemoryGrid(quadratics(2))
    vars(grid)["run"] = run = object()
    assert courier_of(grid).run is run


def test_what_a_grid_cannot_do_has_no_effect() -> None:
    grid = Noting()
    courier = courier_of(grid)
    assert isinstance(courier, FlowerCourier)
    courier.save(1)
    courier.note_wait("awaited")
    courier.wait_for_replies(["1"], 1, 1.0)
    assert courier.find_owed(["1", "2"]) == ["1", "2"]
    assert courier.most_nodes is None
    assert courier.contexts == {}
    assert [courier.simulated, courier.keeps_replies, courier.sees_replies] == [False] * 3
    assert grid.calls == []


def test_the_grid_of_flowers_simulation_is_known_by_its_name() -> None:
    simulation = type("InMemoryGrid", (MemoryGrid,), {})
    assert courier_of(simulation(quadratics(2))).simulated
