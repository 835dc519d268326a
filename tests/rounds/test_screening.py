from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from fairbloom.rounds.records import reported, usable_arrays
from fairbloom.rounds.refusals import Refusals
from fairbloom.rounds.screening import usable_metrics
from fairbloom.rounds.updates import Layout

LAYOUT = Layout({"w": np.zeros((2, 2), np.float32), "steps": np.array(1, np.int64), "mask": np.array([True])})
GOOD = {"w": np.ones((2, 2), np.float32), "steps": np.array(2, np.int64), "mask": np.array([False])}


def metrics(**numbers: Any) -> RecordDict:
    return RecordDict({"metrics": MetricRecord({key.replace("_", "-"): value for key, value in numbers.items()})})


def arrays(given: dict[str, Any], key: str = "arrays") -> RecordDict:
    return RecordDict({key: ArrayRecord({name: Array(array) for name, array in given.items()})})


def test_finite_numbers_are_handed_on_and_others_left_out() -> None:
    content = metrics(num_examples=3, loss=0.5, bad=float("nan"), worse=float("inf"), several=[1.0, 2.0])
    assert usable_metrics(reported(content), "num-examples") == {"num-examples": 3, "loss": 0.5}


def test_the_count_is_needed_whatever_the_weight_is() -> None:
    with pytest.raises(ValueError, match="num-examples"):
        usable_metrics(reported(metrics(tokens=5)), "tokens")


def test_another_weight_must_be_a_positive_number() -> None:
    for weight in [0, -1.0, float("nan"), None]:
        numbers = {"num_examples": 3} | ({} if weight is None else {"tokens": weight})
        with pytest.raises(ValueError, match="tokens must be a positive number"):
            usable_metrics(reported(metrics(**numbers)), "tokens")
        assert usable_metrics(reported(metrics(num_examples=3, tokens=0.5)), "tokens") == {
            "num-examples": 3,
            "tokens": 0.5,
        }


def test_a_reply_with_missing_or_unknown_records_is_refused() -> None:
    one, other = metrics(num_examples=3)["metrics"], metrics(num_examples=4)["metrics"]
    for content in (RecordDict(), RecordDict({"a": one, "b": other})):
        with pytest.raises(ValueError, match="MetricRecord 'metrics' is missing"):
            usable_metrics(reported(content), "num-examples")
    assert usable_metrics(reported(RecordDict({"mine": one})), "num-examples") == {"num-examples": 3}
    assert usable_metrics(reported(RecordDict({"mine": one, "metrics": other})), "num-examples") == {"num-examples": 4}


def test_arrays_of_the_models_names_shapes_and_kinds_are_usable() -> None:
    assert {k: v.tolist() for k, v in usable_arrays(arrays(GOOD), "arrays", LAYOUT).items()} == {
        k: v.tolist() for k, v in GOOD.items()
    }
    assert set(usable_arrays(arrays(GOOD, "mine"), "arrays", LAYOUT)) == set(GOOD)
    for dtype in (np.float16, np.float64, ">f4"):
        assert usable_arrays(arrays({**GOOD, "w": np.ones((2, 2), dtype)}), "arrays", LAYOUT)


def test_pickled_objects_are_never_loaded() -> None:
    from io import BytesIO

    buffer = BytesIO()
    np.save(buffer, np.array([[{}, 1], [2, 3]], dtype=object), allow_pickle=True)
    record = arrays(GOOD)["arrays"]
    record["w"] = Array(dtype="float32", shape=(2, 2), stype="numpy.ndarray", data=buffer.getvalue())
    with pytest.raises(ValueError, match="array 'w' can't be read"):
        usable_arrays(RecordDict({"arrays": record}), "arrays", LAYOUT)


def test_a_reason_tells_no_folder_of_a_site() -> None:
    for told, noted in [
        ("/home/ann/data/ward 3.csv cannot be read: Is a directory", "ward 3.csv cannot be read: Is a directory"),
        ("[Errno 5] Input/output error: '/srv/x/y.npz'", "[Errno 5] Input/output error: 'y.npz'"),
        ("OSError: broken (/usr/lib/python3/PIL/ImageFile.py, line 3)", "OSError: broken (ImageFile.py, line 3)"),
        ("data-dir=/a/b/c is no folder", "data-dir=c is no folder"),
        ("3/4 of the loss, n/a, see https://example.org/a/b", "3/4 of the loss, n/a, see https://example.org/a/b"),
    ]:
        refused = Refusals(1)
        refused.add("site-a", told)
        assert refused.reasons == {"site-a": noted}
