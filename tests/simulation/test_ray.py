"""The engine `ray`: the bits, words and refusals of the loop on a cluster, whatever becomes of a worker."""

import gc
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np
import pytest
import ray
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.cluster_utils import Cluster as Machines

from fairbloom.errors import FairbloomError
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import Replies, Trained
from fairbloom.rounds.method import Method
from fairbloom.rounds.updates import Model
from fairbloom.simulation.clients import LocalClients
from fairbloom.simulation.dispatch import ray as engine
from fairbloom.simulation.dispatch.balance import balance, home
from fairbloom.simulation.dispatch.ray import RayClients
from fairbloom.simulation.loop import LoopClients
from fairbloom.strategies import DRFA, FedAvg
from fairbloom.tasks import load_task
from tests.rounds.implementations import rows_of

from .helpers import Outcome, run, small, table

pytestmark = [
    pytest.mark.federation,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray.*"),
]

FIVE = [f"client-{k}" for k in range(5)]

TASK = '''
"""Clients of very different sizes, a model with buffers and a weight of two names, and workers that come to harm."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

from fairbloom.tasks import Examples, Splits, Task

FIVE = [f"client-{k}" for k in range(5)]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, inputs):
        return self.second(torch.relu(self.first(self.norm(inputs))))


def tied(setup):
    def model():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setup.seed)
            return Tied()

    def splits(client):
        if client == "client-1" and Path("no-data").exists():
            raise OSError("its disk is gone")
        random = torch.Generator().manual_seed(FIVE.index(client))
        count = 8 * (1 + 4 * FIVE.index(client))
        inputs = torch.randn(count, 4, generator=random)
        targets = torch.full((count,), FIVE.index(client) % 4)
        return Splits(Examples(inputs, targets, torch.arange(4, count)), Examples(inputs[:4], targets[:4]))

    def loss(outputs, targets):
        Path(f"{os.getpid()}.process").touch()
        with suppress(FileNotFoundError):
            Path("die-once").unlink()
            os.kill(os.getpid(), signal.SIGKILL)  # the one that has removed it
        if Path("deadly").exists() and (targets == 3).all():
            os.kill(os.getpid(), signal.SIGKILL)
        return (outputs - nn.functional.one_hot(targets, 4)).square().sum(1)

    return Task(tuple(FIVE), model, loss, splits)
'''

