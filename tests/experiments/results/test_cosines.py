"""The columns of cosines between updates."""

from pathlib import Path

from fairbloom import compare
from tests.simulation.helpers import table


def test_only_methods_that_measure_cosines_have_their_columns(tmp_path: Path) -> None:
    compare(
        methods="fedavg,fedfv", seeds=1, out=tmp_path, clients=5, rounds=11, jobs=1, progress=False
    )
    assert [
        bool(row["cosine"]) for row in table(tmp_path / "runs" / "fedavg-seed0" / "rounds.csv")
    ] == [True] * 10 + [False]
    assert "cosine" not in table(tmp_path / "runs" / "fedfv-seed0" / "rounds.csv")[0]
