"""Write values down by their fields, and read them back strictly.

`encode` and `decode` are for states, which may hold arrays. `decode_as` is for JSON, which another
program may have written.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

# What is written as it is; a whole number may stand for any number, but not for a truth value.
PLAIN: Mapping[Any, type | UnionType] = {
    str: str,
    int: int,
    float: float | int,
    bool: bool,
    NoneType: NoneType,
}


class Form(NamedTuple):
    """How values of one type are written down and read back."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def encode(value: Any) -> Any:
    """Return a dataclass as str, numbers, None, arrays, lists and dicts, by its fields' types.

    Its dict has the names of the fields. A mapping from other keys than str is a list of pairs,
    and a set is a sorted list. Arrays are not copied; fields of type Any are.
    """
    return _form_of(type(value)).write(value)  # type: ignore[arg-type]


def decode(cls: type[T], written: Any) -> T:
    """Return the value of type `cls` that `encode` wrote: decode(cls, encode(value)) == value.

    Raises
    ------
    KeyError
        If a field is missing.
    ValueError
        If there are other fields, or a field is of another type.
    """
    value: T = _form_of(cls).read(written)  # type: ignore[arg-type]
    return value


@cache
def _form_of(kind: Any) -> Form:
    """Return the form of a type, as a field declares it."""
    origin = get_origin(kind)
    inner = get_args(kind)
    if kind is Any:
        return Form(deepcopy, deepcopy)
    if kind in PLAIN:
        return Form(_keep, lambda written: _check(written, PLAIN[kind]))
    if _is_array(origin):
        return Form(_keep, lambda written: _check(written, origin))
    if origin in (Union, UnionType):
        return _form_of_union(inner)
    if origin is Mapping:
        return _form_of_mapping(*inner)
    if origin is frozenset:
        return Form(sorted, lambda written: frozenset(_check(written, list)))
    if origin in (tuple, Sequence):
        return _form_of_sequence(inner[0])
    if is_dataclass(kind):
        return _form_of_fields(kind)
    raise TypeError(f"{kind} has no written form")


def _is_array(kind: Any) -> bool:
    """Return whether a type is NumPy's array; small processes, which have none, do not load it."""
    return getattr(kind, "__module__", "") == "numpy" and kind.__name__ == "ndarray"


def _keep(value: Any) -> Any:
    return value


def _check(written: Any, kind: Any) -> Any:
    """Return a written value if it is of this type, and else raise ValueError."""
    is_truth_value = isinstance(written, bool) and kind is not bool
    if is_truth_value or not isinstance(written, kind):
        raise ValueError(f"it is of type {type(written).__name__}")
    return written


def _form_of_union(kinds: Sequence[Any]) -> Form:
    """Return the form of the first of several types, or of None."""
    form = _form_of(kinds[0])
    if NoneType not in kinds:
        return form
    return Form(
        lambda value: None if value is None else form.write(value),
        lambda written: None if written is None else form.read(written),
    )


def _form_of_mapping(key: Any, item: Any) -> Form:
    of_key = _form_of(key)
    of_item = _form_of(item)

    def write(value: Mapping[Any, Any]) -> Any:
        if key is str:
            return {name: of_item.write(each) for name, each in value.items()}
        return [[of_key.write(name), of_item.write(each)] for name, each in value.items()]

    def read(written: Any) -> Any:
        pairs = _check(written, dict).items() if key is str else _check(written, list)
        return {of_key.read(name): of_item.read(each) for name, each in pairs}

    return Form(write, read)


def _form_of_sequence(item: Any) -> Form:
    form = _form_of(item)

    def write(value: Sequence[Any]) -> Any:
        return [form.write(each) for each in value]

    def read(written: Any) -> Any:
        return tuple(form.read(each) for each in _check(written, list))

    return Form(write, read)


def _form_of_fields(cls: Any) -> Form:
    kinds = get_type_hints(cls)
    forms = {field.name: _form_of(kinds[field.name]) for field in fields(cls)}

    def write(value: Any) -> Any:
        return {name: form.write(getattr(value, name)) for name, form in forms.items()}

    def read(written: Any) -> Any:
        given = _check(written, dict)
        if unknown := sorted(given.keys() - forms):
            raise ValueError(f"it has the unknown field {unknown[0]}")
        found = dict[str, Any]()
        for name, form in forms.items():
            each = given[name]
            try:
                found[name] = form.read(each)
            except (TypeError, ValueError) as error:
                raise ValueError(f"its {name} cannot be read: {error}") from error
        return cls(**found)

    return Form(write, read)


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
