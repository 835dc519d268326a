"""The one driver: rows, each with a grid, are run with several seeds, whatever is made of them."""

import multiprocessing
import statistics
import time
from pathlib import Path

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.run import load
from fairbloom.experiments.studies.driver import Failures, run_study
from fairbloom.experiments.studies.pool import is_done
from fairbloom.experiments.studies.study import Candidate, Study
from fairbloom.protocol.settings import Value

SMALL: dict[str, Value] = {"clients": 4, "num-rounds": 2, "device": "cpu", "partition": "iid"}
RATES = (1e-6, 0.5)


def sweep(out: Path) -> Study:
    """Return a study with a grid, as a sweep would have it: two rows, of which one has a candidate that fails."""
    rows = [[at(method, rate) for rate in RATES] for method in ("fedavg", "fedfv")]
    rows.append([at("fedprox", 1e300), at("fedprox", 0.5)])
    return Study(rows, range(2), out, grid_seeds=1)


def at(method: str, rate: float) -> Candidate:
    config = {**SMALL, "method": method, "learning-rate": rate, "unused-rounds": 1}
    config |= {"fedprox.mu": 0.1} if method == "fedprox" else {}
    return Candidate(f"{method} at {rate:g}", config, f"{method}-{rate:g}", {"learning-rate": rate})


def test_a_grid_is_searched_and_its_best_point_is_run_with_all_seeds(tmp_path: Path) -> None:
    study, done = sweep(tmp_path), list[None]()

    def collect(failures: Failures) -> tuple[Failures, list[list[str]]]:
        return failures, [[planned.candidate.name for planned in study.choose(row)] for row in study.rows]

    failures, chosen = run_study(study, 2, lambda: done.append(None), collect)
    assert chosen == [["fedavg at 0.5"] * 2, ["fedfv at 0.5"] * 2, ["fedprox at 0.5"] * 2]
    assert {path.name for path in failures} == {"fedprox-1e+300-seed0"}
    assert len(done) == study.count == 9
    means = [statistics.fmean(load(tmp_path / "runs" / f"fedavg-{rate:g}-seed0").final().values()) for rate in RATES]
    assert means[1] > means[0]
    assert not (tmp_path / "runs" / "fedavg-1e-06-seed1").exists()


def test_a_study_whose_runs_all_fail_names_the_first(tmp_path: Path) -> None:
    study = Study([[at("fedprox", 1e300)]], range(1), tmp_path)
    with pytest.raises(FairbloomError, match=r"fedprox at 1e\+300 with seed 0: "):
        run_study(study, 1, lambda: None, lambda failures: failures)


def test_an_error_ends_the_other_runs_despite_a_forked_process(tmp_path: Path) -> None:
    """Such a process has a copy of all that the caller holds open, and lives on."""
    config: dict[str, Value] = {**SMALL, "method": "fedavg", "num-rounds": 1}
    short = Candidate("short", config, "short")
    long = Candidate("long", config | {"num-rounds": 4000, "evaluate-every": 4000}, "long")
    study = Study([[each] for each in (short, long)], range(1), tmp_path)
    other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))

    def fork_and_fail() -> None:
        other.start()
        raise FairbloomError("enough")

    try:
        with pytest.raises(FairbloomError, match="enough"):
            run_study(study, 2, fork_and_fail, lambda failures: failures)
        assert other.is_alive()
        assert [is_done(settings) for settings in study.first_runs().values()] == [True, False]
    finally:
        other.kill()
        other.join()
