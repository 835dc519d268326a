"""Every benchmark does its work: the plain loop, the comparison of all methods, the commands of
docs/measured.md."""

import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.measuring import Side, in_turn
from benchmarks.methods import (
    GIVEN,
    TRIED,
    WORKLOADS,
    Arms,
    Workload as MethodWorkload,
    arms_of,
    replace_rows,
    rows_of,
    search_workload,
    seeds_of,
    write_rows,
)
from benchmarks.networks import Transformer, pfl_cnn
from benchmarks.plain import train_round
from benchmarks.research import Research
from benchmarks.tables import read_csv
from benchmarks.workloads import Workload
from fairbloom.errors import FairbloomError
from fairbloom.experiments.arms import parse_arms
from fairbloom.experiments.results.compared_scores import personal_label
from fairbloom.protocol.settings import Value
from fairbloom.server.checkpoint import load_model
from fairbloom.server.settings import Settings, check_used
from fairbloom.simulation.run import simulate
from fairbloom.strategies import METHODS
from fairbloom.tasks import load_task
from tests.checkout import ROOT
from tests.commands import fork_workers


def test_rows_of_a_workload_take_the_place_of_its_former_ones(tmp_path: Path) -> None:
    for name, x in (("shards", "1"), ("digits", "2"), ("shards", "3")):
        replace_rows(tmp_path / "a.csv", name, [{"workload": name, "x": x}])
    assert [row["x"] for row in read_csv(tmp_path / "a.csv")] == ["2", "3"]


