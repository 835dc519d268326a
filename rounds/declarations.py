"""What a class of a method may declare. An attribute that nothing reads is refused, since it would be ignored."""

import inspect
from collections.abc import Collection, Iterator
from types import CodeType
from typing import Any

PLAIN = (bool, int, float, str, tuple, frozenset, set, type(None))
"""The types of what methods declare; an attribute of another type, such as a list, is the class's own."""


def check_declarations(cls: type, base: type, options: Collection[str]) -> None:
    """Raise TypeError where a subclass of `base` sets a plain attribute that `base` has not and nothing reads.

    What the functions of the class read, what it annotates, and constants in capitals or with an underscore are its
    own: these cannot be meant for `base`.
    """
    read = frozenset[str]().union(*(_names_read(each) for each in cls.__mro__ if each is not base))
    for name, value in vars(cls).items():
        if name.startswith("_") or name.isupper() or not isinstance(value, PLAIN):
            continue
        if name in options:
            raise TypeError(
                f"{cls.__name__}.{name} = {value!r}: this is an option, whose value comes from the constructor: give "
                f"it there, as in super().__init__({name}={value!r})"
            )
        own = name in read or name in inspect.get_annotations(cls)
        if not own and not any(hasattr(each, name) for each in cls.__bases__):
            raise TypeError(
                f"{cls.__name__}.{name} = {value!r}: no declaration has this name, and no function of {cls.__name__} "
                f"reads it. The declarations are {', '.join(inspect.get_annotations(base))}; what a method needs of a "
                f'round, such as "gram", stands in requires. Write a constant of your own in capitals, or annotate it'
            )


def _names_read(cls: type) -> set[str]:
    """Return the names that the functions and properties of a class read, of variables and of attributes."""
    return {name for value in vars(cls).values() for code in _code_of(value) for name in code.co_names}


def _code_of(value: Any) -> Iterator[CodeType]:
    """Yield the code of a function, a property, a static method or a nested function, if it is one."""
    for name in ("fget", "func", "__func__", "__wrapped__", "__code__"):
        value = getattr(value, name, value)
    if isinstance(value, CodeType):
        yield value
        for constant in value.co_consts:
            if isinstance(constant, CodeType):
                yield from _code_of(constant)
