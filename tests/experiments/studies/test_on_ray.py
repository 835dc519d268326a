"""A study on a Ray cluster of two nodes has the tables of processes, and gives GPUs to runs."""

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import pytest

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import SettingsError
from fairbloom.strategies import Cohort, FedAvg, FloatArray

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray.*"),
]

SMALL: dict[str, Any] = {
    "clients": 4,
    "rounds": 2,
    "seeds": 2,
    "model": "logistic",
    "device": "cpu",
    "progress": False,
}


class Noting(FedAvg):
    """Notes on which node of the cluster it has weighed."""

    def weigh(self, cohort: Cohort) -> FloatArray:
        if ray.is_initialized():
            Path(f"node-{ray.get_runtime_context().get_node_id()}").touch()
        return super().weigh(cohort)


class Other(Noting):
    """The same under another name."""


class Failing(FedAvg):
    def weigh(self, cohort: Cohort) -> FloatArray:
        raise FairbloomError("it does not weigh")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Return a cluster of two nodes, of which one has a GPU by its own word."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(
        prefix="ray-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        with pytest.MonkeyPatch.context() as patch:
            Path(folder, "ray").mkdir()
            # its address lies there; in /tmp other runs of Ray would join it
            patch.setenv("RAY_TMPDIR", folder)
            # tests hide cards, and a node with one that is hidden does not start
            patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            cluster = Cluster(
                initialize_head=True,
                head_node_args={"num_cpus": 1, "include_dashboard": False, "temp_dir": folder},
            )
            cluster.add_node(num_cpus=1, num_gpus=1)
            cluster.wait_for_nodes()
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield cluster
        cluster.shutdown()
        with catch_warnings(action="ignore", category=ResourceWarning):  # Ray leaves /dev/null open
            gc.collect()


@pytest.fixture
def here(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory of the driver and of all runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_comparison_on_two_nodes_has_the_tables_of_processes(
    here: Path, subtests: pytest.Subtests
) -> None:
    methods = [Noting, Other]
    fairbloom.compare(methods=methods, out="cluster", pool="ray", **SMALL)
    fairbloom.compare(methods=methods, out="processes", jobs=1, **SMALL)
    assert len(list(here.glob("node-*"))) == 2
    assert not ray.is_initialized()
    tables = sorted(path.name for path in Path("processes").glob("*.csv"))
    assert tables
    for name in tables:
        with subtests.test(name=name):
            assert Path("cluster", name).read_bytes() == Path("processes", name).read_bytes()


def test_runs_with_a_gpu_go_where_one_is(here: Path) -> None:
    fairbloom.compare(methods=[Noting], out="cluster", pool="ray", gpus_per_run=0.5, **SMALL)
    assert len(list(here.glob("node-*"))) == 1
    with pytest.raises(FairbloomError, match=r"gpus-per-run = 2: .* more than 1: lower it"):
        fairbloom.compare(methods=[Noting], out="other", pool="ray", gpus_per_run=2.0, **SMALL)
    with pytest.raises(SettingsError, match="gpus-per-run = 1 has no effect without pool ray"):
        fairbloom.compare(methods=[Noting], out="other", gpus_per_run=1.0, **SMALL)


@pytest.mark.usefixtures("here")
def test_a_run_that_fails_on_a_node_ends_no_other() -> None:
    found = fairbloom.compare(methods=["fedavg", Failing], out="cluster", pool="ray", **SMALL)
    assert found.methods == ("FedAvg",)
    assert found.failed == {"Failing": "failed with 2 of 2 seeds"}
    assert "it does not weigh" in Path("cluster", "study.json").read_text()


def test_without_a_cluster_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finds_none(**_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(ray, "init", finds_none)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FairbloomError, match=r"pool = 'ray': no Ray cluster: start one by ray start"
    ):
        fairbloom.compare(methods=["fedavg"], out="cluster", pool="ray", **SMALL)
