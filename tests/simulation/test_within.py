"""How far a round is: each engine says how many of the round's clients have trained, and the numbers stay the same."""

from pathlib import Path

from fairbloom.simulation.run import simulate

from .helpers import small


def test_an_engine_says_how_many_clients_have_trained(tmp_path: Path) -> None:
    for engine in ("loop", "stacked", "workers"):
        said: list[tuple[int, int]] = []
        settings = small(tmp_path / engine, engine=engine, fraction=0.8, num_rounds=3)
        simulate(settings, on_trained=lambda done, of, said=said: said.append((done, of)))  # type: ignore[misc]
        assert {of for _, of in said} == {4}
        assert all(0 <= done <= 4 for done, _ in said)
        ends = [place for place in range(1, len(said)) if said[place][0] < said[place - 1][0]]
        assert len(ends) in (0, 2)  # within a round it never falls; an engine that trains all at once says little
        if engine != "stacked":
            assert len({done for done, _ in said}) >= 2
