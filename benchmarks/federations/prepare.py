"""Check the tables of the federations, and draw samples of the largest.

Of acs-income they have a tenth of each state's rows, of flights at most 20,000 rows a client.

FAIRBLOOM_DATA names the folder that has them below `federations`; docs/data-sets.md says where they
come from. `benchmarks.methods` calls this.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from fairbloom.errors import FairbloomError

from ..tables import read_csv

HERE = Path(__file__).parent

SOURCES = HERE / "sources.csv"
"""A row for each table: its clients, rows and source, its licence and its SHA-256."""

ACS = "acs-income"

SHARE = 0.1
"""Of each state's rows in the sample."""

FLIGHTS: Mapping[str, str] = {"flights-carrier": "carrier", "flights-destination": "dest"}
"""The column with the clients, by table; both are drawn from one file."""

MOST = 20_000
"""Rows of a client in the sample of flights."""

COLUMNS = ("AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P")
"""The inputs of acs-income, named as in the census."""

QUANTITIES = ("AGEP", "SCHL", "WKHP")
"""Age, years of schooling and hours a week; the numbers of the other columns are codes."""


def data_of(table: str, out: Path) -> tuple[Path, Path]:
    """Return the data and the schema of a federation, made below `out` if it is a sample.

    Raise FairbloomError if a table is missing or another one than was measured.
    """
    if table in FLIGHTS:
        flights = folder_of_tables() / "flights.parquet"
        check("flights", [flights])
        part = out / f"{table}.parquet"
        draw_flights(flights, FLIGHTS[table], part)
        return part, HERE / f"{table}.toml"
    if table != ACS:
        path = folder_of_tables() / f"{table}.csv"
        check(table, [path])
        return path, HERE / f"{table}.toml"
    sample = out / ACS
    schema = out / f"{ACS}.toml"
    if not schema.exists():  # it is written last
        draw(states_of(folder_of_tables()), sample, schema)
    return sample, schema


def folder_of_tables() -> Path:
    """Return the folder that has the tables."""
    return Path(os.environ.get("FAIRBLOOM_DATA", "data"), "federations")


def states_of(folder: Path) -> list[Path]:
    """Return the files of acs-income; raise FairbloomError as `check`."""
    states = sorted(folder.joinpath(ACS).glob("*.parquet"))
    check(ACS, states)
    return states


def check(table: str, files: list[Path]) -> None:
    """Raise FairbloomError unless the files have the table's sum in SOURCES."""
    (wanted,) = (row["sha256"] for row in read_csv(SOURCES) if row["table"] == table)
    digest = hashlib.sha256()
    for path in files:
        if not path.is_file():
            break
        digest.update(path.read_bytes())
    if digest.hexdigest() != wanted:
        raise FairbloomError(
            f"{table}: the tables below FAIRBLOOM_DATA/federations are missing, or others than"
            " were measured: docs/data-sets.md says where they come from"
        )


def draw(states: list[Path], sample: Path, schema: Path) -> None:
    """Write a tenth of each state's rows into `sample`, and the schema of all."""
    sample.mkdir(parents=True, exist_ok=True)
    codes: dict[str, set[int]] = {name: set() for name in COLUMNS if name not in QUANTITIES}
    for path in states:
        rows = pd.read_parquet(path)
        for name, found in codes.items():
            found.update(rows[name].tolist())
        rows.sample(frac=SHARE, random_state=0).to_parquet(sample / path.name)
    lines = ['target = "PINCP"', 'positive = "True"', 'groups = ["SEX", "RAC1P", "MAR"]']
    for name in COLUMNS:
        lines += ["", f"[fields.{name}]"]
        if name in QUANTITIES:
            lines.append('type = "number"')
        else:
            lines += ['type = "integer"', f"categories = {sorted(codes[name])}"]
    lines += ["", "[fields.PINCP]", 'type = "string"', 'categories = ["False", "True"]', ""]
    schema.write_text("\n".join(lines))


def draw_flights(flights: Path, client: str, sample: Path) -> None:
    """Write at most MOST rows of each client, in the order of the file."""
    shuffled = pd.read_parquet(flights).sample(frac=1.0, random_state=0)
    sample.parent.mkdir(parents=True, exist_ok=True)
    shuffled.groupby(client).head(MOST).sort_index().to_parquet(sample)
