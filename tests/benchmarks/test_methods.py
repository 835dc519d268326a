"""The comparison of all methods at their best: every method takes part, and the table has what was tested."""

from pathlib import Path

import pytest

import fairbloom
from benchmarks.methods import BASELINE, TRIED, WORKLOADS, arms_of, rows_of
from fairbloom.experiments.arms import parse_arms
from fairbloom.protocol.names import BETWEEN_GROUPS
from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings, check_used
from fairbloom.strategies import METHODS

SMALL: dict[str, Value] = {
    **{"task": "digits", "model": "logistic", "clients": 4, "partition": "iid", "num-rounds": 3, "evaluate-every": 0},
}


def test_every_method_takes_part_with_parameters_that_it_has() -> None:
    assert set(TRIED) == {name for name, method in METHODS.items() if not method.needs & BETWEEN_GROUPS}
    for workload in WORKLOADS.values():
        for arm in parse_arms(arms_of(workload), workload):
            Settings.of({**workload, **arm.config})
            check_used(workload, [arm.method], str(workload["task"]))


@pytest.mark.slow
def test_the_table_has_gains_of_the_chosen_arms(tmp_path: Path) -> None:
    methods = [f"{BASELINE}(learning-rate=0.1)", "ditto(lam=0.1)", "ditto(lam=1)"]
    found = fairbloom.search(methods=methods, seeds=3, out=tmp_path, settings=SMALL, progress=False)
    assert found.comparison is not None
    rows = {str(row["method"]): row for row in rows_of(found.comparison)}
    (chosen,) = (label for label in found.found.best if "Ditto" in label)
    assert set(rows) == {found.baseline, chosen, found.tested(chosen)}
    assert float(str(rows[chosen]["mean"])) == pytest.approx(found.comparison.spread(chosen, "mean")[0], abs=0.06)
    assert rows[found.baseline]["gain, mean"] == ""
    assert str(rows[chosen]["gain, worst client"]).startswith("+0.0")  # its global model is FedAvg's
    assert "to" in str(rows[found.tested(chosen)]["gain, mean"])
