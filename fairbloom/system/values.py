"""Read values from JSON strictly: nothing is converted or filled in."""

import json
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


def decode_as(cls: type[T], written: Any, *, finite: bool = True) -> T:
    """Return a value of type `cls` from parsed JSON.

    Numbers and strings are not converted into each other, and a missing key does not get its
    default. `finite` refuses infinity and NaN; settings may be infinite.

    Raises
    ------
    KeyError
        If a key is missing.
    ValueError
        If the content is of another type, or has other keys.
    """
    from pydantic import ValidationError  # imported late: few commands read such a file

    adapter = _adapter_of(cls)  # type: ignore[arg-type]
    try:
        value: T = adapter.validate_json(json.dumps(written, allow_nan=not finite), strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    again = adapter.dump_python(value, mode="json")
    if isinstance(written, dict) and (missing := [key for key in again if key not in written]):
        raise KeyError(missing[0])
    if again != written:
        raise ValueError("it has other keys or values than are written there")
    return value


@cache
def _adapter_of(cls: type) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(cls)
