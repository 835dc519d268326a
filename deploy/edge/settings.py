"""Change a device's settings: `settings.py CLIENT.TOML [--bundle CLIENT.TOML] [--data-dir DIR]`; prints what changed.

Settings by which the operator knows the device are replaced by the bundle's. All others belong to the device's owner:
those lines stay as they are, comments with them, and win where the bundle has the same.
"""

import argparse
import os
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

OPERATOR_SETTINGS = ("superlink", "ca", "key", "name", "partition-id")
"""Settings that a bundle sets, each on one line."""


class SettingsFileError(Exception):
    """Settings that cannot be read or changed; the message names the file and the remedy."""


def merge_settings(file: Path, bundle: Path | None, data_dir: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the new text of a settings file, and the settings before and after."""
    old = file.read_text() if file.exists() else ""
    before = _parse(file, old)
    new = "" if bundle is None else bundle.read_text()
    replaced = [*(OPERATOR_SETTINGS if bundle else ()), *(["data-dir"] if data_dir else [])]
    kept_lines = _drop_lines(old, replaced)
    said = {**({} if bundle is None else _parse(bundle, new)), **({"data-dir": data_dir} if data_dir else {})}
    kept = {key: value for key, value in before.items() if key not in replaced}
    head = _drop_lines(new, [key for key in kept if key in said] + ["data-dir"] * bool(data_dir))
    text = head + (f'data-dir = "{data_dir}"\n' if data_dir else "") + kept_lines
    after = {**said, **kept}
    try:
        understood = tomllib.loads(text) == after
    except tomllib.TOMLDecodeError:
        understood = False
    if not understood:
        lines = ", ".join(key for key in after if before.get(key) != after[key])
        raise SettingsFileError(f"{file} is written in a way that is not understood: write {lines} into it by hand")
    return text, before, after


def _parse(file: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsFileError(
            f"{file} is not a TOML file: {error}; correct it, or delete it and write it again"
        ) from None


def _drop_lines(text: str, keys: list[str]) -> str:
    named = re.compile(rf"({'|'.join(map(re.escape, keys))})[ \t]*=") if keys else re.compile(r"(?!)")
    lines = (line if line.endswith("\n") else f"{line}\n" for line in text.splitlines(keepends=True))
    return "".join(line for line in lines if not named.match(line))


def describe_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what changed, a line each; nothing of settings that are new with the file."""
    if not before:
        return []
    lines = [
        f"{key} = {after[key]!r}" + (f", which was {before[key]!r}" if key in before else " is new")
        for key in after
        if after[key] != before.get(key)
    ]
    lines += [f"{key} = {before[key]!r} is removed" for key in before if key not in after]
    kept = [key for key in before if key not in OPERATOR_SETTINGS and before[key] == after.get(key)]
    return [*lines, f"unchanged: {', '.join(kept)}"] if kept else lines


def main() -> int:
    """Change the settings that are named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--data-dir", default="")
    given = parser.parse_args()
    try:
        text, before, after = merge_settings(given.file, given.bundle, given.data_dir)
    except (SettingsFileError, OSError, UnicodeDecodeError) as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    descriptor, draft = tempfile.mkstemp(dir=given.file.parent, prefix=".client.toml-")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(draft).chmod(0o644)
    Path(draft).replace(given.file)
    for line in describe_changes(before, after):
        print(f"install: {given.file.name}: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
