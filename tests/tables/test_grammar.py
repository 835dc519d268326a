"""The grammar of numbers that other systems write, and of the codes that are none."""

import random
from collections.abc import Callable

import pytest

from fairbloom.tables.grammar import FEW_VALUES
from fairbloom.tables.schema import parse_schema

from .helpers import Folder, inferred
from .test_infer import described, drafted, with_column

Draw = Callable[[random.Random], str]


def cells_of(draw: Draw, values: int = 41) -> list[str]:
    """Return different cells as one system writes them."""
    source = random.Random(1)
    return sorted({f'"{draw(source)}"' for _ in range(10 * values)})[:values]


# A cell, and the pattern and remedy that are named.
WRITTEN: list[tuple[Draw, str, str]] = [
    (lambda r: f"{r.randint(10, 99)}’{r.randint(100, 999)}", "'’' between", "groupChar = '’'"),
    (lambda r: f"{r.randint(10, 99)}_000", "'_' between", "groupChar = '_'"),
    (lambda r: f"{r.randint(1, 9)},{r.randint(10, 99)},000", "'N,N'", "only digits"),
    (lambda r: f"{r.randint(10, 99)}٫{r.randint(0, 9)}", "'N٫N'", "only digits"),
    (lambda r: f"{r.randint(10, 99)}·{r.randint(0, 9)}", "'N·N'", "only digits"),
    (lambda r: bin(r.randint(0, 255)), "'0bN'", "only digits"),
    (lambda r: oct(r.randint(0, 255)), "'0oN'", "only digits"),
    (lambda r: hex(r.randint(0, 255)), "'0xN'", "only digits"),
    (lambda r: f"{r.randint(10, 99) / 10}×10³", "'N×N³'", "as in -1234.5 or 1.2e5"),
    (lambda r: f"{r.randint(10, 99) / 10}x10^-3/µl", "'NxN^-N/μl'", "1.2e5"),
    (lambda r: f"{r.randint(10, 99) / 10}D+01", "'ND+N'", "1.2e5"),
    (lambda r: f"({r.randint(10, 99)})", "'(N)'", "-1234.5"),
    (lambda r: f"{r.randint(10, 99)}-", "'N-'", "-1234.5"),
    (lambda r: f"{r.randint(10, 99)}¹ kg", "'N¹ kg'", "only digits"),
    (lambda r: f"{r.randint(10, 99)}½", "'N½'", "only digits"),
    (lambda r: f"ca. {r.randint(10, 99)}", "'ca. N'", "only digits"),
    (lambda r: f"kr {r.randint(10, 99)}", "'kr N'", "only digits"),
    (lambda r: f"{r.randint(10, 99)}-kg", "'N-kg'", "only digits"),
    (lambda r: f"{r.randint(10, 99)} ml/min/1.73m²", "ml/min", "only digits"),
    (lambda r: f"{r.randint(10, 99)} {r.choice(['kg', 'lb'])}", "the unit ", "write it in "),
    (lambda r: f"{r.randint(10, 99)} {r.choice(['CR', 'DR'])}", "the unit ", "write it in "),
    (lambda r: f"{r.randint(4, 6)} ft {r.randint(0, 11)} in", "'N ft N in'", "into columns"),
    (lambda r: f"{r.randint(1, 5)} h {r.randint(0, 59)} min", "'N h N min'", "into columns"),
    (lambda r: f"{r.randint(0, 9)}/{r.randint(10, 20)}", "'N/N'", "write 0 and 10 into"),
    (lambda r: f"{r.randint(0, 29)}/30", "'N/N'", "write 0 and 30 into"),
    (lambda r: f"{r.randint(1, 5)}h{r.randint(0, 59)}", "'NhN'", "into columns"),
    (lambda r: f"{r.randint(100, 160)}-{r.randint(50, 90)}", "'N-N'", "write 100 and "),
    (lambda r: f"{r.randint(100, 160)}/{r.randint(50, 90)}.25", "'N/N'", "write 100 and "),
    (lambda r: f"{r.randint(100, 160)}/{r.randint(50, 90)}", "'N/N'", "columns of their own"),
]


