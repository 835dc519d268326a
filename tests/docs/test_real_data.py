"""What README.md and the pages say of data sets, recipes, models and searches: it works, and its
numbers are true.

Which method helps whom: numbers recomputed from docs/data by NumPy and SciPy alone.
"""

import csv
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from benchmarks.methods import WORKLOADS
from docs import which_method
from docs.hospitals import picture, served, table
from docs.reproduced import kept, matches, scores_of, table as table_of_scores
from docs.which_method import FAMILIES, Ranks, one_a_data_set, read_federations
from fairbloom import reproduce
from fairbloom.experiments.recipe import count_printed, load_recipe, names
from fairbloom.strategies import METHODS as REGISTERED
from fairbloom.tasks import TASKS
from fairbloom.tasks.models import MODELS
from tests.originals import needs

from .pages import ROOT, Block, blocks
from .reader import PROGRAMS, Reader

README, MEASURED, DATA_SETS, YOUR_MODEL = (
    (ROOT / name).read_text()
    for name in (
        "README.md",
        *(f"docs/{page}.md" for page in ("measured", "data-sets", "your-model")),
    )
)

# The data sets that are known by name, without those tasks that read a user's own files.
SHIPPED = [info for info in TASKS.values() if not info.reads]

RECIPES = [*map(load_recipe, names())]