MINE: dict[str, Any] = {"task": "task_on_ray:tied", "batch_size": 8, "momentum": 0.9}
BUFFERS: Any = {"buffers": ("norm.running_mean", "norm.running_var"), "shared": {"second.weight": "first.weight"}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a user's task."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "task_on_ray.py").write_text(TASK)
    return folder


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
def cluster(machines: Machines, place: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """Work in the folder of the task, with the cluster at RAY_ADDRESS."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("RAY_ADDRESS", machines.address)
    return machines


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], set[str]]]:
    """Return what the log warns of a lost worker."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.WARNING, logger="flwr")
    yield lambda: {each.getMessage() for each in caplog.records if each.getMessage().startswith("a worker ended")}
    logger.removeHandler(caplog.handler)


def config_of(**changes: Any) -> dict[str, Any]:
    return dict(small("", **changes).run_config())


def model_of(config: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy().copy() for name, tensor in load_task(config).model().state_dict().items()}


def told(replies: Replies) -> dict[str, Any]:
    """Return all that replies tell, the words of refusals too."""
    updates = {}
    if isinstance(replies, Trained):
        updates = {"updates": rows_of(replies.updates), "snapshots": rows_of(replies.snapshots)}
    metrics = [(name, list(report.items())) for name, report in replies.metrics.items()]
    return {"metrics": metrics, "refused": replies.refused.reasons, **updates}


def both_of(clients: LocalClients, names: list[str], model: Model, terms: Terms) -> list[dict[str, Any]]:
    """Return what clients tell of a round's training, and of its evaluation."""
    measured = replace(terms, measure=("train-loss",))
    trained = told(clients.train(names, model, terms))  # type: ignore[attr-defined]
    return [trained, told(clients.evaluate(names, model, measured, names[:2]))]  # type: ignore[attr-defined]


def gone(process: int) -> bool:
    """Return whether a process ends within ten seconds."""
    ends = time.monotonic() + 10.0
    while time.monotonic() < ends:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def placed(sizes, shards):
    lists = balance([*sizes.values()], shards, [home(name, shards) for name in sizes])
    return [[[*sizes][k] for k in sorted(l)] for l in lists]


# Who computes what ----------------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(0, 50), max_size=40), shards=st.integers(1, 5))
def test_every_client_is_in_one_shard_and_none_has_much_more_than_its_fair_part(sizes: list[int], shards: int) -> None:
    clients = {f"client-{k}": size for k, size in enumerate(sizes)}
    lists = placed(clients, shards)
    assert len(lists) == shards
    assert sorted(name for some in lists for name in some) == sorted(clients)
    for some in lists:
        assert some == [name for name in clients if name in some]
        assert sum(clients[name] for name in some) <= sum(sizes) / shards + max(sizes, default=0)


def test_a_client_is_in_its_own_shard_where_that_has_not_its_fair_part_already() -> None:
    clients = {f"client-{k}": 7 for k in range(1000)}
    lists = placed(clients, 4)
    moved = [name for shard, some in enumerate(lists) for name in some if home(name, 4) != shard]
    assert [len(some) for some in lists] == [250] * 4
    assert len(moved) == sum(max(0, sum(home(name, 4) == shard for name in clients) - 250) for shard in range(4)) < 100


# As in the loop -------------------------------------------------------------------------------------------------------


@pytest.mark.runtimes
def test_rounds_on_a_cluster_are_to_the_bit_those_of_the_loop(cluster: Machines, place: Path) -> None:
    """A user's own task; buffers, shared weights, personal models, snapshots; growing and shrinking cohorts."""
    config = config_of(**MINE)
    model, rounds = model_of(config), list[tuple[Method, Terms, list[str]]]()
    for names in (FIVE, FIVE[2:4], [], FIVE[:3], FIVE):
        personal = FedAvg(**BUFFERS, personal_lambda=0.5)
        rounds.append((personal, personal.terms(len(rounds) + 1), names))
    halfway = DRFA(**BUFFERS, local_steps=3)
    rounds.append((halfway, halfway.terms(6), FIVE[1:]))
    (place / "no-data").touch()
    found, expected = list[Any](), list[Any]()
    with closing(RayClients(FedAvg(**BUFFERS), config)) as clients:
        assert clients.processes == 2
        for outcomes, each in ((found, clients), (expected, LoopClients(FedAvg(**BUFFERS), config))):
            for method, terms, names in rounds:
                each.method = method
                outcomes.append(both_of(each, names, model, terms))
    (place / "no-data").unlink()
    assert found == expected
    assert "OSError: its disk is gone" in found[0][0]["refused"]["client-1"]
    assert len(found[5][0]["snapshots"]) == 2
    processes = [int(path.stem) for path in place.glob("*.process") if path.stem != str(os.getpid())]
    assert len(processes) == 2
    assert all(map(gone, processes)), "a worker is still on a cluster that is not ours"
    assert not ray.is_initialized()


@pytest.mark.runtimes
@pytest.mark.usefixtures("cluster")
def test_a_run_that_goes_on_is_to_the_bit_that_of_the_loop(tmp_path: Path) -> None:
    """The workers do not stack convolutions."""
    changes: dict[str, Any] = {"model": "cnn", "method": "fedavg", "personal_lambda": 0.5, "fraction": 0.6}
    run(tmp_path / "ray", engine="ray", **changes, num_rounds=3)
    folder = run(tmp_path / "ray", engine="ray", **changes, num_rounds=6)
    assert not Outcome.of(folder).differences(Outcome.of(run(tmp_path / "loop", engine="loop", **changes)))
    assert "test_accuracy_of_personal_model" in table(folder / "clients.csv")[0]


# Workers that are lost ------------------------------------------------------------------------------------------------


@pytest.mark.runtimes
@pytest.mark.usefixtures("cluster")
def test_a_shard_whose_worker_is_lost_is_computed_again_and_a_client_that_ends_workers_is_refused_alone(
    place: Path, warnings: Callable[[], set[str]]
) -> None:
    """Personal models too: the first round's are the start of the second's."""
    config, method = config_of(**MINE, personal_lambda=0.5), FedAvg(**BUFFERS, personal_lambda=0.5)
    loop, model = LoopClients(method, config), model_of(config)
    expected = [both_of(loop, FIVE, model, method.terms(number)) for number in (1, 2)]
    with closing(RayClients(method, config)) as clients:
        found = [both_of(clients, FIVE, model, method.terms(1))]
        (place / "die-once").touch()
        found.append(both_of(clients, FIVE, model, method.terms(2)))
        assert found == expected
        (warned,) = warnings()
        assert re.match("a worker ended .* before it had computed a shard of [1-4] clients, which is computed again", warned)
        (place / "deadly").touch()
        trained = clients.train(FIVE, model, method.terms(3))
        (place / "deadly").unlink()
        assert list(trained.metrics) == ["client-0", "client-1", "client-2", "client-4"]
        assert trained.refused.reasons["client-3"].startswith("computing it has ended ")
        others = told(clients.train(FIVE, model, method.terms(4)))
    loop.train([name for name in FIVE if name != "client-3"], model, method.terms(3))
    assert others == told(loop.train(FIVE, model, method.terms(4)))


@pytest.mark.runtimes
def test_a_lost_machine_has_its_shard_computed_by_another_one_and_stacked_clients_agree_with_the_loop(
    cluster: Machines, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], set[str]]
) -> None:
    """There is no place for another worker then."""
    config = config_of(batch_size=0)
    model, terms = model_of(config), Terms(server_round=1, measure=("loss-before",))
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    with closing(RayClients(FedAvg(), config, block=3)) as clients:
        assert clients.processes == 3
        before = both_of(clients, FIVE, model, terms)
        monkeypatch.setattr(engine, "PATIENCE", 1.0)
        cluster.remove_node(node, allow_graceful=False)
        assert both_of(clients, FIVE, model, terms) == before
        updates = clients.train(FIVE, model, terms).updates.vectors.blocks[0]
    assert len(warnings()) == 1
    loop = LoopClients(FedAvg(), config).train(FIVE, model, terms)
    np.testing.assert_allclose(updates, loop.updates.vectors.blocks[0], rtol=0, atol=1e-6)


