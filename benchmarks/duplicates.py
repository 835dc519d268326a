"""How often remarks on equal rows are right: in federations as they are, and of planted copies.

FOLDER holds the federations of docs/decisions.md as files. A row is of a kind of copy and a number
of rows a site: the clients that `find_repeated` and the sets that `find_common` name in a
federation as it is, on average, and the share of planted copies that are found. --others is the
federations on which nothing was set.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.random import Generator

from fairbloom.tables.duplicates import ComparedRows, find_common, find_repeated

from .profiles import OTHERS, ROWS, TUNED
from .tables import parser_of, print_table

Clients = Mapping[str, ComparedRows]

# What plants copies: gets a table of all sites, the rows of a site, and those of another one, and
# returns these with copies of the first's.
Plant = Callable[[np.ndarray, np.ndarray, Generator], dict[str, np.ndarray]]


def choose_tenth(rows: np.ndarray, random: Generator) -> np.ndarray:
    """Return a tenth of some rows."""
    return random.permutation(rows)[: len(rows) // 10]


PLANTS: Mapping[str, Plant] = {
    "a tenth of a site's rows, twice": lambda here, there, random: {
        "here": np.concatenate([here, choose_tenth(here, random)]),
        "there": there,
    },
    "all of a site's rows, twice": lambda here, there, _: {
        "here": np.concatenate([here, here]),
        "there": there,
    },
    "a tenth of a site's rows, at another": lambda here, there, random: {
        "here": here,
        "there": np.concatenate([there, choose_tenth(here, random)]),
    },
    "all of a site's rows, at another": lambda here, there, random: {
        "here": here,
        "again": random.permutation(here),
        "there": there,
    },
}


def encode(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the columns of a data frame as those of an encoded file."""
    return {
        name: column.to_numpy(float)
        if column.dtype.kind in "ifb"
        else np.asarray(pd.Categorical(column).codes, np.int32)
        for name, column in table.items()
    }


def count_remarks(clients: Clients) -> int:
    """Return the number of clients and of sets of clients with copies."""
    return len(find_repeated(clients)) + len([*find_common(clients)])


def finds(plant: Plant, clients: Clients, size: int, random: Generator) -> list[bool]:
    """Return whether copies among two sites of a federation are found; [] if it has none so large.

    `size` is the number of rows that are drawn of each site.
    """
    large = [each for each in clients.values() if len(each) >= size]
    if len(large) < 2:
        return []
    sites = [large[place] for place in random.permutation(len(large))[:2]]
    here, there = (random.permutation(each.rows)[:size] for each in sites)
    copied = plant(here, there, random)
    return [
        count_remarks({name: replace(sites[0], rows=rows) for name, rows in copied.items()}) > 0
    ]


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path, help="the folder of the federations' files")
    parser.add_argument("--others", action="store_true", help="those on which nothing was set")
    parser.add_argument("--draws", type=int, default=20, help="draws of each federation")
    options = parser.parse_args()
    names = OTHERS if options.others else TUNED
    read = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    files = {path.stem: path for path in options.folder.iterdir() if path.stem in names}
    federations: list[Clients] = []
    for name, client in names.items():
        table = read[files[name].suffix](files[name])
        columns = encode(table.drop(columns=client))
        sites = table.groupby(client).indices
        federations.append({str(site): ComparedRows(columns, sites[site]) for site in sites})
    remarks = sum(map(count_remarks, federations)) / len(federations)
    rows = []
    for (kind, plant), size in product(PLANTS.items(), ROWS):
        found: list[bool] = []
        for (place, clients), draw in product(enumerate(federations), range(options.draws)):
            found += finds(plant, clients, size, np.random.default_rng((place, draw, size)))
        rows.append(
            {
                "kind": kind,
                "rows": size,
                "a federation": round(remarks, 2),
                "planted": len(found),
                "found": round(sum(found) / max(len(found), 1), 2),
            }
        )
    print_table("Copies, false and planted", rows, as_csv=options.csv)


if __name__ == "__main__":
    main()