def cells(page: str, heading: str = "") -> list[list[str]]:
    """Return the rows of the tables of a page, or of one of its sections, without bold marks."""
    text = page.partition(f"# {heading}\n")[2].partition("\n## ")[0] if heading else page
    lines = [line.replace("**", "") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def rows_of(name: str) -> list[list[str]]:
    """Return the rows of a table that the page on measurements shows or links, its heads first."""
    assert f"data/reproducing/{name}.csv" in MEASURED
    with (ROOT / "docs" / "data" / "reproducing" / f"{name}.csv").open(newline="") as file:
        return [*csv.reader(file)]


def section(page: str, heading: str) -> Block:
    (block,) = (each for each in blocks(page) if each.section == heading)
    return block


# Commands -----------------------------------------------------------------------------------------


@pytest.mark.slow
@needs("FashionMNIST/raw/train-images-idx3-ubyte")
@needs("adult/adult.data")
@pytest.mark.usefixtures("folder")
def test_the_commands_on_clients_that_come_with_the_data_work() -> None:
    reader = Reader()
    found = [
        block
        for block in blocks("docs/data-sets.md")
        if block.section == "Clients that come with the data"
    ]
    for block in found:
        reader.shell(block)
    reader.check_failed()
    assert found


@pytest.mark.slow
@needs("heart-disease/processed.va.data")
def test_the_commands_make_the_hospitals_table_and_picture(tmp_path: Path) -> None:
    """A few rows with two splits and two rounds; the page's commands have all rows, splits and
    rounds."""
    found = reproduce(
        "heart-disease",
        seeds=2,
        rows=["FedAvg (w", "Local", "Pooled"],
        settings={"num-rounds": 2},
        out=tmp_path,
        jobs=1,
        progress=False,
    )
    methods = served(found)
    assert {each.scores.shape for each in methods} == {(2, 4)}
    assert [each.losses is None for each in methods] == [False, False, True, False]
    assert len(table(methods)) == 5
    picture(methods).savefig(tmp_path / "picture.png")


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_optuna_asks_for_the_points_of_a_search() -> None:
    pytest.importorskip(
        "optuna", reason="Optuna is not installed: the reader of the page installs it"
    )
    exec(section("docs/comparing.md", "Larger spaces").text, {})  # noqa: S102 (a page of ours)
    assert len(list(Path("runs/optuna").iterdir())) == 3


@pytest.mark.slow
@needs("FashionMNIST/raw/train-images-idx3-ubyte")
@needs("adult/adult.data")
def test_the_recipes_are_listed_and_one_is_run(folder: Path) -> None:
    """A row of it, cut short; the pages' command has all rows, seeds and rounds."""
    lines = [
        line
        for block in [block for page in ("README.md", "docs/measured.md") for block in blocks(page)]
        for line in block.commands
        if line.startswith("fairbloom reproduce fed")
    ]
    assert len(lines) == 2
    (command,) = {shlex.join(shlex.split(line, comments=True)) for line in lines}
    command += " --quick --seeds 1 --rows FedFV --jobs 1"
    code, printed = PROGRAMS["fairbloom"](command, shlex.split(command))
    assert (code, len(re.findall(r"(?m)^FedFV \(alpha=.*– +1$", printed))) == (0, 6), printed
    assert "FedFV, Table 3" in printed
    assert (
        len([*(folder / "runs" / "reproduce" / "fedfv-table3-quick" / "runs").glob("fedfv-*")]) == 6
    )
    code, printed = PROGRAMS["fairbloom"]("", ["fairbloom", "reproduce", "--list"])
    assert (code, [name for name in names() if name not in printed]) == (0, [])
    assert "{} of {} printed numbers were run".format(*count_printed(RECIPES)) in printed


# Numbers ------------------------------------------------------------------------------------------


def test_the_readme_has_the_numbers_of_the_page_on_measurements(subtests: pytest.Subtests) -> None:
    table = {row[0]: row for row in rows_of("fedfv-table3")}
    shown = cells(README, "Reproduce a paper's table")[1:]
    assert {row[3][:3] for row in shown} == {"yes", "no:"}
    for name, printed, measured, agrees in shown:
        with subtests.test(name=name, printed=printed):
            _, mean, mean_here, std, std_here, row_agrees = table[name]
            assert [printed, measured] == [f"{mean}, {std}", f"{mean_here}, {std_here}"]
            assert (agrees == "yes") == (row_agrees == "yes")


@pytest.mark.parametrize(
    ("page", "heading"), [(README, "Reproduce a paper's table"), (MEASURED, "Papers' tables")]
)
def test_pages_give_the_recorded_time_of_a_recipe(page: str, heading: str) -> None:
    hours = {row[0]: row[3] for row in rows_of("recipes")}
    section = page.partition(f"# {heading}\n")[2].partition("\n## ")[0]
    said = re.findall(r"\bin (?:about )?([\w ]+ (?:minutes|hours?))\b", section)
    assert (hours["`fedfv-table3`"], said) == ("0.5", ["half an hour"])


def test_the_page_on_measurements_prints_what_the_recipe_has() -> None:
    _, *table = rows_of("fedfv-table3")
    recipe = load_recipe("fedfv-table3")
    assert [row[0] for row in table] == [recipe.name_of(row) for row in recipe.rows]
    at = [recipe.measures.index(measure) for measure in ("mean", "std")]
    assert [[row[1], row[3]] for row in table] == [
        [row.published[i].replace("± ", "±") for i in at] for row in recipe.rows
    ]


def test_the_page_on_measurements_prints_the_recipe_of_table_7() -> None:
    """And whether rows agree without the tolerance, or would with the numbers of other rows."""
    _, *table = rows_of("fedmgda-table7")
    recipe = load_recipe("fedmgda-table7")
    strict = recipe.model_copy(update={"tolerance": {}})
    published = [row.published for row in recipe.rows]
    for row, printed in zip(table, published, strict=True):
        assert [row[1], row[3], row[5]] == [n.replace("± ", "±") for n in printed]
        alike = [matches(recipe, numbers, row[2:7:2]) for numbers in published]
        is_strict = "yes" if matches(strict, printed, row[2:7:2]) else "no"
        assert row[7:] == ["yes", is_strict, str(sum(alike) - 1)]
    assert "14 without it" in MEASURED
    assert [row[8] for row in table].count("yes") == 14
    assert "122 of 306" in MEASURED
    assert sum(int(row[9]) for row in table) == 122


@pytest.mark.parametrize("name", kept())
def test_the_tables_are_those_of_the_kept_scores(name: str) -> None:
    lines = table_of_scores(load_recipe(name), scores_of(name))
    assert lines
    shown = {row[0]: row for row in rows_of(name)}
    assert lines == {row: shown.get(row) for row in lines}


# Names --------------------------------------------------------------------------------------------


def test_the_page_on_measurements_has_every_recipe() -> None:
    """With its state, and of how many printed numbers recipes were run."""
    _, *table = rows_of("recipes")
    assert {row[0]: row[2] for row in table} == {
        f"`{recipe.name}`": recipe.ran_in_words for recipe in RECIPES
    }
    assert "{} of {:,}".format(*count_printed(RECIPES)) in MEASURED


def test_the_page_on_data_sets_has_all_with_their_models(subtests: pytest.Subtests) -> None:
    rows = {
        row[0].strip("`"): row
        for row in cells(DATA_SETS)
        if len(row) == 4 and row[3].startswith("`")
    }
    assert rows.keys() == {info.name for info in SHIPPED}
    for info in SHIPPED:
        with subtests.test(info=info):
            assert re.findall(r"`(.+?)`", rows[info.name][3]) == [*info.models]
            assert all(file.path.split("/")[0] in DATA_SETS for file in info.files)
    dealt = {
        name for row in cells(DATA_SETS, "Who gets what") for name in re.findall(r"`(.+?)`", row[0])
    }
    assert dealt == {"--partition", "my_module:deal"} | {
        name for info in SHIPPED for name in info.partitions
    }


def test_the_page_on_models_has_every_one_with_its_parameters(subtests: pytest.Subtests) -> None:
    rows = [row for row in cells(YOUR_MODEL, "Models by name") if len(row) == 4][1:]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row[0])} == MODELS.keys()
    for row in rows:
        with subtests.test(row=row):
            for name in re.findall(r"`([\w-]+)`", row[0]):
                counts = re.findall(r"\d+,\d+(?:,\d+)?|\b200\b", row[2])
                assert counts
                assert [count for count in counts if count not in str(MODELS[name].__doc__)] == []


