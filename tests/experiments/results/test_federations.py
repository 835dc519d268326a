"""Which kind of federation a comparison is of."""

from pathlib import Path
from typing import Any

import pytest

from fairbloom import compare
from fairbloom.experiments import api
from fairbloom.experiments.results import federations
from fairbloom.experiments.results.federations import COLUMNS, PAGE
from tests.experiments.helpers import fairbloom
from tests.simulation.helpers import table

SMALL: dict[str, Any] = {"clients": 5, "rounds": 3, "jobs": 1, "progress": False}
KNOWN = "workload,cosine_low,cosine,cosine_high\nalike,0.7,0.8,0.9\nunlike,-0.2,0,0.2\n"


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "known.csv").write_text(KNOWN)
    monkeypatch.setattr(federations, "TABLE", tmp_path / "known.csv")


@pytest.mark.usefixtures("known")
def test_compare_names_the_nearest_federation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line has the means over rounds and seeds of FedAvg's runs."""
    found = compare(methods="fedfv,fedavg", seeds=2, out=tmp_path / "cmp", **SMALL)
    rows = [
        row
        for seed in (0, 1)
        for row in table(tmp_path / "cmp" / "runs" / f"fedavg-seed{seed}" / "rounds.csv")
    ]
    means = [sum(float(row[name]) for row in rows) / len(rows) for name in COLUMNS]
    assert found.federation is not None
    assert found.federation.cosines == pytest.approx(means)
    distances = {
        name: sum((a - b) ** 2 for a, b in zip(means, map(float, numbers), strict=True))
        for name, *numbers in (line.split(",") for line in KNOWN.split()[1:])
    }
    assert found.federation.nearest == min(distances, key=lambda name: distances[name])
    fairbloom("show", str(tmp_path / "cmp"))
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("Kind of fed")
    ]
    assert f"{means[1]:.2f} (quartiles {means[0]:.2f} and {means[2]:.2f})" in line
    assert f"nearest is {found.federation.nearest} with " in line
    assert line.endswith(f"{PAGE}.")
    assert found.as_json["federation"]["nearest"] == found.federation.nearest


def test_without_fedavg_no_kind_is_named(tmp_path: Path) -> None:
    found = compare(methods="fedfv,term", seeds=1, out=tmp_path, **SMALL)
    assert found.federation is None
    assert "Kind of federation" not in repr(api.load(tmp_path)._repr_html_())


def test_only_methods_that_measure_cosines_have_their_columns(tmp_path: Path) -> None:
    compare(methods="fedavg,fedfv", seeds=1, out=tmp_path, **SMALL | {"rounds": 11})
    rows = table(tmp_path / "runs" / "fedavg-seed0" / "rounds.csv")
    assert [bool(row["cosine"]) for row in rows] == [True] * 10 + [False]
    assert "cosine" not in table(tmp_path / "runs" / "fedfv-seed0" / "rounds.csv")[0]
