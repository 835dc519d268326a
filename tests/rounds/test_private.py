"""Private rounds: what is averaged beside the update, and which clients' losses they survive."""

from pathlib import Path

import numpy as np
import pytest

from fairbloom import run


def arrays(out: Path, privacy: str) -> dict[str, np.ndarray]:
    settings = {"partition": "iid", "engine": "loop", "fraction": 1.0, "privacy": privacy}
    task = "tests.rounds.normed:load"
    return run(task, method="fedavg", rounds=2, clients=8, settings=settings, out=out, progress=False).arrays()


def test_buffers_and_counts_are_the_means_of_the_clients(tmp_path: Path) -> None:
    private, plain = arrays(tmp_path / "private", "sums"), arrays(tmp_path / "plain", "none")
    buffers = [name for name in plain if "running" in name]
    assert buffers
    for name in buffers:
        assert private[name] == pytest.approx(plain[name], abs=1e-5)
    (count,) = (name for name in plain if "num_batches" in name)
    assert private[count].dtype == plain[count].dtype
    assert abs(int(private[count]) - int(plain[count])) <= 4  # plain: of the client with the most examples