DATA = ROOT / "docs" / "data"
# The workloads of which each seed deals the data anew.
DEALT = {"digits", "shards", "fashion-mnist"}

SHARES = {"hospitals": 0.34 / 0.66 / 0.8}
Seeds = Mapping[tuple[str, str], Mapping[int, float]]
HEAD = (
    *("workload", "data", "clients", "model", "score", "rows"),
    *("cosine_low", "cosine", "cosine_high", "validation", "spread", "smallest", "largest"),
)
METHODS = ("fedavg", "term", "fedfv", "ditto", "local")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def seeds_of(folder: Path, name: str) -> dict[tuple[str, str], dict[int, float]]:
    """Return each method's measures by seed."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows(folder / f"{name}-seeds.csv"):
        for measure in ("mean", "worst_10"):
            found.setdefault((row["method"], measure), {})[int(row["seed"])] = float(row[measure])
    return found


def gains(values: Seeds, method: str, measure: str, sign: float) -> NDArray[np.float64]:
    mine, base = values[method, measure], values["fedavg", measure]
    return np.array([sign * (mine[seed] - base[seed]) for seed in sorted(mine.keys() & base)])


def holm(p_values: list[float]) -> list[float]:
    found = [0.0] * len(p_values)
    highest = 0.0
    for place, k in enumerate(sorted(range(len(p_values)), key=lambda k: p_values[k])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[k]))
        found[k] = highest
    return found


@pytest.fixture(params=["docs", "made up"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Return a folder of results, and one of what the generator writes of it."""
    tuned = DATA / "tuned"
    if request.param == "docs":
        return tuned, DATA / "which-method"
    tuned = tmp_path / "tuned"
    tuned.mkdir()
    make_up(tuned)
    which_method.write(tuned, tmp_path, tmp_path / "picture.svg")
    return tuned, tmp_path


def make_up(tuned: Path) -> None:
    """Write results of five federations, on which Ditto is best and TERM is second."""
    draws = np.random.default_rng(5)
    names = ("digits", "shards", "hospitals", "hsb82", "chem97", "star")
    about: list[list[Any]] = [[*HEAD]]
    for k, name in enumerate(names):
        error = name in ("hsb82", "star")
        data = "digits" if name == "shards" else name
        score = "mae" if error else "accuracy"
        about.append(
            [name, data, 20, "logistic", score, 100, -0.1, 0.1 * k, 0.5, 60.0, 3.0 + k, 2, 9]
        )
        lines: list[list[Any]] = [["method", "arm", "seed", "mean", "worst_10"]]
        for place, method in enumerate(METHODS):
            for seed in range(5):
                level = {"ditto": 9.0, "term": 4.0}.get(method, 0.1 * place)
                worst = 50.0 + (-level if error else level) + draws.normal(0.0, 0.5)
                lines.append([method, method, seed, 70.0 + draws.normal(), worst])
        write(tuned / f"{name}-seeds.csv", lines)
    write(tuned / "federations.csv", about)


