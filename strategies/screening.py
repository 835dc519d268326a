"""What makes a reply usable; every check raises ValueError with the reason for which the reply is refused."""

import math
from collections.abc import Collection, Mapping
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from .updates import Arrays, Layout

SNAPSHOT = "snapshot"
"""The ArrayRecord with the model that a client had in the midst of its local work."""


def usable_metrics(content: Any, weight_key: str, needs: Collection[str] = ()) -> dict[str, float]:
    """Return the finite numbers among a reply's metrics, if count, weight and the needed ones are there."""
    record = _only(content.metric_records, "metrics", "MetricRecord")
    count = record.get("num-examples")
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"num-examples must be an integer of at least 1, got {count!r}")
    finite = {key: value for key, value in record.items() if isinstance(value, int | float) and math.isfinite(value)}
    if not finite.get(weight_key, 0) > 0:
        raise ValueError(f"{weight_key} must be a positive number, got {record.get(weight_key)!r}")
    for name in sorted(needs):
        if name not in finite:
            raise ValueError(f"metric {name!r} must be a finite number, got {record.get(name)!r}")
    if "learning-rate" in needs and finite["learning-rate"] <= 0.0:
        raise ValueError(f"metric 'learning-rate' must be positive, got {finite['learning-rate']!r}")
    return finite


def usable_arrays(content: Any, key: str, layout: Layout) -> Arrays:
    """Return a reply's arrays, if their names, shapes and kinds of dtype are the model's."""
    arrays = {}
    for name, array in _only(content.array_records, key, "ArrayRecord").items():
        try:
            arrays[name] = view(array)
        except Exception as error:  # nothing bounds what a client's bytes make NumPy raise
            raise ValueError(f"array {name!r} can't be read: {error}") from error
    if (mismatch := layout.mismatch(arrays)) is not None:
        raise ValueError(mismatch)
    return arrays


def view(array: Any) -> NDArray[Any]:
    """Return the values of a Flower Array without a copy, read-only: its bytes are a file as numpy.save writes it.

    Raises
    ------
    ValueError
        When the bytes are no such file, or hold Python objects.
    """
    if array.stype != "numpy.ndarray":
        raise ValueError(f"serialised as {array.stype!r}, not as 'numpy.ndarray'")
    file = BytesIO(array.data)
    if read_magic(file) == (1, 0):
        shape, fortran, dtype = read_array_header_1_0(file)
    else:
        shape, fortran, dtype = read_array_header_2_0(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    values = np.frombuffer(array.data, dtype, offset=file.tell())
    return values.reshape(shape, order="F" if fortran else "C")


def usable_snapshot(content: Any, layout: Layout) -> Arrays:
    """Return the model that a client had in the midst of its local work, if it is like the model and finite."""
    arrays = usable_arrays(content, SNAPSHOT, layout)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"array {name!r} of the snapshot is not finite")
    return arrays


def _only(records: Mapping[str, Any], key: str, kind: str) -> Any:
    """Return the record named `key`, or the only one there is: foreign clients choose their own name."""
    if key in records:
        return records[key]
    others = [record for name, record in records.items() if name != SNAPSHOT]
    if key == SNAPSHOT or len(others) != 1:
        raise ValueError(f"{kind} {key!r} is missing")
    return others[0]
