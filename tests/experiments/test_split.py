"""The split of a run in its folder."""

from pathlib import Path

import pytest

import fairbloom
from fairbloom.errors import FairbloomError


def test_a_run_saves_who_had_which_examples_and_keeps_it_when_it_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = {"partition": "dirichlet", "clients": 5}
    split = fairbloom.run(rounds=1, out=folder, settings=settings, progress=False).split()
    written = (folder / "split.npz").read_bytes()
    assert split.clients == tuple(f"client-{k}" for k in range(5))
    assert split.counts().shape == (5, 10)
    fairbloom.run(rounds=2, out=folder, settings=settings, progress=False)
    assert (folder / "split.npz").read_bytes() == written


def test_a_damaged_split_is_named(tmp_path: Path) -> None:
    run = fairbloom.run(rounds=1, out=tmp_path / "run", settings={"clients": 5}, progress=False)
    (run.folder / "split.npz").write_bytes(b"damaged")
    with pytest.raises(FairbloomError, match=r"split\.npz cannot be read"):
        run.split()
    (run.folder / "split.npz").unlink()
    with pytest.raises(FairbloomError, match=r"has no split\.npz"):
        run.split()
