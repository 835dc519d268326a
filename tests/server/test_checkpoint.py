"""Checkpoints: what goes in comes out, and a file is replaced whole or not at all."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray
from safetensors import safe_open

from fairbloom.server.checkpoint import load_checkpoint, save_checkpoint, save_model, write_whole

arrays = arrays_of.arrays(
    st.sampled_from((np.float32, np.float64, np.int64, np.uint8, np.bool_)),
    arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
names = st.text(max_size=8)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | names
states = st.recursive(
    plain | arrays, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)


def assert_same(one: Any, other: Any) -> None:
    """Compare two states, arrays by dtype, shape and bits."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@contextmanager
def full_disk(free: int) -> Iterator[None]:
    """Let no file grow beyond `free` bytes; Python ignores the signal, so that writing raises OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoint") / "round.safetensors"


@given(model=st.dictionaries(names, arrays, max_size=3), state=st.dictionaries(names, states, max_size=4))
def test_model_and_state_come_back_as_they_were(
    path: Path, model: dict[str, NDArray[Any]], state: dict[str, Any]
) -> None:
    save_checkpoint(path, model, state)
    assert_same(load_checkpoint(path), (model, state))


@pytest.mark.parametrize(
    "state",
    [
        {"scale": np.array(0.5)},
        {"rows": []},
        {"rows": [[], {}, [np.zeros((0, 3), np.float32)]]},
        {"array": "a name", "dict": {"array": {"array": np.arange(3)}, "dict": {}}},
        {"tiny": 5e-324, "third": 1 / 3, "huge": 10**30, "minus zero": -0.0, "none": None, "no": False},
        {"infinite": [float("inf"), float("-inf")]},
    ],
    ids=lambda state: ", ".join(state),
)
def test_corners_of_a_state_come_back_as_they_were(path: Path, state: dict[str, Any]) -> None:
    save_checkpoint(path, {}, state)
    assert_same(load_checkpoint(path)[1], state)


def test_arrays_that_are_views_come_back_by_value(path: Path) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    save_checkpoint(path, {"w": whole.T, "v": whole[::2, 1::3]}, {"row": whole[:, 2]})
    model, state = load_checkpoint(path)
    np.testing.assert_array_equal(model["w"], whole.T)
    np.testing.assert_array_equal(model["v"], whole[::2, 1::3])
    np.testing.assert_array_equal(state["row"], whole[:, 2])


def test_a_model_keeps_the_order_of_its_arrays(path: Path) -> None:
    model = {name: np.zeros(1) for name in ("z", "a", "m/b", "m")}
    save_checkpoint(path, model, {})
    assert list(load_checkpoint(path)[0]) == list(model)


def test_a_model_file_can_be_read_by_anyone(path: Path) -> None:
    save_model(path, {"w": np.eye(2, dtype=np.float32)}, {"round": 7, "mean": 61.5})
    with safe_open(path, framework="numpy") as file:
        np.testing.assert_array_equal(file.get_tensor("w"), np.eye(2))
        assert json.loads(file.metadata()["about"]) == {"round": 7, "mean": 61.5}


def test_the_same_model_is_the_same_file(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.safetensors" for number in range(20)]
    for file in files:
        save_model(file, {"w": np.eye(2), "b": np.ones(2)}, {"round": 7, "mean": 61.5, "seed": 0})
    assert len({file.read_bytes() for file in files}) == 1


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "round.safetensors"
    save_checkpoint(path, {"w": np.ones(4)}, {"round": 1})
    before = path.read_bytes()
    for free in (0, 1, 100, 1000, 8000):
        with full_disk(free), pytest.raises(OSError, match="File too large"):
            save_checkpoint(path, {"w": np.ones(1000)}, {"round": 2})
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]
    save_checkpoint(path, {"w": np.ones(1000)}, {"round": 2})
    assert load_checkpoint(path)[1] == {"round": 2}


def test_a_state_that_cannot_be_written_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "round.safetensors"
    save_checkpoint(path, {}, {"round": 1})
    with pytest.raises(TypeError):
        save_checkpoint(path, {}, {"round": object()})
    assert load_checkpoint(path)[1] == {"round": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_first_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with full_disk(10), pytest.raises(OSError, match="File too large"):
        write_whole(tmp_path / "config.toml", b"x" * 100)
    assert not list(tmp_path.iterdir())
