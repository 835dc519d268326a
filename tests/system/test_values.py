"""A value is written down by its fields and read back as it was; what is no such value is refused."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fairbloom.system.values import decode, encode


@dataclass(frozen=True)
class Label:
    key: str
    number: int


@dataclass(frozen=True)
class Example:
    number: float = 1.5
    is_told: bool = True
    array: NDArray[np.float64] | None = None
    names: frozenset[str] = frozenset()
    labels: tuple[Label, ...] = ()
    by_label: Mapping[Label, int] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Unwritable:
    of: set[int]


def test_what_is_written_is_plain_and_has_the_names_of_fields() -> None:
    label = Label("a", 1)
    memory = {"seen": [1, None]}
    value = Example(2, False, None, frozenset("ba"), (label,), {label: 3}, memory)
    plain = {"key": "a", "number": 1}
    written = encode(value)
    assert written == {
        "number": 2,
        "is_told": False,
        "array": None,
        "names": ["a", "b"],
        "labels": [plain],
        "by_label": [[plain, 3]],
        "memory": memory,
    }
    assert decode(Example, written) == value
    memory["seen"].append(2)
    assert written["memory"] == {"seen": [1, None]}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"number": "2"}, "its number cannot be read: it is of type str"),
        ({"number": True}, "its number cannot be read: it is of type bool"),
        ({"is_told": 1}, "its is_told cannot be read: it is of type int"),
        ({"array": [1.0]}, "its array cannot be read: it is of type list"),
        ({"names": "ab"}, "its names cannot be read: it is of type str"),
        ({"labels": {}}, "its labels cannot be read: it is of type dict"),
        ({"labels": [{"key": 1, "number": 1}]}, "its labels .* its key .* type int"),
        ({"labels": [{"key": "", "number": 1.0}]}, "its labels .* its number .* type float"),
        ({"by_label": {}}, "its by_label cannot be read: it is of type dict"),
        ({"by_label": [[1]]}, "its by_label cannot be read: "),
        ({"memory": []}, "its memory cannot be read: it is of type list"),
        ({"other": 1}, "the unknown field other"),
    ],
)
def test_another_content_is_refused_by_its_field(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(Example, {**encode(Example()), **changed})


@pytest.mark.parametrize("left", asdict(Example()))
def test_a_missing_field_gets_no_default(left: str) -> None:
    written = encode(Example())
    del written[left]
    with pytest.raises(KeyError, match=left):
        decode(Example, written)


def test_a_type_without_a_written_form_is_an_error_at_once() -> None:
    with pytest.raises(TypeError, match=r"set\[int\] has no written form"):
        encode(Unwritable({1}))
