"""Data frames as the files of clients: kept as Parquet in the folder of the run or study."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fairbloom.errors import FairbloomError, join_names
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.errors import check_place, explain_write_errors
from fairbloom.server.run_folder.files import FRAMES
from fairbloom.system.files import write_whole
from fairbloom.tables.frames import check_frame

from .options import merge_settings

if TYPE_CHECKING:
    import pandas
    import pyarrow

# The table of each client, by the client's name.
Frames = Mapping[str, "pandas.DataFrame"]


def settings_of_frames(
    data: Frames | None,
    target: str,
    out: str | os.PathLike[str] | None,
    config: Mapping[str, Value],
) -> dict[str, Value]:
    """Write data frames below a folder, and return the settings of runs that read them.

    Without frames, only the target is added to the settings.

    Raises
    ------
    FairbloomError
        When the folder has other frames, a frame is not a table, or another setting names the data.
    """
    named = merge_settings({"csv.target": target}, {})
    given = {key: value for key, value in named.items() if value}
    if data is None:
        return merge_settings(given, config)
    if not isinstance(data, Mapping):
        raise SettingsError(
            "data: give a data frame for each client by name (from one frame:"
            ' {name: rows.drop(columns="site") for name, rows in data.groupby("site")}),'
            " or name a folder of files by data_dir"
        )
    if out is None:
        raise SettingsError("data are frames: name the folder that keeps them and the run (out)")
    if config.get("data-dir"):
        raise SettingsError(f"data-dir = {config['data-dir']!r}: the data are frames: leave it out")
    folder = write_frames(data, FRAMES.path_in(Path(out)))
    return merge_settings({"task": "csv", "data-dir": str(folder), **given}, config)


def write_frames(data: Frames, folder: Path) -> Path:
    """Write each frame as a Parquet file, NAME.parquet, into a folder; return the folder.

    The index is left out. Frames that are there already must be the same.
    """
    from pyarrow import parquet  # imported late, as pandas: it takes a second

    check_place(folder.parent)
    tables = {f"{name}.parquet": _table_of(str(name), frame) for name, frame in data.items()}
    there = {path.name: path for path in folder.glob("*.parquet")}
    if there:
        changed = [
            *sorted(there.keys() ^ tables.keys()),
            *(
                name
                for name, path in there.items()
                if name in tables and not parquet.read_table(path).equals(tables[name])
            ),
        ]
        if changed:
            raise FairbloomError(
                f"{folder} has other data, with which runs there began"
                f" ({join_names(changed)} differ): give the same frames, or choose another folder"
                " (--out)"
            )
        return folder
    with explain_write_errors("the data frames", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            write_whole(folder / name, _encode(table))
    return folder


def _table_of(name: str, frame: "pandas.DataFrame") -> "pyarrow.Table":
    """Return a frame as the table that its file holds; raise FairbloomError if it cannot be one."""
    import pyarrow
    from pyarrow import parquet

    if not name or name != Path(name).name or name.startswith("."):
        raise FairbloomError(f"data[{name!r}]: a client's name must be that of a file")
    check_frame(f"data[{name!r}]", frame)
    twice = [*frame.columns[frame.columns.duplicated()]]
    if twice:
        raise FairbloomError(
            f"data[{name!r}] has two columns {twice[0]!r}: rename or drop one of them"
        )
    for column in frame.columns:
        if not _fits_file(frame[[column]]):
            raise FairbloomError(
                f"data[{name!r}], column {column!r}: a file cannot hold values of"
                f" {_kinds_in(frame[column])} in one column: make texts of them by .astype(str), or"
                " drop it"
            )
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    index = [str(level) for level in frame.index.names if level is not None]
    if index:
        raise FairbloomError(
            f"data[{name!r}] has {join_names(index)} as its index, which is left out: make it a"
            " column by reset_index(), or drop it by reset_index(drop=True)"
        )
    # As read from the file: without categories and other types of pandas.
    return parquet.read_table(pyarrow.BufferReader(_encode(table)))


def _fits_file(column: "pandas.DataFrame") -> bool:
    """Return whether a Parquet file can hold a frame of one column."""
    import pyarrow

    try:
        kind = pyarrow.Table.from_pandas(column, preserve_index=False).schema.types[0]
    # Their texts are not shown: they quote cells.
    except (AttributeError, TypeError, ValueError, NotImplementedError, OverflowError):
        return False
    return "extension<" not in str(kind)  # as of intervals and periods


def _kinds_in(column: "pandas.Series") -> str:
    """Return the types of a column's values as text: "int, str"."""
    kinds = {type(value).__name__ for value in column}
    return join_names(sorted(kinds))


def _encode(table: "pyarrow.Table") -> bytes:
    import pyarrow
    from pyarrow import parquet

    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table.replace_schema_metadata(), sink, store_schema=False)
    return bytes(sink.getvalue())
