"""The engine `ray` on clusters: whose they are, what becomes of their machines, and what a run sets.

What it has in common with forked workers is tested in test_dispatch.py.
"""

import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster as Machines

from fairbloom.errors import FairbloomError
from fairbloom.protocol.terms import Terms
from fairbloom.simulation.dispatch import ray as engine
from fairbloom.simulation.dispatch.dispatch import Call
from fairbloom.simulation.dispatch.ray import RayClients
from fairbloom.simulation.loop import LoopClients
from fairbloom.strategies import FedAvg
from tests.deploy.flower import wait_until

from .harmed import FIVE
from .helpers import Outcome, both_of, config_of, is_gone, model_of, run

pytestmark = [
    pytest.mark.federation,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray.*"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Return a cluster that somebody else has started, of one machine with two processor cores."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        head = {"num_cpus": 2, "include_dashboard": False, "temp_dir": folder}
        with pytest.MonkeyPatch.context() as patch:
            Path(folder, "ray").mkdir()
            patch.setenv("RAY_TMPDIR", folder)  # its address lies there; in /tmp other runs of Ray would join it
            cluster = Machines(initialize_head=True, head_node_args=head)
        yield cluster
        cluster.shutdown()
        with catch_warnings(action="ignore", category=ResourceWarning):  # Ray leaves /dev/null open
            gc.collect()


@pytest.fixture
def cluster(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """Return the cluster, with its address at RAY_ADDRESS."""
    monkeypatch.setenv("RAY_ADDRESS", machines.address)
    return machines


# Clusters -------------------------------------------------------------------------------------------------------------


def test_an_address_that_does_not_answer_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(FairbloomError, match=rf"^RAY_ADDRESS = '{address}': .*refused\): start Ray there"):
            RayClients(FedAvg(), config_of())
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_nothing_of_a_run_stays_on_anothers_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_of(task="tests.simulation.harmed:tied")
    with closing(RayClients(FedAvg(), config)) as clients:
        assert clients.processes == 2
        clients.train(FIVE, model_of(config), Terms(server_round=1))
    workers = [int(path.stem) for path in tmp_path.glob("*.process")]
    assert len(workers) == 2
    assert all(map(is_gone, workers))
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    "changes",
    [
        {
            "method": "fedfa",
            "average_models": True,
            "training_clients": "client-0,client-1,client-4",
            "reported_loss": "batches",
            "attack": "accuracy",
            "attackers": "client-1",
            "learning_rate_decay": 0.5,
            "validation_share": 0.2,
            "personal_lambda": 0.5,
            "server_optimizer": "yogi",
            "server_optimizer_lr": 0.05,
        },
        {"method": "fedavg", "pooled": True},
        {"method": "scaffold", "personal_lambda": 0.5},
        {"method": "fedfv", "attack": "stale", "attackers": "client-1", "defence": "bucketing", "fraction": 0.6},
    ],
    ids=["rounds as set", "pooled data", "states of clients", "an attack and a defence"],
)
def test_what_a_run_sets_of_its_rounds_holds_on_a_cluster(tmp_path: Path, changes: dict[str, Any]) -> None:
    """With convolutions, whose clients are computed one by one there too."""
    expected, found = (
        Outcome.of(run(tmp_path / engine, engine=engine, model="cnn", num_rounds=2, **changes))
        for engine in ("loop", "ray")
    )
    assert not found.differences(expected)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_frozen_parameters_are_put_on_a_cluster_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, put = list[Any](), ray.put
    monkeypatch.setattr(engine.ray, "put", lambda value: there.append(value) or put(value))
    changes = {"model": "tests.rounds.adapted:Adapted", "method": "fedmgdaplus", "personal_lambda": 0.5}
    expected, found = (
        Outcome.of(run(tmp_path / engine, engine=engine, num_rounds=3, **changes)) for engine in ("loop", "ray")
    )
    assert not found.differences(expected)
    assert sum("second.weight" in value for value in there if isinstance(value, dict)) == 1
    calls = [value for value in there if isinstance(value, Call)]
    assert {"up.weight" in call.model for call in calls if call.work != "count"} == {True}
    assert not any("second.weight" in call.model for call in calls)


@pytest.mark.slow
def test_a_lost_machines_shard_is_computed_by_another(
    cluster: Machines, monkeypatch: pytest.MonkeyPatch, lost_workers: Callable[[], set[str]]
) -> None:
    """There is no place for another worker then; and for a while, a cluster counts the places of a lost machine."""
    config = config_of(batch_size=0)
    model, terms = model_of(config), Terms(server_round=1, measure=("loss-before",))
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    with closing(RayClients(FedAvg(), config, block=3)) as clients:
        assert clients.processes == 3
        before = both_of(clients, FIVE, model, terms)
        monkeypatch.setattr(engine, "PLACE_SECONDS", 1.0)
        cluster.remove_node(node, allow_graceful=False)
        assert both_of(clients, FIVE, model, terms) == before
        updates = clients.train(FIVE, model, terms).updates.vectors.blocks[0]
    assert len(lost_workers()) == 1
    loop = LoopClients(FedAvg(), config).train(FIVE, model, terms)
    np.testing.assert_allclose(updates, loop.updates.vectors.blocks[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("key", ["task", "model", "optimizer", "partition", "client-rule"])
def test_what_only_a_notebook_has_is_told_with_the_remedy(key: str) -> None:
    with pytest.raises(FairbloomError, match=rf"^{key} = '__main__:net': .* name it mine:net$"):
        RayClients(FedAvg(), {**config_of(), key: "__main__:net"})


@pytest.mark.slow
def test_ctrl_c_ends_all_that_a_run_has_started_in_silence(tmp_path: Path) -> None:
    words = ["run", "--clients", "5", "--rounds", "1000000", "--set", "engine=ray", "--out", str(tmp_path / "run")]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    with (tmp_path / "said").open("w") as said:
        command = subprocess.Popen(
            [str(Path(sys.executable).with_name("fairbloom")), *words],
            env=environment | {"NO_COLOR": "1"},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            rounds = tmp_path / "run" / "rounds.csv"
            wait_until(lambda: rounds.exists() or command.poll() is not None, (tmp_path / "said").read_text)
            started = descendants(command.pid)
            folders = {word for process in started for word in words_of(process) if "/fairbloom-ray-" in word}
            os.killpg(command.pid, signal.SIGINT)  # as a terminal does
            assert command.wait(300.0) == 130
        finally:
            with suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
            command.wait()
    assert len(started) >= 4, "the run has started no Ray"
    assert all(map(is_gone, started))
    assert folders
    assert not [folder for folder in folders if Path(f"/tmp/{folder.partition('/tmp/')[2].split('/')[0]}").exists()]
    assert not [line for line in (tmp_path / "said").read_text().splitlines() if "ray" in line.lower()]


def descendants(process: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = list(children.get(process, []))
    for child in found:
        found += children.get(child, [])
    return found


def words_of(process: int) -> list[str]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/cmdline").read_text().split("\0")
    return []
