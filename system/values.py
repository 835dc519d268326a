"""Values in JSON files: read as what was written, or refused."""

import json
from typing import Any, TypeVar

T = TypeVar("T")


def decode_as(cls: type[T], written: Any, *, finite: bool = True) -> T:
    """Return a value of a type from what JSON has of it.

    KeyError for a missing key, ValueError for other content.

    Numbers are not taken for texts or the other way round, and nothing that is missing gets its
    default. Settings may be infinite, and other numbers are finite.
    """
    # imported late: few commands read such a file
    from pydantic import TypeAdapter, ValidationError

    adapter = TypeAdapter(cls)
    try:
        value = adapter.validate_json(json.dumps(written, allow_nan=not finite), strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    again = adapter.dump_python(value, mode="json")
    if isinstance(written, dict) and (missing := [key for key in again if key not in written]):
        raise KeyError(missing[0])
    if again != written:
        raise ValueError("it has other keys or values than are written there")
    return value
