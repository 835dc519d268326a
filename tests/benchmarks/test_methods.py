"""The comparison of all methods: every method that there is takes part, and what cannot be run is said in the table."""

from pathlib import Path

import pytest

import fairbloom
from benchmarks.methods import BASELINE, OF_GROUPS, WORKLOADS, costs_of, rows_of
from fairbloom.experiments.arms import parse_arms
from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings, check_used
from fairbloom.strategies import METHODS

SMALL: dict[str, Value] = {
    **{"task": "digits", "model": "logistic", "clients": 4, "partition": "iid", "num-rounds": 3, "evaluate-every": 0},
    **{"learning-rate": 0.1},
}


def test_every_method_takes_part_with_parameters_that_it_has() -> None:
    for name, workload in WORKLOADS.items():
        methods = workload.methods()
        lacking = set(METHODS) - {words.partition("(")[0] for words in (*methods, *OF_GROUPS)} - {BASELINE}
        assert not lacking, name
        assert set(workload.changed) <= set(methods)
        for words in (BASELINE, *methods.values()):
            (arm,) = parse_arms(words, workload.settings)
            Settings.of({**workload.settings, **arm.config})
            check_used(workload.settings, [arm.method], str(workload.settings["task"]))
        assert {words.partition("(")[0] for words in workload.methods(["fedavg", "term"])} == {"fedavg", "term"}


@pytest.mark.slow
def test_the_table_has_gains_and_costs(tmp_path: Path) -> None:
    methods = ["fedavg(server-optimizer=avgm)", "ditto(lam=0.1)"]
    arms = [parse_arms(words)[0] for words in methods]
    compared = fairbloom.compare(
        methods=[BASELINE, *methods], baseline=BASELINE, seeds=3, out=tmp_path, settings=SMALL, progress=False
    )
    rows = list(rows_of(compared, arms, costs_of(arms, SMALL, 1)))
    names = ["FedAvg", "FedAvg (server-optimizer=avgm)", "Ditto (lam=0.1)", "Ditto (lam=0.1, personal)"]
    assert [row["method"] for row in rows] == names
    momentum, ditto = rows[1], rows[2]
    assert float(str(momentum["mean"])) == pytest.approx(compared.spread(names[1], "mean")[0], abs=0.06)
    assert "to" in str(momentum["gain, mean"])
    assert momentum["bytes"] == ditto["bytes"] == "1"
    assert float(str(momentum["time"])) > 0.0
    assert str(ditto["gain, worst client"]).startswith("+0.0")  # its global model is FedAvg's
