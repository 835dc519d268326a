"""The values of a run folder's files, and the facts known at a run's start."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import tomli_w

from fairbloom.protocol.version import RUN_FOLDER_FORMAT as FORMAT
from fairbloom.text import text_if

if TYPE_CHECKING:
    from fairbloom.tasks.models.made import Made
    from fairbloom.tasks.task import Task


# The key in config.toml of the number of settings that follow, by which a cut-off file is known.
NUMBER_OF_SETTINGS = "number-of-settings"


@dataclass(frozen=True)
class RunStart:
    """The facts that are known when a run begins.

    `data` has checksums of files; `engine` is empty if the run does not choose one. `is_own` is
    whether the task is a user's own. `made` is how its model is made.
    """

    task: "Task"
    data: Mapping[str, str]
    engine: Mapping[str, object]
    deployed: bool
    is_own: bool = False
    made: "Made | None" = None


@dataclass(frozen=True)
class RecordedSettings:
    """The content of config.toml: a run's settings as last used, empty if no run has begun."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def num_rounds(self) -> int:
        """The number of rounds that the settings ask for."""
        return int(self.settings.get("num-rounds", 0))

    def encode(self) -> bytes:
        """Return the content of config.toml."""
        return tomli_w.dumps(
            {
                "run-folder-format": self.format,
                NUMBER_OF_SETTINGS: len(self.settings),
                **self.settings,
            },
            multiline_strings=True,
        ).encode()

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Return the settings that `encode` wrote; raise ValueError for any other content."""
        try:
            settings = tomllib.loads(content.decode())
        except ValueError as error:
            cut = text_if(not content.endswith(b"\n"), "it is cut off: ")
            raise ValueError(f"{cut}it is not valid TOML: {error}") from error
        number = settings.pop("run-folder-format", None)
        if not isinstance(number, int):
            raise ValueError(f"it has run-folder-format = {number!r}, which is not a number")
        count = settings.pop(NUMBER_OF_SETTINGS, 0)
        if isinstance(count, int) and len(settings) < count:
            raise ValueError(f"it is cut off: it has {len(settings)} of {count} settings")
        return cls(settings, number)


@dataclass(frozen=True)
class Known:
    """The deployed clients that a run knows by name: those at its start, and all so far."""

    began: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
