"""What clients with images of their own agree on: the shape of an example, and the target."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fairbloom.errors import FairbloomError

from .. import models
from ..preprocessing import IMAGES, Preprocessing
from ..row_digests import RowsBehind
from ..task import Described, Setup, Splits, Task
from .agreement import (
    TargetSummary,
    agree_on_target,
    check_count,
    majority,
    read_agreement,
    read_summaries,
    shorten,
    write_agreement,
)
from .reasons import DataError
from .targets import Target

Shape = tuple[int, ...]

MAX_NUMBERS, MAX_DIMENSIONS = 10_000_000, 6
"""Bounds of an example's size."""


@dataclass(frozen=True)
class AgreedShape:
    """The shape of an example, and the target."""

    shape: Shape
    target: Target

    @classmethod
    def from_json(cls, text: str) -> "AgreedShape":
        """Return what the clients of a run have agreed on."""
        found = read_agreement(text)
        return cls(tuple(found["shape"]), Target.from_json(found["target"]))

    def preprocessing(self, *, resized: bool) -> Preprocessing:
        """Return how images become inputs."""
        return Preprocessing(
            form=IMAGES, target="class", classes=self.target.classes, shape=self.shape, resized=resized
        )

    def check(self, source: str, shape: Shape) -> None:
        """Raise DataError where a client's examples have another shape."""
        if shape != self.shape:
            raise DataError(f"{source}: {_describe_difference(shape, self.shape)}", "other-shape")


class ClientData(Protocol):
    """The data of one client."""

    def about(self) -> Mapping[str, Any]:
        """Return the summary that the server gets of this client's data."""

    def describe(self) -> Mapping[str, str | int]:
        """Return what `fairbloom data` shows of the client."""

    def behind(self) -> RowsBehind:
        """Return what tells the examples apart, and which of them are behind the numbers of the summary."""

    def splits(self, agreed: AgreedShape) -> Splits:
        """Return inputs and targets as the clients have agreed."""


def task_of(
    setup: Setup,
    clients: tuple[str, ...],
    data_of: Callable[[str], ClientData],
    preprocessing: Callable[[AgreedShape], Preprocessing],
) -> Task:
    """Return the task of clients that all prepare their data the same; data are read when they are asked for."""
    target = AgreedShape.from_json(setup.agreed).target if setup.agreed else Target()

    def describe() -> Described:
        rows: list[Mapping[str, str | int]] = []
        for name in clients:
            try:
                rows.append({"client": name, **data_of(name).describe()})
            except FairbloomError as error:
                rows.append({"client": name, "problem": str(error)})
        return {"clients": rows}

    return Task(
        clients=clients,
        model=lambda: models.build(setup.model, AgreedShape.from_json(setup.agreed).shape, target.outputs, setup.seed),
        loss=target.loss,
        splits=lambda name: data_of(name).splits(AgreedShape.from_json(setup.agreed)),
        scores=target.scores(),
        about=lambda name: data_of(name).about(),
        describe=describe,
        behind=lambda name: data_of(name).behind(),
        preprocessing=lambda client: replace(preprocessing(AgreedShape.from_json(setup.agreed)), client=client),
        class_names=target.classes,
    )


def summarise(examples: int, shape: Shape, target: TargetSummary) -> Mapping[str, Any]:
    """Return the summary that the server gets of a client's data."""
    return {"examples": examples, "shape": list(shape), "target": target.to_json()}


def agree_on_images(sent: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """Return the shape and the classes that clients with folders of images agree on, and why some cannot take part."""
    reasons: dict[str, str] = {}
    summaries = read_summaries(sent, _read_summary, reasons)
    if not summaries:
        return write_agreement({}, sent, reasons)
    shape = majority({client: each for client, (each, _) in summaries.items()})
    reasons |= {client: _describe_difference(each, shape) for client, (each, _) in summaries.items() if each != shape}
    targets = {client: target for client, (_, target) in summaries.items() if client not in reasons}
    remedies = {
        "kind": "name the folders of classes the same everywhere",
        "classes": "state all classes by image-folder.classes={}, so that a client may lack some",
    }
    target = agree_on_target(targets, reasons, remedies)
    return write_agreement({"shape": shape, "target": target.to_json()}, sent, reasons)


def _read_summary(sent: Mapping[str, Any]) -> tuple[Shape, TargetSummary]:
    check_count(sent.get("examples"))
    shape = sent.get("shape")
    if (
        not isinstance(shape, Sequence)
        or not 1 <= len(shape) <= MAX_DIMENSIONS
        or not all(type(size) is int and 1 <= size <= MAX_NUMBERS for size in shape)
        or math.prod(shape) > MAX_NUMBERS
    ):
        raise ValueError(f"the shape of its examples must have at most {MAX_NUMBERS:,} numbers, got {shorten(shape)}")
    return tuple(shape), TargetSummary.from_json(sent.get("target"))


def _describe_difference(here: Shape, others: Shape) -> str:
    return (
        f"its examples have shape {here}, and those of most others {others}: make them the same, as "
        "image-folder.size=32 does"
    )
