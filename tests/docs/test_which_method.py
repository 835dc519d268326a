"""Which method helps whom: numbers recomputed from docs/data by NumPy and SciPy alone."""

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from benchmarks.methods import WORKLOADS
from docs import which_method
from docs.which_method import FAMILIES, Ranks, nemenyi, one_a_data_set, read_federations
from fairbloom.strategies import METHODS as REGISTERED

from .pages import ROOT

DATA = ROOT / "docs" / "data"
DEALT = {"digits", "shards", "fashion-mnist"}
"""The workloads of which each seed deals the data anew."""

SHARES = {"hospitals": 0.34 / 0.66 / 0.8}
Seeds = Mapping[tuple[str, str], Mapping[int, float]]
HEAD = (
    *("workload", "data", "clients", "model", "score", "rows"),
    *("cosine_low", "cosine", "cosine_high", "spread", "smallest", "largest"),
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
            by_seed = found.setdefault((row["method"], measure), {})
            by_seed[int(row["seed"])] = float(row[measure])
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
        about.append([name, data, 20, "logistic", score, 100, -0.1, 0.1 * k, 0.5, 3.0 + k, 2, 9])
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
                    found = numbers(cells[title])
                    assert found == pytest.approx(expected, abs=0.051 if sign > 0 else 0.0051)


def cells_of(out: Path, file: str, name: str) -> dict[str, str]:
    """Return a federation's gains by method; the largest federations have a table of their own."""
    tables = (rows(out / f"{each}.csv") for each in (file, f"{file}-largest"))
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
                m: gain for m, gain in found.items() if m != "FedAvg"
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
    error = np.array([[100.0 if sign > 0 else 0.0] for _, sign, _ in found]) - base
    removed = {m: ((scores - base) / error)[:, k] for k, m in enumerate(common)}
    others = [m for m in common if m != "fedavg"]
    p = holm([stats.wilcoxon(removed[m]).pvalue if any(removed[m]) else 1.0 for m in others])
    by_title = {row["method"].lower(): row["p, Holm"] for row in table}
    for method, value in zip(others, p, strict=True):
        assert float(by_title[method]) == pytest.approx(value, abs=0.00051)
    best = [
        min(family, key=lambda m: ranks.mean(axis=0)[common.index(m)])
        for each in FAMILIES.values()
        if (family := [m for m in each if m in common])
    ]
    k = len(best)
    q = stats.studentized_range.ppf(0.95, k, np.inf) / np.sqrt(2)
    words = (out / "nemenyi.txt").read_text()
    assert f"The critical difference is {q * np.sqrt(k * (k + 1) / 6 / len(found)):.2f}." in words
    again = stats.rankdata(-scores[:, [common.index(m) for m in best]], axis=1).mean(axis=0)
    assert numbers(words)[:k] == pytest.approx(again, abs=0.0051)


# What is said -------------------------------------------------------------------------------------


def test_nemenyis_test_says_what_it_separates(tmp_path: Path) -> None:
    make_up(tmp_path)
    ranks = Ranks(one_a_data_set(read_federations(tmp_path)))
    assert ranks.best[-1] == "ditto"
    assert ranks.separated == [("ditto", "fedavg")] or ("ditto", "fedfv") in ranks.separated
    assert "The data separate Ditto from" in nemenyi(ranks)
    assert "They cannot separate" in nemenyi(ranks)


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    which_method.write(tmp_path, tmp_path / "out", tmp_path / "p.svg")
    assert "No federation was run yet" in (tmp_path / "out" / "findings.txt").read_text()
    missing = (tmp_path / "out" / "not-run.txt").read_text()
    assert [name for name in WORKLOADS if f"`{name}`" not in missing] == []
    assert len(rows(tmp_path / "out" / "ranks.csv")) == 1


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
    for path in out.iterdir():
        assert (tmp_path / path.name).read_text() == path.read_text(), (
            f"{path}: python -m docs.which_method writes it"
        )


def test_the_pages_show_every_generated_file() -> None:
    pages = "".join(
        (ROOT / "docs" / f"{name}.md").read_text() for name in ("which-method", "comparing")
    )
    for path in (DATA / "which-method").iterdir():
        assert f"data/which-method/{path.name}" in pages


@pytest.mark.parametrize("workload", ["acs-income", "acs-income-mlp"])
def test_gaps_of_all_groups_and_methods_are_shown(workload: str) -> None:
    table = rows(DATA / "tuned" / f"{workload}-gaps.csv")
    assert {name.partition(",")[0] for name in table[0]} == {"method", "SEX", "RAC1P", "MAR"}
    scored = rows(DATA / "tuned" / f"{workload}.csv")
    assert [row["method"] for row in table] == [row["method"] for row in scored]
    assert f"data/tuned/{workload}-gaps.csv" in (ROOT / "docs" / "which-method.md").read_text()


def test_what_the_page_says_of_gaps_is_in_their_table() -> None:
    gaps = {row.pop("method"): row for row in rows(DATA / "tuned" / "acs-income-gaps.csv")}
    for column in ("SEX", "RAC1P", "MAR"):
        of = {name: float(row[f"{column}, selection-rate"]) for name, row in gaps.items()}
        assert min(of, key=of.__getitem__).startswith("FCFL")
    means = {row["method"]: float(row["mean"]) for row in rows(DATA / "tuned" / "acs-income.csv")}
    assert min(means, key=means.__getitem__).startswith("FCFL")
