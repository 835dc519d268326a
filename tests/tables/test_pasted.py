"""Lines of `fairbloom data` are pasted into the schema where it says, and the finding is gone."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.experiments.helpers import captured

SCHEMA = """
target = "dead"
missing = "fill"

[fields.age]
type = "number"

[fields.sex]
type = "string"
categories = ["female", "femalle", "male"]

[fields.stage]
type = "integer"
categories = [0, 1, 2, 3]

[fields.smoker]
type = "string"
categories = ["yes"]

[fields.dead]
type = "string"
categories = ["no", "yes"]
"""

Rows = dict[str, list[str]]


def rows_of(seed: int) -> Rows:
    random = np.random.default_rng(seed)
    return {
        "age": [f"{each:.1f}" for each in random.normal(60, 12, 120)],
        "sex": ["female", "male"] * 60,
        "stage": ["0", "1", "2"] * 40,
        "smoker": ["yes"] * 120,
        "dead": ["no", "yes", "no", "no"] * 30,
    }


def write(folder: Path, site: str, rows: Rows) -> None:
    lines = [",".join(rows), *(",".join(cells) for cells in zip(*rows.values(), strict=True))]
    (folder / f"{site}.csv").write_text("\n".join([*lines, ""]))


CHANGES = {
    "far": ("age", lambda cells: ["999"] * 6 + cells[6:]),
    "negative": ("age", lambda cells: ["-9"] * 6 + cells[6:]),
    "zero": ("age", lambda cells: ["0"] * 6 + cells[6:]),
    "unit": ("age", lambda cells: [f"{12 * float(cell):.1f}" for cell in cells]),
    "offset": ("age", lambda cells: [f"{1.8 * float(cell) + 32:.1f}" for cell in cells]),
    "spelling": ("sex", lambda cells: ["femalle"] * 3 + cells[3:]),
    "codes": ("stage", lambda cells: [str(int(cell) + 1) for cell in cells]),
}


@pytest.mark.parametrize("sites", [2, 4])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_line_of_data_is_one_of_the_schema(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    sites: int,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    name, change = CHANGES[kind]
    for seed, site in enumerate("abcd"[:sites]):
        rows = rows_of(seed)
        if seed == sites - 1:
            rows[name] = change(rows[name])
        write(tmp_path, site, rows)
    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA)
    words = ("data", tmp_path, "--schema", schema)

    def shown() -> list[tuple[str, str]]:
        said = re.sub(r"[\s│]+", " ", str(captured(capsys, *words).out))
        return re.findall(r", say (.+?) under (\[[^\]]*\])", said)

    found = shown()
    assert found
    line, heading = found[0]
    pasted = "\n".join([heading, *line.split(" or ")[0].split(" and ")])
    if heading in SCHEMA:
        schema.write_text(SCHEMA.replace(heading, pasted))
    else:
        schema.write_text(f"{SCHEMA}\n{pasted}\n")
    assert not shown()


def test_a_spelling_in_the_rows_of_all_is_no_category(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file has no description of one site: the category leaves the schema."""
    monkeypatch.setenv("COLUMNS", "400")
    rows = rows_of(0)
    rows["sex"] = ["femalle"] * 3 + rows["sex"][3:]
    write(tmp_path, "all", rows | {"site": ["x", "y"] * 60})
    schema = tmp_path / "schema.toml"
    schema.write_text(f'client = "site"\n{SCHEMA}')
    words = ("data", tmp_path / "all.csv", "--schema", schema)
    lines = ('categories = ["female", "male"]', 'spellings = {female = ["femalle"]}')
    said = re.sub(r"[\s│]+", " ", str(captured(capsys, *words).out))
    assert f"say {' and '.join(lines)} under [fields.sex]" in said
    before = 'categories = ["female", "femalle", "male"]'
    schema.write_text(schema.read_text().replace(before, "\n".join(lines)))
    assert "femalle" not in captured(capsys, *words).out
