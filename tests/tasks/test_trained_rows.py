"""A run tests on no row that trained its initial weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import RunSettings
from fairbloom.system.sealed import save_model
from fairbloom.tasks.models.weights import (
    check_rows,
    describe_rows,
    digest_weights,
    find_all_rows,
)

FILES = {"a.csv": "01", "b.csv": "23"}

ALL = {"test-share": 0.0}


def save(path: Path, schema: str = "", data: dict[str, str] | None = None, **given: Any) -> Path:
    about = describe_rows(RunSettings.of({"task": "digits", **given}), schema, data)
    save_model(path, {"w": np.ones(3, np.float32)}, {"rows": about})
    return path


def check(path: Path, schema: str = "", data: dict[str, str] | None = None, **given: Any) -> None:
    settings = {"task": "digits", "initial-weights": str(path), **given}
    check_rows(RunSettings.of(settings), schema, data)


@pytest.mark.parametrize(
    ("key", "value"), [("seed", 4), ("test-share", 0.3), ("validation-share", 0.1)]
)
@pytest.mark.parametrize("data", [None, FILES], ids=["devices", "one process"])
def test_another_split_is_refused(
    tmp_path: Path, key: str, value: float, data: dict[str, str] | None
) -> None:
    path = save(tmp_path / "m.safetensors", data=data)
    check(path, data=data)
    words = f"goes with .*{key} = 0[^ ]*.*the run has .*{key} = {value}.*: set seed = 0"
    with pytest.raises(FairbloomError, match=words):
        check(path, data=data, **{key: value})
    check(path, "other", data=data, **{key: value})  # another schema
    check(path, data=data, **{key: value, "task": "heart-disease"})
    check(path, data=data, **{**ALL, "seed": 4})  # no test row


def test_other_files_have_other_rows(tmp_path: Path) -> None:
    path = save(tmp_path / "m.safetensors", data=FILES)
    check(path, data={"a.csv": "45"}, seed=4)
    with pytest.raises(FairbloomError, match="seed = 4"):
        check(path, data={"c.csv": "23", "d.csv": "45"}, seed=4)  # one is the same


def test_a_model_of_all_rows_is_tested_on_other_files(tmp_path: Path) -> None:
    path = save(tmp_path / "m.safetensors", data=FILES, **ALL)
    with pytest.raises(FairbloomError, match=r"trained on all rows of these data.*test-share = 0"):
        check(path, data=FILES)
    check(path, data=FILES, **ALL)
    check(path, data={"a.csv": "45"})


def test_devices_are_told_of_the_model_of_all_rows(tmp_path: Path) -> None:
    path = save(tmp_path / "m.safetensors", **ALL)
    digest = digest_weights(str(path))
    assert find_all_rows(str(path)) == digest
    with pytest.raises(FairbloomError, match=f"set after-all-rows = '{digest}'"):
        check(path)
    after = {"after-all-rows": digest}
    check(path, seed=4, **after)
    later = save(tmp_path / "later.safetensors", seed=4, **after)
    assert find_all_rows(str(later)) == digest
    check(later, seed=4, **after)
    with pytest.raises(FairbloomError, match=r"the run has .*after-all-rows = ''"):
        check(later, seed=4)


def test_weights_of_others_say_nothing_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_model(path, {"w": np.ones(3, np.float32)}, {})
    assert find_all_rows(str(path)) == ""
    check(path, seed=4)
    check(tmp_path / "gone.safetensors", seed=4)  # of a run that continues


def test_tests_that_no_seed_draws_are_free(tmp_path: Path) -> None:
    official = {"task": "heart-disease", "heart-disease.split": "official"}
    path = save(tmp_path / "m.safetensors", **official)
    check(path, seed=4, **official)
