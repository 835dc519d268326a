"""FairFed in whole runs: the gap between two groups falls against FedAvg, and every engine makes
the same of it."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.run import Run, load
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.tables.helpers import grouped


def write_sites(folder: Path, seed: int, sites: int = 8) -> Path:
    """Write tables of sites at the two largest of which women count as ill only where it is
    severe."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    for k in range(sites):
        rows, strict = (1200, True) if k < 2 else (300, False)
        woman = random.random(rows) < 0.5
        severity = random.normal(size=rows)
        noise = random.normal(size=rows)
        ill = severity + 0.3 * random.normal(size=rows) > 0.0
        if strict:
            ill &= ~woman | (severity > 1.0)
        cells = zip(
            np.where(woman, "female", "male"),
            severity,
            noise,
            np.where(ill, "yes", "no"),
            strict=True,
        )
        lines = [
            "sex,severity,noise,target",
            *(f"{sex},{a:.4f},{b:.4f},{y}" for sex, a, b, y in cells),
        ]
        (folder / f"site-{k}.csv").write_text("\n".join(lines) + "\n")
    return folder


def ended(out: Path, **changes: Any) -> Run:
    plain: dict[str, Any] = {
        "fraction": 1.0,
        "device": "cpu",
        "evaluate-every": 0,
        "num-rounds": 15,
    }
    given = {key.replace("_", "-"): value for key, value in changes.items()}
    return load(simulate(Settings.of(plain | given | {"out": str(out)})))


def gap(run: Run) -> float:
    """Return the equal opportunity difference over all clients' test examples, in points."""
    rows = run.gaps.query("client == 'all clients' and score == 'true-positive-rate'")
    return float(rows["gap"].item())


@pytest.mark.slow
def test_the_gap_between_groups_falls_at_every_seed(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for seed in range(3):
        with subtests.test(seed=seed):
            data = write_sites(tmp_path / f"data-{seed}", seed)
            shared = {
                "task": "csv",
                "data-dir": str(data),
                "schema": grouped(data, "sex"),
                "seed": seed,
                "learning-rate": 0.1,
            }
            plain = ended(tmp_path / f"fedavg-{seed}", method="fedavg", **shared)
            fair = ended(
                tmp_path / f"fairfed-{seed}", method="fairfed", **{"fairfed.beta": 0.2}, **shared
            )
            assert gap(fair) < 0.5 * gap(plain)
            before = plain.column("coefficient")
            after = fair.column("coefficient")
            assert all(after[name] < before[name] for name in ("site-0", "site-1"))


def test_data_without_groups_end_the_run_with_a_remedy(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    data = write_sites(tmp_path / "data", 0, sites=2)
    shared: dict[str, Any] = {
        "task": "csv",
        "data-dir": str(data),
        "method": "fairfed",
        "num-rounds": 1,
    }
    for without in ("", grouped(data, "severity>=-1", target="noise")):
        with subtests.test(without=without):
            with pytest.raises(FairbloomError, match="fairness between groups"):
                ended(tmp_path / "refused", **shared, schema=without)
            assert not (tmp_path / "refused").exists()
    for number, remedy in enumerate((["sex"], ["severity>=0.5", "sex"])):
        with subtests.test(number=number, remedy=remedy):
            assert ended(tmp_path / str(number), **shared, schema=grouped(data, *remedy)).finished


def test_a_client_with_one_group_takes_part_by_its_accuracy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_sites(tmp_path / "data", 0, sites=3)
    lines = (data / "site-2.csv").read_text().splitlines()
    men = [lines[0], *(line for line in lines if line.startswith("male"))]
    (data / "site-2.csv").write_text("\n".join(men) + "\n")
    with caplog.at_level(logging.WARNING, "flwr"):
        shared = {"task": "csv", "data_dir": str(data), "method": "fairfed", "num_rounds": 3}
        run = ended(tmp_path / "run", **shared, schema=grouped(data, "sex"))
    assert "refused" not in caplog.text
    assert run.rounds["replies_used"].tolist() == [3, 3, 3]
