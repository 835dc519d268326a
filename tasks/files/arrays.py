"""NumPy files of a user's own: CLIENT.npz with x and y, or with x_train, y_train, x_test and y_test."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import did_you_mean
from fairbloom.logs import log
from fairbloom.protocol.settings import split_names

from ..leaving import check_rows
from ..partition import MIN_EXAMPLES, split, splits_of
from ..preprocessing import ARRAYS, Preprocessing, as_floats
from ..row_digests import RowsBehind, tell_apart
from ..task import Setup, Splits, Task
from .agreement import MAX_CLASSES, TargetSummary
from .folders import files_in
from .reading.identities import nearly_all_differ
from .reading.numbers import parse_number
from .reasons import DataError, Heading
from .rows import measure_moments
from .shapes import AgreedShape, summarise, task_of
from .targets import as_targets, join_names, sort_classes

WHITE = 255.0
"""The value of white in arrays of bytes."""

WHOLE, APART = ("x", "y"), ("x_train", "y_train", "x_test", "y_test")


def load(setup: Setup, *, classes: str) -> Task:
    """Return the clients of a folder of .npz files."""
    files = files_in(setup.data_dir, (".npz",))
    stated = split_names(classes)
    return task_of(setup, tuple(files), lambda name: Arrays(files[name], name, setup, stated), preprocessing_of)


def preprocessing_of(agreed: AgreedShape) -> Preprocessing:
    """Return how arrays become inputs."""
    return agreed.preprocessing(ARRAYS, "y", white=WHITE)


class Arrays:
    """The arrays of one client."""

    def __init__(self, path: Path, client: str, setup: Setup, stated: tuple[str, ...]) -> None:
        self._path, self._stated, self._floor = path, stated, setup.floor
        arrays = self._read()
        if "x" in arrays:
            x, y = arrays["x"], arrays["y"]
            self._check_pair("x", "y", x, y, MIN_EXAMPLES)
            self.parts = split(np.arange(len(x)), setup, client)
        else:
            x_train, y_train, x_test, y_test = (arrays[name] for name in APART)
            self._check_pair("x_train", "y_train", x_train, y_train, 1)
            self._check_pair("x_test", "y_test", x_test, y_test, 1)
            if x_train.shape[1:] != x_test.shape[1:] or y_train.dtype.kind != y_test.dtype.kind:
                raise DataError(
                    f"{path}: examples of x_train have shape {x_train.shape[1:]} and y_train is {y_train.dtype}, those "
                    f"of x_test have {x_test.shape[1:]} and y_test is {y_test.dtype}: make them the same",
                    "array-shapes",
                )
            x, y = np.concatenate([x_train, x_test]), np.concatenate([y_train, y_test])
            self.parts = split(np.arange(len(x_train)), setup, client, np.arange(len(x_train), len(x)))
        self.x = self._inputs(x)
        self.y = self._targets(y)

    def _read(self) -> dict[str, NDArray[Any]]:
        try:
            with np.load(self._path, allow_pickle=False) as file:
                there = set(file.files)
                wanted = WHOLE if set(WHOLE) <= there else APART
                if not set(wanted) <= there:
                    raise DataError(
                        f"{self._path} holds {join_names(sorted(there)) or 'nothing'}: it needs x and y, or x_train, "
                        "y_train, x_test and y_test, as numpy.savez(file, x=…, y=…) writes them",
                        "arrays",
                    )
                return {name: file[name] for name in wanted}
        except DataError:
            raise
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
            objects = "Object arrays" in str(error)
            remedy = "make its arrays of numbers or texts, none of Python objects" if objects else "write it again"
            raise DataError(f"{self._path} cannot be read ({error}): {remedy}, by numpy.savez", "unreadable") from error

    def _check_pair(self, x_name: str, y_name: str, x: NDArray[Any], y: NDArray[Any], fewest: int) -> None:
        if x.ndim < 2 or y.ndim != 1:
            raise DataError(
                f"{self._path}: {x_name} has shape {x.shape} and {y_name} {y.shape}: the first dimension is that of "
                f"examples, each has one or more numbers in {x_name}, and one value in {y_name}",
                "array-shapes",
            )
        if len(x) != len(y):
            raise DataError(
                f"{self._path}: {x_name} has {len(x)} examples and {y_name} {len(y)}: each needs one target",
                "array-shapes",
            )
        if len(x) < fewest:
            raise DataError(
                f"{self._path}: {x_name} has {len(x)} examples, and at least {fewest} are needed",
                "few-examples",
                examples=len(x),
                fewest=fewest,
            )

    def _inputs(self, x: NDArray[Any]) -> NDArray[np.float32]:
        try:
            inputs = as_floats(x, WHITE)
        except ValueError as error:
            raise DataError(f"{self._path}: x {error}", "array-shapes") from error
        self._check_finite("x", inputs.reshape(len(inputs), -1).sum(axis=1, dtype=np.float64))
        return inputs

    def _targets(self, y: NDArray[Any]) -> NDArray[Any]:
        if y.dtype.kind == "f":
            self._check_finite("y", y)
            return y.astype(np.float64)
        if y.dtype.kind not in "biuU":
            raise DataError(
                f"{self._path}: y is {y.dtype}: whole numbers or texts are classes, floats a quantity", "array-shapes"
            )
        return y.astype(str)

    def _check_finite(self, name: str, values: NDArray[Any]) -> None:
        if len(strange := np.flatnonzero(~np.isfinite(values))):
            raise DataError(
                f"{self._path}: {name} holds NaN, or a number that float32 cannot hold, in {len(strange)} of "
                f"{len(values)} examples, first in example {strange[0]}: fill them in, or leave such examples out",
                "not-finite",
                example=int(strange[0]),
                array=Heading(name),
            )

    def summarise_target(self) -> TargetSummary:
        """Return what the server gets to know of this client's target."""
        if self.y.dtype.kind == "f":
            check_rows("few-targets", len(self.parts.train), self._floor)
            return TargetSummary("quantity", moments=measure_moments(self.y[self.parts.train]))
        if self._stated:
            self._class_indices(self._stated)
            return TargetSummary("classes", self._stated)
        names = sort_classes(set(self.y.tolist()))
        if len(names) == 1 or len(names) > MAX_CLASSES:
            raise DataError(
                f"{self._path}: y has {len(names):,} different values, as {names[0]}: a client with one class needs "
                f"all stated, as in npz.classes=0,1; {MAX_CLASSES:,} are the most; a quantity needs y in floats",
                "class-count",
                different=len(names),
                most=MAX_CLASSES,
            )
        if nearly_all_differ(len(names), len(self.y)) and any(parse_number(name) is None for name in names):
            raise DataError(
                f"{self._path}: y has {len(names)} different texts in {len(self.y)} examples, as {names[0]}, which may "
                "say who an example is about: take another y, or state all classes by npz.classes",
                "different-targets",
                different=len(names),
                rows=len(self.y),
            )
        return TargetSummary("classes", tuple(names))

    def _class_indices(self, classes: tuple[str, ...]) -> NDArray[np.int64]:
        order = {text: place for place, text in enumerate(classes)}
        for k, value in enumerate(self.y.tolist()):
            if value not in order:
                raise DataError(
                    f"{self._path}: y holds {value!r}, first in example {k}, which is none of the classes "
                    f"{join_names(classes)}: {did_you_mean(value, classes)}correct it, or state all classes by "
                    "npz.classes",
                    "strange-label",
                )
        return np.array([order[value] for value in self.y.tolist()], np.int64)

    def about(self) -> Mapping[str, Any]:
        """Return the summary that the server gets of this client, and warn where its quantity looks like classes."""
        if self.y.dtype.kind == "f" and len(found := np.unique(self.y)) <= 10 and (found == found.round()).all():
            log.warning("%s: y holds few numbers, as floats: a quantity; classes are y.astype(int)", self._path)
        return summarise(len(self.parts.train), self.x.shape[1:], self.summarise_target())

    def behind(self) -> RowsBehind:
        """Return what tells the examples apart, and which of them are behind the mean of a quantity."""
        examples = [x.tobytes() + str(y).encode() for x, y in zip(self.x, self.y.tolist(), strict=True)]
        return RowsBehind(
            lambda digest: tell_apart(map(digest, examples)),
            {"the mean of the target": self.parts.train} if self.y.dtype.kind == "f" else {},
        )

    def describe(self) -> Mapping[str, str | int]:
        """Return what `fairbloom data` shows of the client."""
        classes = self.summarise_target().classes
        target = join_names(classes) if classes else f"{self.y.min():g} to {self.y.max():g}"
        shape = "×".join(map(str, self.x.shape[1:]))
        return {"train": len(self.parts.train), "test": len(self.parts.test), "shape": shape, "target": target}

    def splits(self, agreed: AgreedShape) -> Splits:
        """Return inputs and targets as the clients have agreed; raise DataError where these are others."""
        agreed.check(str(self._path), self.x.shape[1:])
        if (self.y.dtype.kind == "f") == bool(agreed.target.classes):
            raise DataError(
                f"{self._path}: y is of another kind than with the others: classes, or a quantity", "other-target"
            )
        target = agreed.target
        values: NDArray[Any] = self._class_indices(target.classes) if target.classes else self.y
        inputs = preprocessing_of(agreed).array_inputs(self.x)
        return splits_of(inputs, as_targets(values, target), self.parts)