# Clusters -------------------------------------------------------------------------------------------------------------


def test_an_address_that_does_not_answer_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(FairbloomError, match=rf"^RAY_ADDRESS = '{address}': .*refused\): start Ray there"):
            RayClients(FedAvg(), config_of())
    assert not ray.is_initialized()


@pytest.mark.runtimes
@pytest.mark.parametrize(
    "changes",
    [
        {
            "method": "fedfa",
            "average_models": True,
            "training_clients": "client-0,client-1,client-4",
            "reported_loss": "batches",
            "misreporting_clients": "client-1",
            "reported_loss_bias": 1.0,
            "learning_rate_decay": 0.5,
            "validation_share": 0.2,
            "personal_lambda": 0.5,
        },
        {"method": "fedavg", "pooled": True},
    ],
    ids=["rounds as set", "pooled data"],
)
def test_what_a_run_sets_of_its_rounds_holds_on_a_cluster(
    cluster: Machines, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """With convolutions, whose clients are computed one by one there too."""
    expected, found = (
        Outcome.of(run(tmp_path / engine, engine=engine, model="cnn", num_rounds=2, **changes))
        for engine in ("loop", "ray")
    )
    assert not found.differences(expected)


@pytest.mark.parametrize("key", ["task", "model"])
def test_what_only_a_notebook_has_is_told_with_the_remedy(key: str) -> None:
    with pytest.raises(FairbloomError, match=rf"^{key} = '__main__:net': .* name it mine:net$"):
        RayClients(FedAvg(), {**config_of(), key: "__main__:net"})


@pytest.mark.runtimes
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
            ends = time.monotonic() + 60.0
            while not (tmp_path / "run" / "rounds.csv").exists() and command.poll() is None:
                assert time.monotonic() < ends, (tmp_path / "said").read_text()
                time.sleep(0.1)
            started = descendants(command.pid)
            folders = {word for process in started for word in words_of(process) if "/fairbloom-ray-" in word}
            os.killpg(command.pid, signal.SIGINT)  # as a terminal does
            assert command.wait(30.0) == 130
        finally:
            with suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
            command.wait()
    assert len(started) >= 4, "the run has started no Ray"
    assert all(map(gone, started))
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