@pytest.mark.parametrize(("draw", "pattern", "remedy"), WRITTEN)
def test_written_numbers_are_faults_with_a_remedy(
    folder: Folder, draw: Draw, pattern: str, remedy: str
) -> None:
    table = with_column("x", cells_of(draw), 80)
    there = folder(a=table, b=table)
    assert parse_schema(inferred(there)).fields["x"].categories == ()
    assert pattern in drafted(there, "x")
    assert remedy in drafted(there, "x")
    faults = [row for row in described(there)["faults"] if row["column"] == "x"]
    assert {row["client"] for row in faults} == {"a", "b"}
    assert any(pattern in row["problem"] and remedy in row["remedy"] for row in faults)


CODES: list[Draw] = [
    lambda r: f"room {r.randint(10, 40)}",
    lambda r: f"P-{r.randint(10, 40)}",
    lambda r: f"A*{r.randint(10, 19)}:{r.randint(10, 19)}",
    lambda r: f"{r.randint(1, 9)}_{r.randint(1, 9)}",
    lambda r: f"{r.randint(1, 9)}:{r.randint(1, 9)}:{r.randint(1, 9)}",
    lambda r: f"{r.randint(1, 9)} of about {r.randint(10, 12)} items",
    lambda r: r.choice([f"{year}/{year + 1}" for year in range(2000, 2019)]),
    lambda r: f"{r.choice('EIJ')}{r.randint(10, 19)}.{r.randint(0, 9)}",
    lambda r: f"T{r.randint(1, 4)}N{r.randint(0, 4)}",
    lambda r: f"pT{r.randint(1, 4)} N{r.randint(0, 4)}",
    lambda r: f"A{r.randint(10, 40)}",
    lambda r: f"0{r.randint(10, 40)}/{r.randint(10, 12)}",
    lambda r: f"{r.randint(1, 9)}-{r.randint(100, 103)}.{r.randint(0, 9)}",
    lambda r: f"{r.randint(10000, 10020)}-{r.randint(0, 9)}",
    lambda r: f"{r.randint(8000, 8020)}/{r.randint(0, 3)}",
    lambda r: f"{r.randint(10000, 10020)}-{r.randint(1000, 9999)}",
    lambda r: f"{r.randint(10, 40)}-{r.choice('AB')}",
    lambda r: f"*{r.randint(1, 9)}/*{r.randint(10, 19)}",
    lambda r: f"{r.randint(1, 22)}{r.choice('pq')}{r.randint(11, 36)}",
    lambda r: f"1.{r.randint(1, 9)}.{r.randint(1, 9)}",
    lambda r: f"{r.randint(1, 9)}{r.choice('AB')}{r.randint(1, 2)}",
    lambda r: f"{r.randint(0, 9)} {r.choice(['no', 'yes', 'perhaps'])}",
    lambda r: r.choice([f"{k}-{k + 4}" for k in range(0, 90, 5)] + ["90+"]),
    lambda r: r.choice([f"{k} to {k + 4} years" for k in range(0, 95, 5)]),
    lambda r: r.choice([f"({k}, {k + 5}]" for k in range(0, 95, 5)]),
    lambda r: r.choice([f"{100 + 5 * k}/{60 + 5 * k}" for k in range(FEW_VALUES)]),
    lambda r: r.choice([f"{k} {unit}" for k in range(FEW_VALUES // 2) for unit in ("a", "b")]),
]


@pytest.mark.parametrize("draw", CODES)
def test_codes_bands_and_few_values_are_categories(folder: Folder, draw: Draw) -> None:
    cells = cells_of(draw, 19 if len(cells_of(draw)) > FEW_VALUES else FEW_VALUES - 1)
    table = with_column("x", cells, 5 * len(cells))
    there = folder(a=table, b=table)
    assert len(parse_schema(inferred(there)).fields["x"].categories) == len(cells)
    assert drafted(there, "x").startswith("[fields.x]")  # no comment
    assert not [row for row in described(there)["remarks"] if row["column"] == "x"]