def test_the_plain_loop_and_a_run_end_with_the_same_model(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    workload = Workload("benchmarks.workloads:vectors", "logistic", clients=5, drawn=5, batch=0)
    config = workload.settings(num_rounds=3, learning_rate=0.5, device="cpu").run_config()
    settings = Settings.of({**config, "engine": "loop", "out": str(tmp_path / "run")})
    ours, _ = load_model(simulate(settings) / "model.safetensors")
    task = load_task(settings.run_config())
    model = task.model()
    parts = [TensorDataset(*task.splits(name).train[:]) for name in task.clients]
    before = {name: array.clone() for name, array in model.state_dict().items()}
    for _ in range(3):
        train_round(model, task, parts, settings)
    for name, array in model.state_dict().items():
        with subtests.test(name=name, array=array):
            assert not torch.equal(array, before[name])
            np.testing.assert_allclose(ours[name], array.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", WORKLOADS)
def test_arms_are_few_and_have_values_that_methods_declare(name: str) -> None:
    workload = WORKLOADS[name]
    shared = {**workload.settings, **({"data-dir": "data"} if workload.table else {})}
    for method in workload.methods:
        texts = arms_of(workload, method, 0.1)
        assert 1 <= len(texts) <= workload.most_arms
        for arm in parse_arms(texts, shared):
            Settings.of({**shared, **arm.config})
            check_used(shared, [arm.method], str(shared["task"]))
    for method, values in TRIED.items():
        declared = METHODS[method].tries
        assert math.prod(map(len, declared.values())) > 4 or method == "fcfl"
        for parameter, tried in values.items():
            assert {*tried} <= {*declared.get(parameter, tried)}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_given_arms_are_accepted(given: Arms) -> None:
    for arm in parse_arms(given.arms, given.settings):
        Settings.of({**given.settings, **arm.config})


@pytest.mark.slow
def test_the_table_has_gains_of_the_chosen_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_workers(monkeypatch)
    settings: dict[str, Value] = {
        "task": "digits",
        "model": "logistic",
        "clients": 4,
        "partition": "iid",
        "num-rounds": 3,
        "evaluate-every": 0,
    }
    workload = MethodWorkload(settings, methods=("fedavg", "ditto"), seeds=2, tests=3)
    found = search_workload(workload, tmp_path / "small", jobs=1)
    assert found.comparison is not None
    assert (len(found.study.seeds), len(found.study.found.fresh)) == (2, 3)
    rows = {str(row["method"]): row for row in rows_of(found.comparison)}
    (chosen,) = (label for label in found.study.found.best if "Ditto" in label)
    personal = personal_label(chosen)
    assert [*rows] == [found.baseline, personal]  # Ditto's common model is FedAvg's
    assert float(str(rows[personal]["mean"])) == pytest.approx(
        found.comparison.estimate(personal, "mean").value, abs=0.06
    )
    assert rows[found.baseline]["gain, mean"] == ""
    assert "to" in str(rows[personal]["gain, mean"])

    write_rows(tmp_path / "tables" / "seeds.csv", [*seeds_of(found)])
    table = pandas.read_csv(tmp_path / "tables" / "seeds.csv")
    assert sorted(table["seed"]) == sorted([*found.study.found.fresh] * 2)
    assert table[table["method"] == "ditto"]["mean"].mean() == pytest.approx(
        found.comparison.estimate(personal, "mean").value
    )


@pytest.mark.parametrize(
    ("make", "shape", "outputs", "parameters"),
    [(pfl_cnn, (3, 32, 32), 10, 1_626_442), (Transformer, (80,), 80, 10_739_792)],
)
def test_the_networks_have_the_size_that_is_compared(
    make: Callable[[tuple[int, ...], int], nn.Module],
    shape: tuple[int, ...],
    outputs: int,
    parameters: int,
) -> None:
    assert sum(each.numel() for each in make(shape, outputs).parameters()) == parameters


def test_sides_are_measured_in_turn_with_the_rounds_asked_for() -> None:
    measured = list[tuple[str, int]]()

    def side(name: str) -> Side:
        def run(settings: Settings) -> float:
            measured.append((name, settings.num_rounds))
            if name == "unable":
                raise FairbloomError("not this one")
            return 0.5

        return run

    sides = {name: side(name) for name in ("one", "unable", "other")}
    found, refused = in_turn(sides, Settings.of({}), repeats=2, rounds=3)
    # the first round is not measured
    assert measured == [("one", 4), ("unable", 4), ("other", 4), ("one", 4), ("other", 4)]
    assert {name: each.values for name, each in found.items()} == {
        "one": (0.5, 0.5),
        "other": (0.5, 0.5),
    }
    assert refused == {"unable": "not this one"}


@pytest.mark.slow
def test_a_missing_pfl_research_is_named_with_its_command(tmp_path: Path) -> None:
    workload = Workload("benchmarks.workloads:vectors", "logistic", clients=2, drawn=2, batch=0)
    with pytest.raises(FairbloomError, match=r"No module named 'pfl'.*-r benchmarks/pfl.txt"):
        Research(1, tmp_path)(workload.settings(device="cpu", num_rounds=2))


def test_the_script_of_a_card_names_its_options() -> None:
    done = subprocess.run(["benchmarks/gpu.sh", "--card"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "unknown option --card: there are --device, --rounds and --repeats\n"


def test_the_parts_of_the_script_end_within_six_minutes() -> None:
    limits = re.findall(r"seconds=\(([\d ]+)\)", Path(ROOT, "benchmarks/gpu.sh").read_text())
    assert [sum(map(int, each.split())) <= 360 for each in limits] == [True, True]  # card, CPU


# Options of each command with which it does little.
COMMANDS: Mapping[str, str] = {
    "engines": "--ray --workloads logistic --engines loop --seconds 0.1 --repeats 1",
    "memory": "--workloads logistic --engines loop --rounds 3",
    "scale": "--rounds 4",
    "aggregation": "--gigabytes 0.05 --repeats 1",
    "deployed": "--clients 1 --rounds 3",
    "pfl": "--workloads cnn --engines loop --rounds 1 --repeats 1 --processes 1",
}


def documented() -> list[str]:
    speed = Path(ROOT, "docs", "measured.md").read_text().partition("\n## Speed and memory\n")[2]
    return sorted({*re.findall(r"python -m benchmarks\.(\w+)", speed)})


def test_each_documented_command_has_a_small_run() -> None:
    assert documented() == sorted(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", documented())
def test_a_documented_command_does_its_work(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", *shlex.split(COMMANDS[name])]
    # no TMPDIR under tmp_path: Ray's sockets need a short path
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) > 2
