"""The comparison of all methods: every method that there is takes part, and what cannot be run is said in the table."""

from pathlib import Path

import pytest

from benchmarks.methods import BASELINE, OF_GROUPS, WORKLOADS, Running, Workload, notes_of, rows_of, summary_of
from fairbloom.experiments.arms import parse_arms
from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings, check_used
from fairbloom.strategies import METHODS

SMALL: dict[str, Value] = {
    **{"task": "digits", "model": "logistic", "clients": 4, "partition": "iid", "num-rounds": 3, "evaluate-every": 0},
    **{"learning-rate": 0.1},
}


class Small(Workload):
    """Three methods, of which one is not there."""

    @property
    def methods(self) -> tuple[str, ...]:
        return ("fedavg(server-optimizer=avgm)", "neverheardof(a=1)", "ditto(lam=0.1)")


def test_every_method_takes_part_with_parameters_that_it_has() -> None:
    for name, workload in WORKLOADS.items():
        named = {words.partition("(")[0] for words in workload.methods} | {BASELINE}
        assert set(METHODS) - named <= {words.partition("(")[0] for words in OF_GROUPS}, (
            f"{name} lacks {set(METHODS) - named}"
        )
        assert not set(workload.changed.values()) - set(workload.methods)
        for words in (BASELINE, *workload.methods):
            if words.partition("(")[0] in METHODS:
                (variant,) = parse_arms(words, workload.settings)
                Settings.of({**workload.settings, **variant.config})
                check_used(workload.settings, [variant.method], str(workload.settings["task"]))


@pytest.mark.slow
def test_the_table_has_gains_and_costs_and_says_what_is_missing(tmp_path: Path) -> None:
    running = Running(Small("Four clients", 3, SMALL), tmp_path, 3, None, 1, repeats=1)
    comparison = running.compare(None)
    rows = list(rows_of(comparison, running))
    assert [row["method"] for row in rows] == [
        *("FedAvg", "FedAvg (server-optimizer=avgm)", "neverheardof(a=1)"),
        *("Ditto (lam=0.1)", "Ditto (lam=0.1, personal)"),
    ]
    momentum, ditto = rows[1], rows[3]
    assert float(str(momentum["mean"])) == pytest.approx(
        comparison.spread(str(momentum["method"]), "mean")[0], abs=0.06
    )
    assert "to" in str(momentum["gain, mean"])
    assert momentum["bytes"] == ditto["bytes"] == "1"
    assert float(str(momentum["time"])) > 0.0
    assert str(ditto["gain, worst client"]).startswith("+0.0")  # its global model is FedAvg's
    assert rows[2]["mean"] == "not run"
    notes = notes_of(comparison, running)
    assert any("neverheardof(a=1): is not part of this version" in note for note in notes)
    (row,) = [each for each in summary_of({"small": (comparison, running)}) if each["method"] == "ditto(lam=0.1)"]
    assert str(rows[4]["gain, worst client"]).replace("**", "").startswith(str(row["small"]).strip("*"))