def write(path: Path, lines: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(lines)


def numbers(cell: str) -> list[float]:
    return [float(each) for each in re.findall(r"[-+]?\d+\.\d+", cell)]


# Recomputed ---------------------------------------------------------------------------------------


def test_gains_and_intervals_are_those_of_the_seeds(
    written: tuple[Path, Path], subtests: pytest.Subtests
) -> None:
    tuned, out = written
    for about in rows(tuned / "federations.csv"):
        name = about["workload"]
        values = seeds_of(tuned, name)
        sign = -1.0 if about["score"] == "mae" else 1.0
        # a fifth is for the tests and one for validation; of the hospitals' rows FLamby's third
        share = 0.0 if name in DEALT else SHARES.get(name, 1 / 3)
        for file, measure in (("worst", "worst_10"), ("mean", "mean")):
            with subtests.test(name=name, measure=measure):
                cells = cells_of(out, file, name)
                for title in cells:
                    method = title.lower()
                    if method == "fedavg" or (method, measure) not in values:
                        continue
                    x = gains(values, method, measure, sign)
                    reach = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1)
                    reach *= np.sqrt(1.0 / len(x) + share)
                    expected = [x.mean(), x.mean() - reach, x.mean() + reach]
                    if np.ptp(x) <= 1e-9 * np.abs(x).max():  # no variance, so no interval
                        expected = expected[:1]
                    assert numbers(cells[title]) == pytest.approx(
                        expected, abs=0.051 if sign > 0 else 0.0051
                    )


def cells_of(out: Path, file: str, name: str) -> dict[str, str]:
    """Return a federation's gains by method, from the table that it is in."""
    tables = (rows(path) for path in out.glob(f"{file}*.csv"))
    return {row["method"]: row[name] for table in tables for row in table if name in row}


def test_gains_are_those_of_the_comparisons(subtests: pytest.Subtests) -> None:
    """Rounded, with the marks of the tests; a method's personal models come after its global one."""
    for about in rows(DATA / "tuned" / "federations.csv"):
        name = about["workload"]
        with subtests.test(name=name):
            found = {
                re.sub(r" \(.*", "", row["method"]): [*row.values()][-1]
                for row in rows(DATA / "tuned" / f"{name}.csv")
            }
            listed = cells_of(DATA / "which-method", "worst", name)
            listed.pop("FedAvg")
            assert {m: listed[m] for m in found if m in listed} == {
                m: gain.replace(" to ", "\u00a0to\u00a0")
                for m, gain in found.items()
                if m != "FedAvg"
            }


def counted(tuned: Path) -> Iterator[tuple[str, float, Seeds]]:
    """Yield the first workload of each data set, the sign of its scores, and its values."""
    seen = set()
    for about in rows(tuned / "federations.csv"):
        if about["data"] not in seen:
            seen.add(about["data"])
            sign = -1.0 if about["score"] == "mae" else 1.0
            yield about["workload"], sign, seeds_of(tuned, about["workload"])


def test_ranks_and_tests_over_data_sets_are_scipys(written: tuple[Path, Path]) -> None:
    tuned, out = written
    found = [*counted(tuned)]
    common = [m for m in REGISTERED if all((m, "mean") in values for *_, values in found)]
    scores = np.array(
        [
            [sign * np.mean([*values[m, "worst_10"].values()]) for m in common]
            for _, sign, values in found
        ]
    )
    ranks = stats.rankdata(-scores, axis=1)
    table = rows(out / "ranks.csv")
    assert [float(row["average rank"]) for row in table] == pytest.approx(
        sorted(ranks.mean(axis=0)), abs=0.051
    )
    text = (out / "findings.txt").read_text()
    assert f"p = {stats.friedmanchisquare(*ranks.T).pvalue:.2g})" in text
    base = scores[:, [common.index("fedavg")]]
    bounds = np.array([[1.0 if sign > 0 else 0.02] for _, sign, _ in found])
    bounds *= np.where(bounds < 1.0, np.abs(base), 1.0)
    of = {m: ((scores - base) / bounds)[:, k] for k, m in enumerate(common) if m != "fedavg"}
    by_title = {row["method"].lower(): row for row in table}
    differ = [stats.wilcoxon(x).pvalue if any(x) else 1.0 for x in of.values()]
    alike = [
        max(stats.wilcoxon(1 + sign * x, alternative="greater").pvalue for sign in (1, -1))
        for x in of.values()
    ]
    for column, p_values in (("p differs", differ), ("p equivalent", alike)):
        assert [float(by_title[m][column]) for m in of] == pytest.approx(
            holm(p_values), abs=0.00051
        )
    for m, x in of.items():
        assert numbers(by_title[m]["gain (90 %)"])[0] == pytest.approx(
            np.median([(a + b) / 2 for k, a in enumerate(x) for b in x[k:]]), abs=0.0051
        )


