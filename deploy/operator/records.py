"""Folders with a TOML file for each client, which are read often and written whole."""

import math
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Generic, TypeVar, get_origin

import tomli_w

from fairbloom.system.files import make_folder, write_whole
from fairbloom.system.lock import Lock, exclusive_lock

from ..errors import DeployError

Record = TypeVar("Record")


class Records(ABC, Generic[Record]):
    """The records in a folder. A file is parsed again only once it has changed: with a thousand, this takes longest.

    A kind of record says which field is its file's name (`key`), the files' permissions, and the remedy for a damaged
    one.
    """

    key: str
    mode: int
    remedy: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parsed: dict[str, tuple[tuple[int, int, int], Record]] = {}

    @abstractmethod
    def parse(self, name: str, said: dict[str, Any]) -> Record:
        """Return the record that a file says; ValueError, TypeError or AttributeError where it is none."""

    def read_all(self) -> list[Record]:
        """Return all in the order of names; a file that is being replaced is read as it was or as it will be."""
        try:
            files = sorted(self.folder.iterdir()) if self.folder.exists() else []
        except OSError as error:
            raise DeployError(f"{self.folder} cannot be read ({error.strerror}): use its owner's account") from error
        found = (self.read(file.stem) for file in files if file.suffix == ".toml")
        return [record for record in found if record]

    def read(self, name: str) -> Record | None:
        """Return a record by its name, None where there is none."""
        file = self.folder / f"{name}.toml"
        try:
            status = file.stat()
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._parsed.get(name)
            if known and known[0] == version:
                return known[1]
            record = self.parse(name, tomllib.loads(file.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DeployError(f"{file} cannot be used: {error}{self.remedy}") from None
        self._parsed[name] = version, record
        return record

    def save(self, record: Any) -> None:
        """Write a record's file, whole or not at all."""
        make_folder(self.folder)
        file = self.folder / f"{getattr(record, self.key)}.toml"
        write_whole(file, tomli_w.dumps(asdict(record)).encode(), self.mode)

    def locked(self) -> Lock:
        """Keep other processes from changing records."""
        make_folder(self.folder)
        return exclusive_lock(self.folder / ".lock", seconds=math.inf)


def build(kind: type[Record], said: Mapping[str, Any]) -> Record:
    """Return a dataclass from what a file says of its fields; ValueError or TypeError where that does not fit."""
    types = {each.name: get_origin(each.type) or each.type for each in fields(kind)}  # type: ignore[arg-type]
    for key, value in said.items():
        if type(value) is not types.get(key, type(value)):
            raise ValueError(f"{key} = {value!r} is of another type")
    return kind(**said)
