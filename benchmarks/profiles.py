"""How often `compare` is right: what it finds in federations as they are, and of planted faults.

A row is of a kind of finding, a number of sites, a floor k and rows a site: the findings in a
federation as it is, on average; how many of the planted faults were found, and how many had the
line that cures them; and the share of fields of which it says that too few rows tell. FOLDER holds
the federations of docs/decisions.md as files. Thresholds were set on TUNED; --others is the rest.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.random import Generator

from fairbloom.tables.comparison import Named, compare, match_names
from fairbloom.tables.conversions import CONVERSIONS
from fairbloom.tables.findings import Explained, Finding
from fairbloom.tables.profiles import Cells, ColumnProfile, profile
from fairbloom.tables.wordings import read_answers

from .tables import Row, parser_of, print_table

# The column of clients of each federation.
TUNED = {
    "chem97": "district",
    "hsb82": "school",
    "contraception": "district",
    "star": "sch",
    "exam": "school",
    "gcsemv": "school",
    "scotssec": "second",
    "guprenat": "cluster",
    "bdf": "schoolNR",
    "radon": "county",
}
OTHERS = {
    "wvs": "country",
    "gssvocab": "year",
    "males": "industry",
    "guimmun": "comm",
    "insteval": "lecturer",
    "flights": "carrier",
}

SITES = (3, 5, 40)
FLOORS = (1, 5, 20)
ROWS = (60, 400)

# Conversions by at least so much are planted.
FEWEST_TIMES = 4.0

Sites = dict[str, dict[str, Cells]]

# What plants a fault in a column of a site: the cells with it; None if the column cannot have it.
Plant = Callable[[Cells, Generator], Cells | None]


def cells_of(column: "pd.Series[float]") -> Cells:
    """Return a column of a data frame as cells."""
    missing = int(column.isna().sum())
    words = {"": missing} if missing else {}
    if column.dtype.kind in "ifb":
        return Cells(column.to_numpy(float), np.full(len(column), -1), (), words)
    texts = pd.Categorical(column.astype("string"))
    nothing = np.full(len(column), np.nan)
    return Cells(nothing, np.asarray(texts.codes, np.int64), [*map(str, texts.categories)], words)


def draw(table: pd.DataFrame, client: str, sites: int, rows: int, random: Generator) -> Sites:
    """Return some rows of some of a federation's sites; of fewer sites if it has no more."""
    large = {str(name): group for name, group in table.groupby(client) if len(group) >= rows}
    names = random.permutation([*large])[:sites]
    return {
        name: {
            column: cells_of(part[column])
            for part in [large[name].sample(rows, random_state=random)]
            for column in table.columns
            if column != client
        }
        for name in names
    }


def findings_of(sites: Sites, floor: int) -> tuple[list[Finding], int]:
    """Return the findings on sites, and the number of fields."""
    fields: dict[str, dict[str, ColumnProfile]] = defaultdict(dict)
    for site, cells in sites.items():
        for name, each in profile(cells, floor).items():
            fields[name][site] = each
    shared = {name: profiles for name, profiles in fields.items() if len(profiles) > 1}
    own: dict[str, dict[str, ColumnProfile]] = defaultdict(dict)
    for name, profiles in fields.items():
        for site, each in profiles.items() if len(profiles) == 1 else ():
            own[site][name] = each
    return [*match_names(shared, own), *compare(shared)], len(shared)


# Faults -------------------------------------------------------------------------------------------


def of_numbers(change: Callable[[np.ndarray, Generator], np.ndarray]) -> Plant:
    """Return a fault of a column with many different numbers."""

    def plant(cells: Cells, random: Generator) -> Cells | None:
        numbers = cells.numbers[~np.isnan(cells.numbers)]
        if len(np.unique(numbers)) <= 20 or numbers.min() < 0.0:
            return None
        return replace(cells, numbers=change(cells.numbers.copy(), random))

    return plant


def of_texts(change: Callable[[list[str], Counter[int]], list[str] | None]) -> Plant:
    """Return a fault in the names of categories; `change` gets them and the rows of each."""

    def plant(cells: Cells, _: Generator) -> Cells | None:
        counts = Counter(cells.codes[cells.codes >= 0].tolist())
        if len(counts) < 2:
            return None
        texts = change([*cells.texts], counts)
        return None if texts is None else replace(cells, texts=texts)

    return plant


def convert(numbers: np.ndarray, random: Generator) -> np.ndarray:
    """Return numbers in another unit, chosen by chance."""
    ways = [way for way in CONVERSIONS if max(way.factor, 1 / way.factor) >= FEWEST_TIMES]
    way = ways[random.integers(len(ways))]
    return numbers * way.factor + way.offset


def put(code: float) -> Callable[[np.ndarray, Generator], np.ndarray]:
    """Return what writes a code into a tenth of the rows."""

    def change(numbers: np.ndarray, random: Generator) -> np.ndarray:
        numbers[random.random(len(numbers)) < 0.1] = code
        return numbers

    return change


def fill(numbers: np.ndarray, _: Generator) -> np.ndarray:
    """Return numbers that are all 0, as an export may write missing values."""
    return np.where(np.isnan(numbers), numbers, 0.0)


def mix(numbers: np.ndarray, random: Generator) -> np.ndarray:
    """Return numbers of which every second one is in another unit."""
    numbers[::2] = convert(numbers[::2], random)
    return numbers


