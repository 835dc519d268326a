"""What clients with arrays or images of their own agree on: the shape of an example, and the target."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fairbloom.errors import FairbloomError

from .. import models
from ..task import Described, Setup, Splits, Task
from .agreement import (
    Aim,
    agree_on_target,
    agreement_of,
    count_of,
    majority,
    short,
    text_of,
    understood,
)
from .reasons import DataError
from .targets import Target

Shape = tuple[int, ...]

MOST_NUMBERS, MOST_DIMENSIONS = 10_000_000, 6
"""Bounds of an example's size."""


@dataclass(frozen=True)
class Agreed:
    """The shape of an example, and the target."""

    shape: Shape
    target: Target

    @classmethod
    def of(cls, text: str) -> "Agreed":
        """Return what the clients of a run have agreed on."""
        found = agreement_of(text)
        return cls(tuple(found["shape"]), Target.of(found["target"]))

    def check(self, whose: str, shape: Shape) -> None:
        """Raise DataError where a client's examples have another shape."""
        if as_image(shape) != self.shape:
            raise DataError(f"{whose}: {_differs(as_image(shape), self.shape, size=False)}", "other-shape")


class Part(Protocol):
    """The data of one client."""

    def about(self) -> Mapping[str, Any]:
        """Return what this client tells of its data."""

    def in_short(self) -> Mapping[str, str | int]:
        """Return what is shown of the client."""

    def splits(self, agreed: Agreed) -> Splits:
        """Return inputs and targets as the clients have agreed."""


def task_of(setup: Setup, clients: tuple[str, ...], part: Callable[[str], Part]) -> Task:
    """Return the task of clients whose data are read when they are asked for."""
    target = Agreed.of(setup.agreed).target if setup.agreed else Target()

    def describe() -> Described:
        rows: list[Mapping[str, str | int]] = []
        for name in clients:
            try:
                rows.append({"client": name, **part(name).in_short()})
            except FairbloomError as error:
                rows.append({"client": name, "problem": str(error)})
        return {"clients": rows}

    return Task(
        clients=clients,
        model=lambda: models.build(setup.model, Agreed.of(setup.agreed).shape, target.outputs, setup.seed),
        loss=target.loss,
        splits=lambda name: part(name).splits(Agreed.of(setup.agreed)),
        scores=target.scores(),
        about=lambda name: part(name).about(),
        describe=describe,
    )


def about(examples: int, shape: Shape, aim: Aim) -> Mapping[str, Any]:
    """Return what a client tells of its data."""
    return {"examples": examples, "shape": list(as_image(shape)), "target": aim.told()}


def agree_on_arrays(told: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """Return the shape and the target that clients with .npz files agree on, and why some cannot take part."""
    return _agree(told, "npz", "classes are whole numbers or texts, a quantity is floats: make y the same everywhere")


def agree_on_images(told: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """Return the shape and the classes that clients with folders of images agree on, and why some cannot take part."""
    return _agree(told, "image-folder", "name the folders of classes the same everywhere")


def as_image(shape: Shape) -> Shape:
    """Return the shape of an example, which gets a channel where it is a grey image of two dimensions."""
    return (1, *shape) if len(shape) == 2 else shape


def _agree(told: Mapping[str, Mapping[str, Any]], task: str, kind: str) -> tuple[str, dict[str, str]]:
    reasons: dict[str, str] = {}
    abouts = understood(told, _read, reasons)
    if not abouts:
        return text_of({}, told, reasons)
    shape = majority({client: own for client, (own, _) in abouts.items()})
    reasons |= {
        client: _differs(own, shape, size=task == "image-folder") for client, (own, _) in abouts.items() if own != shape
    }
    aims = {client: aim for client, (_, aim) in abouts.items() if client not in reasons}
    remedies = {"kind": kind, "classes": f"state all classes by {task}.classes={{}}, so that a client may lack some"}
    target = agree_on_target(aims, reasons, remedies)
    return text_of({"shape": shape, "target": target.agreed()}, told, reasons)


def _read(told: Mapping[str, Any]) -> tuple[Shape, Aim]:
    count_of(told.get("examples"))
    shape = told.get("shape")
    if (
        not isinstance(shape, Sequence)
        or not 1 <= len(shape) <= MOST_DIMENSIONS
        or not all(type(size) is int and 1 <= size <= MOST_NUMBERS for size in shape)
        or math.prod(shape) > MOST_NUMBERS
    ):
        raise ValueError(f"the shape of its examples is {short(shape)}: at most {MOST_NUMBERS:,} numbers each are due")
    return tuple(shape), Aim.of(told.get("target"))


def _differs(own: Shape, others: Shape, *, size: bool) -> str:
    remedy = "make them the same" + ", as image-folder.size=32 does" * size
    return f"its examples have shape {own}, and those of most others {others}: {remedy}"
