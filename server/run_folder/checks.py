"""Check that a run may begin or continue in a folder: settings, format, data, code, model."""

from collections.abc import Mapping
from pathlib import Path

from fairbloom.own_code import digest_own_code
from fairbloom.protocol.settings import Mark, marked, split_names
from fairbloom.protocol.version import RUN_FOLDER_FORMAT as FORMAT
from fairbloom.system.sealed import DamagedFileError
from fairbloom.text import join_first

from ..checkpoint import list_checkpoints
from ..settings import default_config, find_grown, resolve
from .errors import RunFolderError, check_place, explain_access_errors
from .files import (
    CHECKPOINTS,
    CONFIG,
    DATA,
    ENVIRONMENT,
    FRAMES,
    LOCK,
    MODEL,
    MODULES,
    NO_FILES,
    SCORES,
    is_finished,
    is_run_folder,
)
from .values import RecordedSettings

# What a folder may hold if making it was interrupted before its settings were written.
FIRST_LAID = (
    *(entry.name for entry in (LOCK, CHECKPOINTS, FRAMES)),
    *(
        name
        for file in (ENVIRONMENT, SCORES, MODULES, CONFIG)
        for name in (file.name, f".{file.name}.draft")
    ),
)

# The settings that name a folder on this machine.
FOLDERS = ("data-dir", "state-dir")

Config = Mapping[str, object]


def check_folder(path: Path, config: Config, code: Mapping[str, str] | None = None) -> None:
    """Raise RunFolderError if a run with these settings cannot use `path`; change nothing there.

    `code` has the checksums of the user's own modules, by default of those that the settings name.
    """
    check_place(path)
    with explain_access_errors(path):
        begun = is_run_folder(path)
        entries = [entry.name for entry in path.iterdir()] if path.exists() else []
    if begun:
        recorded = CONFIG.read(path)
        finished = is_finished(path)
        if recorded.format != FORMAT:
            older = f"use the version that wrote it, which {ENVIRONMENT.name} names,"
            remedy = "upgrade fairbloom" if recorded.format > FORMAT else older
            raise RunFolderError(
                f"{path} was written by another version (run-folder-format = {recorded.format},"
                f" this version reads {FORMAT}): {remedy} or choose another folder (--out)"
            )
        _check_same_settings(path, recorded, config, finished=finished)
        if code is None:
            code = digest_code(config)
        recorded_code = MODULES.read(path)
        if recorded_code and recorded_code != code:
            raise RunFolderError(
                f"your code has changed since the run in {path} was begun"
                f" ({_list_changed(recorded_code, code)}): choose another folder (--out) for runs"
                f" with the new code, or delete {path} to start again there"
            )
        if finished:
            try:
                MODEL.read(path)
            except DamagedFileError as error:
                raise RunFolderError(
                    f"{error}. Delete that file and run the same command again, which writes it"
                    " again from the last checkpoint"
                ) from error
    elif any(name not in FIRST_LAID for name in entries):
        raise RunFolderError(
            f"{path} is there already and is no run folder: choose another folder (--out)"
        )


def check_same_data(path: Path, digests: Mapping[str, str]) -> None:
    """Raise RunFolderError if the run in a folder began with data of other checksums."""
    if not digests:
        return
    recorded = {name: each for name, each in DATA.read(path).items() if name not in NO_FILES}
    if recorded and recorded != digests:
        raise RunFolderError(
            f"the data have changed since the run in {path} was begun"
            f" ({_list_changed(recorded, digests)}): put them back, or choose another folder"
            " (--out) for a run with the new data"
        )


def digest_code(config: Config) -> dict[str, str]:
    """Return a checksum of each user-defined module that settings name."""
    return digest_own_code(
        each for value in config.values() if isinstance(value, str) for each in split_names(value)
    )


def _list_changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    return join_first(
        sorted(name for name in {*before, *now} if before.get(name) != now.get(name)), 5
    )


def _check_same_settings(
    path: Path, recorded: RecordedSettings, config: Config, *, finished: bool
) -> None:
    # A setting that is newer than the folder had its default.
    there = {key: value for key, value in default_config().items() if key in config} | {
        **recorded.settings
    }
    grown = find_grown(there, config)
    before = there.get("num-rounds")
    now = config.get("num-rounds")
    shorter = isinstance(before, int) and isinstance(now, int) and now < before
    may_differ: dict[str, object] = {
        **dict.fromkeys(marked(Mark.LIMIT), grown or not finished),
        "num-rounds": shorter,
        # A continued run keeps the values that were decided when it began.
        "fraction": config.get("fraction") == 0.0,
        "score": config.get("score") == "",
        "data-dir": DATA.read(path),  # the checksums of the data decide, wherever they are now
    }
    free = {*marked(Mark.FREE), *grown, *(key for key, may in may_differ.items() if may)}
    differing = {
        key
        for key in (config.keys() | there.keys()) - free
        if not _is_same(key, there.get(key), config.get(key))
    }
    if differing:
        shown = (
            f"{key} = {_show(there.get(key))} there and {_show(config.get(key))} here"
            for key in sorted(differing)
        )
        raise RunFolderError(
            f"{path} belongs to a run with other settings ({', '.join(shown)}): choose another"
            " folder (--out)"
        )
    last = next((int(each.stem) for each in list_checkpoints(CHECKPOINTS.path_in(path))), 0)
    if shorter and last > int(str(now)):
        raise RunFolderError(
            f"{path} already has {last} rounds, which is more than num-rounds = {now}: give at"
            f" least {last}, or choose another folder (--out)"
        )


def _is_same(key: str, there: object, here: object) -> bool:
    """Return whether two values of a setting mean the same; folders may be written differently."""
    if there == here:
        return True
    if key not in FOLDERS or not isinstance(there, str) or not isinstance(here, str):
        return False
    return bool(there and here) and resolve(there) == resolve(here)


def _show(value: object) -> str:
    """Return a setting's value as text; the text of a whole file, such as a schema, is left out."""
    return "another text" if isinstance(value, str) and "\n" in value else repr(value)