# What is said -------------------------------------------------------------------------------------


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    which_method.write(tmp_path, tmp_path / "out", tmp_path / "p.svg")
    assert "No federation was run yet" in (tmp_path / "out" / "findings.txt").read_text()
    missing = (tmp_path / "out" / "not-run.txt").read_text()
    assert [name for name in WORKLOADS if f"`{name}`" not in missing] == []
    assert len(rows(tmp_path / "out" / "ranks.csv")) == 1


def test_a_number_over_data_sets_is_of_the_same_methods(tmp_path: Path) -> None:
    """A method that ran on one data set alone is in no median, and named where it is best."""
    make_up(tmp_path)
    federations = read_federations(tmp_path)
    best = {seed: {"mean": 70.0, "worst_10": 90.0 + seed} for seed in range(5)}
    more = replace(federations[0], values={**federations[0].values, "afl": best, "drfa": best})
    assert Ranks([more, *federations[1:]]).fair_gains == pytest.approx(
        [np.mean([each.gain("term"), each.gain("fedfv")]) for each in federations]
    )
    sentence = which_method.fair_sentence([more, *federations[1:]])
    assert all(word in sentence for word in (f"{more.gain('afl'):+.1f}", "Of the 2 to 4 fair"))


def test_the_page_counts_what_holds_by_holm() -> None:
    """By the marks of the tables, among federations whose intervals exclude 0."""
    marked = {
        name
        for path in (DATA / "which-method").glob("worst*.csv")
        for row in rows(path)
        for name, cell in row.items()
        if row["method"].lower() in which_method.FAIR and cell[:3] == "**+" and cell[-3:] == "***"
    }
    text = (DATA / "which-method" / "findings.txt").read_text()
    ((count, named),) = re.findall(r"methods, (\d+) of them are left \((.+?)\)", text)
    assert (int(count), {*re.findall("`(.+?)`", named)}) == (len(marked), marked)


def test_a_data_set_counts_once_in_ranks(tmp_path: Path) -> None:
    make_up(tmp_path)
    federations = read_federations(tmp_path)
    assert [each.name for each in one_a_data_set(federations)] == [
        each.name for each in federations if each.name != "shards"
    ]


def test_each_method_is_in_one_family() -> None:
    assert sorted(m for family in FAMILIES.values() for m in family) == sorted(REGISTERED)


def test_files_of_the_page_are_those_that_are_generated(tmp_path: Path) -> None:
    out = DATA / "which-method"
    which_method.write(DATA / "tuned", tmp_path, tmp_path / "p.svg")
    assert not [
        path for path in out.iterdir() if (tmp_path / path.name).read_text() != path.read_text()
    ], "python -m docs.which_method writes them"


@pytest.mark.parametrize("path", [*(DATA / "which-method").iterdir()])
def test_the_pages_show_every_generated_file(path: Path) -> None:
    assert f"data/which-method/{path.name}" in "".join(
        (ROOT / "docs" / f"{name}.md").read_text() for name in ("which-method", "comparing")
    )


@pytest.mark.parametrize("workload", ["acs-income", "acs-income-mlp"])
def test_gaps_of_all_groups_and_methods_are_shown(workload: str) -> None:
    table = rows(DATA / "tuned" / f"{workload}-gaps.csv")
    assert {name.partition(",")[0] for name in table[0]} == {"method", "SEX", "RAC1P", "MAR"}
    assert [row["method"] for row in table] == [
        row["method"] for row in rows(DATA / "tuned" / f"{workload}.csv")
    ]
    assert f"data/tuned/{workload}-gaps.csv" in (ROOT / "docs" / "which-method.md").read_text()


def test_what_the_page_says_of_gaps_is_in_their_table() -> None:
    gaps = {row.pop("method"): row for row in rows(DATA / "tuned" / "acs-income-gaps.csv")}
    for column in ("SEX", "RAC1P", "MAR"):
        of = {name: float(row[f"{column}, selection-rate"]) for name, row in gaps.items()}
        assert min(of, key=of.__getitem__).startswith("FCFL")
    means = {row["method"]: float(row["mean"]) for row in rows(DATA / "tuned" / "acs-income.csv")}
    assert min(means, key=means.__getitem__).startswith("FCFL")
