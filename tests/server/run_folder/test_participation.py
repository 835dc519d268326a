"""Who was asked, answered and counted, and how far it pointed along the steps."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fairbloom import load
from fairbloom.experiments.results.run import Run
from fairbloom.rounds.round import Contribution, Round
from fairbloom.server.run_folder.participation import COLUMNS, Participations
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate


def round_of(number: int, missing: tuple[str, ...] = (), **contributions: float) -> Round:
    """Return a round of a, b and c; those with a contribution were used."""
    return Round(
        number=number,
        participants=("a", "b", "c"),
        refused={},
        missing=missing,
        coefficients=dict.fromkeys(contributions, 0.5),
        contributions={
            name: Contribution(cosine, 10.0 * cosine) for name, cosine in contributions.items()
        },
        arrays={},
        metrics={},
        train_metrics={},
        evaluations={},
        bytes_sent=0,
        bytes_received=0,
    )


def rows(found: Participations) -> dict[str, list[object]]:
    names = ("a", "b", "c", "d")
    return dict(zip(names, map(list, zip(*found.cells(names), strict=True)), strict=True))


def test_rounds_are_counted_and_cosines_averaged() -> None:
    found = Participations()
    found.add(round_of(1, a=1.0, b=-0.5))  # c is refused
    found.add(round_of(2, missing=("b",), a=0.5))
    assert [*COLUMNS][:3] == ["rounds_asked", "rounds_answered", "rounds_counted"]
    assert rows(found) == {
        "a": [2, 2, 2, 0.75, 7.5],
        "b": [2, 1, 1, -0.5, -5.0],
        "c": [2, 2, 0, None, None],
        "d": [0, 0, 0, None, None],
    }


def test_a_round_that_nobody_answers_was_asked_for() -> None:
    """Such a round has no participants."""
    found = Participations()
    found.add(replace(round_of(1, missing=("a", "b")), participants=()))
    assert [row[:3] for row in rows(found).values()] == [[1, 0, 0], [1, 0, 0], [0] * 3, [0] * 3]


def test_the_state_continues_to_the_same_numbers() -> None:
    whole = Participations()
    begun = Participations()
    for number in (1, 2, 3):
        whole.add(round_of(number, a=0.1 * number, b=1.0 / 3.0))
        if number < 3:
            begun.add(round_of(number, a=0.1 * number, b=1.0 / 3.0))
    continued = Participations(json.loads(json.dumps(begun.state_dict())))
    continued.add(round_of(3, a=0.1 * 3, b=1.0 / 3.0))
    assert rows(continued) == rows(whole)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("taken") / "run"
    settings = {"clients": 6, "num-rounds": 4, "fraction": 0.5, "seed": 3, "out": str(out)}
    return load(simulate(Settings.of(settings)))


def test_the_table_has_the_rounds_of_each_client(run: Run) -> None:
    last = run.clients[run.clients["round"] == 4].set_index("client")
    taken = run.clients.groupby("client")["participated"].sum()
    for column in ("rounds_asked", "rounds_answered", "rounds_counted"):
        assert last[column].to_dict() == taken.to_dict()
    trained = last[last["rounds_counted"] > 0]
    assert trained["contribution"].between(-1.0, 1.0).all()
    assert last["contribution"].isna().equals(last["rounds_counted"] == 0)
    assert np.isfinite(trained["product_with_others_step"]).all()
