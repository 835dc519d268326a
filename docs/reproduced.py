"""Keep the clients' scores behind the tables of papers, and make the tables from them.

`python -m docs.reproduced runs/reproduce/NAME …` keeps the last round of these reproductions below
docs/data/reproducing/raw, and then writes the rows of all tables that it has such scores of.
"""

import csv
import gzip
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas

from benchmarks.tables import write_lines
from fairbloom.experiments.recipe import Printed, Recipe, load_recipe
from fairbloom.experiments.results.differences import mean_and_deviation
from fairbloom.experiments.results.measures import ClientScores, find_measure
from fairbloom.experiments.results.reproduction import agree
from fairbloom.experiments.studies.reproduce import load_reproduction
from fairbloom.experiments.study import find_study
from fairbloom.protocol.scores import ACCURACY

TABLES = Path(__file__).parent / "data" / "reproducing"

RAW = TABLES / "raw"

COLUMNS = ("row", "seed", "client", "test_examples", "accuracy")

Scores = Mapping[str, Mapping[int, ClientScores]]
"""The clients' accuracies in the last round, by row and seed."""


def keep(folder: Path) -> None:
    """Write the clients' accuracies of a folder's runs, a line for each."""
    study = find_study(folder)
    if study is None:
        raise SystemExit(f"{folder} has no reproduction: name the folder of one")
    done = load_reproduction(folder, study, trust=False)
    lines = list[tuple[str, int, str, int, float]]()
    for outcome in done.outcomes:
        name = done.recipe.name_of(outcome.row)
        for seed, run in sorted(outcome.runs.items()):
            tested = run.test_examples()
            accuracies = run.final(ACCURACY, outcome.row.evaluated)
            lines += [(name, seed, each, tested[each], value) for each, value in accuracies.items()]
    text = pandas.DataFrame(lines, columns=[*COLUMNS]).to_csv(index=False, lineterminator="\n")
    RAW.mkdir(exist_ok=True)
    # without the time, so that the same scores are the same file
    (RAW / f"{done.recipe.name}.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def kept() -> list[str]:
    """Return the names of the recipes of which there are scores."""
    return sorted(path.name.removesuffix(".csv.gz") for path in RAW.glob("*.csv.gz"))


def scores_of(name: str) -> Scores:
    """Return the kept scores of a recipe."""
    lines = pandas.read_csv(RAW / f"{name}.csv.gz")
    found: dict[str, dict[int, ClientScores]] = {}
    for (row, seed), each in lines.groupby(["row", "seed"], sort=False):
        of_clients = each.set_index("client")
        values = of_clients["accuracy"].to_dict()
        tested = of_clients["test_examples"].to_dict()
        found.setdefault(row, {})[seed] = ClientScores(values, ACCURACY, tested)
    return found


def table(recipe: Recipe, scores: Scores) -> dict[str, list[str]]:
    """Return the lines of a recipe's table by row, of those rows that have scores.

    For each measure that the recipe judges by there is what was printed, if anything was, and what
    was measured; then whether they agree.
    """
    judged = recipe.judged or recipe.measures
    lines: dict[str, list[str]] = {}
    for row in recipe.rows:
        name = recipe.name_of(row)
        if name not in scores:
            continue
        printed = recipe.published(row)
        cells: list[str] = []
        wrong: list[str] = []
        for measure in judged:
            values = [find_measure(measure).of(served) for served in scores[name].values()]
            found = mean_and_deviation(values)
            if measure in printed:
                cells.append(row.published[recipe.measures.index(measure)].replace("± ", "±"))
                if not agree(recipe, measure, printed[measure], found, len(values)):
                    wrong.append(measure)
            cells.append(f"{found[0]:.2f} ±{found[1]:.2f}")
        if printed:
            cells.append(f"not in {' and '.join(wrong)}" if wrong else "yes")
        lines[name] = [name, *cells]
    return lines


def matches(recipe: Recipe, printed: Sequence[str], measured: Sequence[str]) -> bool:
    """Return whether cells of measured numbers, of five seeds, agree with printed ones."""
    for measure, cell, found in zip(recipe.measures, printed, measured, strict=True):
        number, spread = map(float, found.split("±"))
        wanted = Printed.of(cell)
        if wanted is None or not agree(recipe, measure, wanted, (number, spread), 5):
            return False
    return True


def write(name: str) -> None:
    """Write the table of a recipe; rows without kept scores stay as they are."""
    recipe = load_recipe(name)
    lines = table(recipe, scores_of(name))
    path = TABLES / f"{name}.csv"
    judged = recipe.judged or recipe.measures
    pairs = [cell for measure in judged for cell in (f"{measure}, printed", "measured")]
    is_printed = any(row.published for row in recipe.rows)
    heads = ["row", *pairs, "agrees"] if is_printed else ["row", *judged]
    before: Sequence[Sequence[str]] = []
    if path.exists():
        with path.open(newline="") as file:
            before = [*csv.reader(file)][1:]
    lines = {line[0]: [*line] for line in before} | lines
    write_lines(path, [heads, *lines.values()])


def main() -> None:
    """Keep the scores of the folders that are named, and write the tables."""
    for folder in map(Path, sys.argv[1:]):
        keep(folder)
    for name in kept():
        write(name)


if __name__ == "__main__":
    main()
