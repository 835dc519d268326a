"""Files that are wrong in their structure, made of valid ones by hypothesis, and what may become of
them.

A structure is what a file holds in plain values: dicts, lists, numbers, texts, bytes and arrays.
"""

import copy
import csv
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import reject, strategies as st

from fairbloom.errors import FairbloomError

Structure = Any
Draw = Callable[[st.SearchStrategy[Any]], Any]

CPU_SECONDS = 20.0
# The most that reading one file, and all of a test's files, may take.
MEMORY_BYTES = 500e6

# What a value is replaced by.
OTHERS: tuple[Structure, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**70, 0.5, 1e308, 5e-324, math.nan, math.inf, -math.inf),
    *(
        "",
        "0",
        "nan",
        "x" * 300,
        "a\nb",
        "\x00",
        "é\u202e",
        "../..",
        [],
        [1],
        ["a", "a"],
        [[]],
        {},
        {"a": {"b": 1}},
    ),
)

TYPES = (np.float16, np.float32, np.float64, np.int8, np.int64, np.uint64, np.bool_)


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes
    ----------
    file
        Its name.
    valid
        The structure of a valid file.
    encode
        Returns a file's bytes; ValueError or TypeError where the format has no such structure.
    read
        Returns what a reader takes from the file at a path, as a structure.
    due
        Returns what it must take of a structure that it does not refuse.
    refuses
        What it raises for a file that cannot be used.
    sealed
        Whether damaged bytes must be noticed; where they are not, they may mean something else.
    names_file
        Whether its errors name the file, and not only what is wrong in it: the caller names it.
    """

    file: str
    valid: Structure
    encode: Callable[[Structure], bytes]
    read: Callable[[Path], Structure]
    due: Callable[[Structure], Structure] = lambda structure: structure
    refuses: type[Exception] = FairbloomError
    sealed: bool = False
    names_file: bool = True


def mutants(valid: Structure) -> st.SearchStrategy[Structure]:
    """Return what makes other structures of a valid one, by up to three changes."""

    @st.composite
    def made(draw: Draw) -> Structure:
        changed = [copy.deepcopy(valid)]
        for _ in range(draw(st.integers(1, 3))):
            holder, key = draw(st.sampled_from(list(_places(changed))))
            _change(draw, holder, key)
            if not changed:
                reject()
        return changed[0]

    return made()


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each place of a structure: the list or dict that holds a value, and where."""
    for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _places(holder[key])


def _change(draw: Draw, holder: Any, key: Any) -> None:
    """Drop, double, move, replace or alter the value at a place."""
    how = draw(st.sampled_from(["drop", "double", "exchange", "replace", "alter", "alter"]))
    value = holder[key]
    if how == "drop":
        del holder[key]
    elif how == "double" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(value))
    elif how == "double":
        holder[draw(st.sampled_from([f"{key}2", str(key).upper(), f"{key}.a", "", "é"]))] = (
            copy.deepcopy(value)
        )
    elif how == "exchange":
        other = draw(
            st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder)))
        )
        holder[key], holder[other] = holder[other], holder[key]
    elif how == "replace":
        holder[key] = copy.deepcopy(draw(st.sampled_from(OTHERS)))
    else:
        holder[key] = draw(_altered(value))


def _altered(value: Structure) -> st.SearchStrategy[Structure]:
    """Return values that are like another one, but for their type, length or a part."""
    if isinstance(value, np.ndarray):
        return st.one_of(
            st.sampled_from(TYPES if value.dtype.kind in "fiub" else ["U3", "S3"]).map(
                value.astype
            ),
            st.sampled_from(
                [value.reshape(-1), value[..., None], value[:0], np.resize(value, value.size + 1)]
            ),
            st.tuples(
                st.integers(0, max(0, value.size - 1)), st.sampled_from([math.nan, math.inf])
            ).map(lambda each: _with(value, *each)),
        )
    if isinstance(value, bytes):
        return damaged(value)
    if isinstance(value, str):
        others = [
            value[:-1],
            value * 2,
            value.upper(),
            f" {value}",
            value.replace("1", "2"),
            [value],
        ]
        return st.sampled_from([*others, f"{value} # 1", f"{value}\nseed = 1"])
    if isinstance(value, bool) or value is None:
        return st.sampled_from([not value, str(value), int(value or 0)])
    if isinstance(value, int | float):
        others = [-value, value + 1, float(value), str(value), value * 10**6, [value], value / 3]
        return st.sampled_from([*others, f"{value} # 1", f"{value}\nseed = 1"])
    if isinstance(value, list):
        return st.sampled_from([value[:-1], value * 2, value[::-1], {"0": value}, str(value)])
    return st.sampled_from([[*value], [*value.values()], {**value, "unheard-of": 1}, str(value)])


def _with(array: np.ndarray, place: int, number: float) -> np.ndarray:
    if array.dtype.kind != "f" or not array.size:
        reject()
    changed = array.copy()
    changed.reshape(-1)[place] = number
    return changed


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Return what is made of bytes that are cut off, flipped, taken out, repeated, or of another
    length inside."""
    places = st.integers(0, max(0, len(content) - 1))

    def made(at: int, other: int, bits: int, how: str) -> bytes:
        first = min(at, other)
        last = max(at, other)
        if how == "cut":
            return content[:at]
        if how == "flip" and content:
            return content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]
        if how == "take out":
            return content[:first] + content[last:]
        if how == "repeat":
            return content[:last] + content[first:]
        if how == "nest":
            return content[:at] + b"[" * 100_000 + content[at:]
        return content[:at] + (bits * 2**20).to_bytes(8, "little") + content[at + 8 :]

    return st.builds(
        made,
        places,
        places,
        st.integers(1, 255),
        st.sampled_from(["cut", "flip", "take out", "repeat", "nest", "length"]),
    )


def check_mutant(kind: Kind, folder: Path, draw: Draw) -> None:
    """Draw a mutant, write it, read it, and check what became of it."""
    structure = draw(mutants(kind.valid))
    try:
        content = kind.encode(structure)
    except (
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
        AttributeError,
        csv.Error,
    ):  # it has no such structure
        reject()
    whole = draw(st.integers(0, 3)) > 0
    path = folder / kind.file
    path.write_bytes(content if whole else draw(damaged(content)))
    began = time.process_time()
    try:
        found = kind.read(path)
    except kind.refuses as error:
        assert_helpful(error, path if kind.names_file else None, quotes=not whole)
    else:
        if whole or kind.sealed:
            assert same(found, kind.due(structure)), (found, structure)
    assert time.process_time() - began < CPU_SECONDS


def assert_helpful(error: Exception, path: Path | None, *, quotes: bool) -> None:
    """Check that an error says more than the name of the file, which it names; it may quote a huge
    damaged value."""
    words = str(error)
    assert path is None or path.name in words or path.stem in words, words
    assert 10 < len(words.replace(str(path), "")) < (np.inf if quotes else 4000), words


def same(one: Structure, other: Structure) -> bool:
    """Return whether two structures are equal, arrays by dtype, shape and bits; 1 and True are
    not."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    numbers = (
        isinstance(one, int | float)
        and isinstance(other, int | float)
        and bool not in (type(one), type(other))
    )
    return (numbers or type(one) is type(other)) and (
        one == other or (one != one and other != other)
    )


def peak_memory() -> float:
    """Return the most bytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1.0 if sys.platform == "darwin" else 1024.0
    )