def empty(cells: Cells, random: Generator) -> Cells:
    """Return a column of which half of the rows are emptied."""
    gone = random.random(len(cells.codes)) < 0.52
    filled = int((cells.is_filled & ~gone).sum())
    return Cells(
        np.where(gone, np.nan, cells.numbers),
        np.where(gone, -1, cells.codes),
        cells.texts,
        {"": len(gone) - filled},
    )


def lose(cells: Cells, _: Generator) -> Cells | None:
    """Return categories without the most frequent one."""
    counts = Counter(cells.codes[cells.codes >= 0].tolist())
    if len(counts) < 2:
        return None
    most, second = [code for code, _ in counts.most_common(2)]
    return replace(cells, codes=np.where(cells.codes == most, second, cells.codes))


def misspell(texts: list[str], counts: Counter[int]) -> list[str] | None:
    """Return categories of which the most frequent one has a letter twice."""
    most = counts.most_common(1)[0][0]
    if len(texts[most]) < 5 or not texts[most].isalpha():
        return None
    texts[most] = texts[most][:3] + texts[most][2:]
    return texts


def translate(texts: list[str], _: Counter[int]) -> list[str] | None:
    """Return two answers in another language."""
    answers = read_answers(texts)
    spanish = {"yes": "sí", "no": "no", "female": "mujer", "male": "varón"}
    return [spanish[answers[text]] for text in texts] if answers else None


def shift(cells: Cells, _: Generator) -> Cells | None:
    """Return codes that begin one later."""
    different = np.unique(cells.numbers[~np.isnan(cells.numbers)])
    if not 2 <= len(different) <= 6 or (different != np.round(different)).any():
        return None
    return replace(cells, numbers=cells.numbers + 1.0)


PLANTS: Mapping[str, Plant] = {
    "missing": empty,
    "numbers": of_numbers(convert),
    "heap": of_numbers(fill),
    "categories": of_texts(lambda texts, _: [f"{text}*x" for text in texts]),
    "codes": shift,
    "lacking": lose,
    "spelling": of_texts(misspell),
    "wording": of_texts(translate),
    "far": of_numbers(put(99_999.0)),
    "negative": of_numbers(put(-9.0)),
    "zero": of_numbers(put(0.0)),
    "two-units": of_numbers(mix),
}


def plant_faults(sites: Sites, random: Generator) -> Iterator[tuple[str, str, str, Sites]]:
    """Yield each kind of fault with a field, a site, and the sites with it."""
    for kind, plant in PLANTS.items():
        pairs = random.permutation([*product(sites, next(iter(sites.values())))])
        for site, field in pairs.tolist():
            changed = plant(sites[site][field], random)
            if changed is not None:
                yield kind, field, site, {**sites, site: {**sites[site], field: changed}}
                break
    site = [*sites][random.integers(len(sites))]
    renamed = {f"{name} renamed": cells for name, cells in sites[site].items()}
    yield "name", "", site, {**sites, site: renamed}


def is_hit(finding: Finding, kind: str, field: str, site: str) -> bool:
    """Return whether a finding is of a planted fault."""
    if kind == "name":
        return isinstance(finding, Named) and finding.column == f"{finding.field} renamed"
    is_there = finding.field == field and site in finding.sites
    return is_there and finding.kind not in ({"untold", "sorts", "spelling"} - {kind})


def measure(
    tables: Mapping[str, pd.DataFrame],
    clients: Mapping[str, str],
    case: tuple[int, int, int],
    seeds: int,
) -> Iterator[Row]:
    """Yield a row for each kind, for a number of sites, a floor and rows a site."""
    count, floor, rows = case
    seen: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    cures: Counter[str] = Counter()
    planted: Counter[str] = Counter()
    fields = 0
    draws = 0
    for (place, name), seed in product(enumerate(tables), range(seeds)):
        random = np.random.default_rng((place, seed, *case))
        sites = draw(tables[name], clients[name], count, rows, random)
        if len(sites) < 3:
            continue
        draws += 1
        findings, known = findings_of(sites, floor)
        fields += known
        seen.update(each.kind for each in findings)
        for kind, field, site, faulty in plant_faults(sites, random):
            after, _ = findings_of(faulty, floor)
            found = [each for each in after if is_hit(each, kind, field, site)]
            planted[kind] += known if kind == "name" else 1
            hits[kind] += len(found) if kind == "name" else bool(found)
            cures[kind] += any(isinstance(each, Explained) and each.explained_by for each in found)
    for kind in sorted({*seen, *planted}):
        yield {
            "kind": kind,
            "sites": count,
            "k": floor,
            "rows": rows,
            "a federation": round(seen[kind] / max(draws, 1), 2),
            "planted": planted[kind],
            "found": round(hits[kind] / max(planted[kind], 1), 2),
            "cured": round(cures[kind] / max(planted[kind], 1), 2),
            "of fields": round(seen[kind] / max(fields, 1), 2),
        }


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path, help="the folder of the federations' files")
    parser.add_argument("--others", action="store_true", help="those on which nothing was set")
    parser.add_argument("--seeds", type=int, default=5, help="draws of each federation")
    options = parser.parse_args()
    clients = OTHERS if options.others else TUNED
    read = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    files = {path.stem: path for path in options.folder.iterdir() if path.stem in clients}
    tables = {name: read[files[name].suffix](files[name]) for name in clients}
    rows = [
        row
        for case in product(SITES, FLOORS, ROWS)
        for row in measure(tables, clients, case, options.seeds)
    ]
    print_table("Findings, false and planted", rows, as_csv=options.csv)


if __name__ == "__main__":
    main()
