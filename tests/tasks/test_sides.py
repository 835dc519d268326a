"""A device's rows keep their sides, whatever becomes of its files."""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import binomtest

from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import DEPLOYED, ONE_CLIENT, SIDES_IN
from fairbloom.protocol.settings import RunSettings
from fairbloom.system.versions import FOLDER, NAME
from fairbloom.tables.schema import parse_schema
from fairbloom.tasks import load_task
from fairbloom.tasks.partition import Parts, split
from fairbloom.tasks.sides import (
    DeviceSetup,
    Sides,
    assign,
    count_missing,
    keep_columns,
    split_by_sides,
    warn_of_lost_columns,
)
from fairbloom.tasks.task import Setup

SCHEMA = """
target = "ill"

[fields.age]
type = "number"

[fields.ward]
type = "string"
categories = ["north", "south"]

[fields.ill]
type = "integer"
categories = [0, 1]
"""

OF_PERSONS = f'unit = "person"\n{SCHEMA}'
OF_ROWS = f'ignore = ["person"]\n{SCHEMA}'

Row = tuple[Any, ...]
Named = Mapping[str, set[Any]]


def setup_in(folder: Path, **changes: Any) -> DeviceSetup:
    plain: dict[str, Any] = {"test_share": 0.25, "validation_share": 0.15, "seed": 3}
    of_device = {"state_dir": str(folder), "after": "", "writes": True}
    return DeviceSetup.model_construct(**{**plain, **of_device, **changes})


def deal(folder: Path, rows: Sequence[object], **changes: Any) -> tuple[list[list[Any]], int]:
    """Return the rows of each part, and the number of the table."""
    setup = setup_in(folder, **changes)
    parts, version = split_by_sides(
        len(rows), setup, "lund", lambda: [repr(row).encode() for row in rows]
    )
    return [[rows[place] for place in part] for part in parts], version


def patient(number: int) -> Row:
    """Return person, age, ward and target of a patient; the target is a coin's."""
    random = np.random.default_rng(number)
    return (f"p{number // 2}", number, ("north", "south")[number % 2], int(random.integers(2)))


def write(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("person", "age", "ward", "ill"), *rows])


class Site:
    """A device with files of patients in a folder."""

    def __init__(self, folder: Path, schema: str = OF_ROWS) -> None:
        self.data = folder / "data"
        self.state = folder / "state"
        self.schema = schema

    def write(self, *files: Sequence[int]) -> None:
        for place, numbers in enumerate(files):
            write(self.data / f"{place}.csv", [*map(patient, numbers)])
        self.numbers = [number for numbers in files for number in numbers]

    def parts(self, **changes: Any) -> dict[str, list[int]]:
        """Return the numbers of the patients in each part."""
        task = load_task(
            RunSettings.of(
                {
                    **{"task": "csv", "data-dir": str(self.data), "schema": self.schema},
                    **{"state-dir": str(self.state), DEPLOYED: True, ONE_CLIENT: True},
                    **{"validation-share": 0.2, "seed": 1, **changes},
                }
            )
        )
        (name,) = task.clients
        self.splits = task.splits(name)
        parts = (self.splits.train, self.splits.test, self.splits.validation)
        return {
            part: [self._number_of(each) for each in examples.rows.tolist()]  # type: ignore[union-attr]
            for part, examples in zip(Parts._fields, parts, strict=True)
            if examples is not None
        }

    def _number_of(self, row: int) -> int:
        return self.numbers[row]


def sides_of(parts: Mapping[str, Sequence[int]]) -> dict[int, str]:
    return {number: name for name, numbers in parts.items() for number in numbers}


def test_what_is_written_of_sides_is_read() -> None:
    for sides in (Sides({}, []), Sides({"ab": "01", "cd": "2"}, ["ef", "gh"])):
        assert Sides.decode(sides.encode()) == sides


@pytest.mark.parametrize("shares", [(0.2, 0.0), (0.25, 0.15), (0.0, 0.0)])
def test_a_first_split_is_the_runs_to_the_bit(tmp_path: Path, shares: tuple[float, float]) -> None:
    test, validation = shares
    changes = {"test_share": test, "validation_share": validation}
    rows = [*range(40), 7, 7]
    wanted = split(np.arange(42), setup_in(tmp_path, **changes), "lund")
    for _ in range(2):  # and a second time
        found, version = deal(tmp_path, rows, **changes)
        assert found == [[rows[place] for place in part] for part in wanted]
        assert version == 1


MONTHS = st.lists(st.lists(st.integers(0, 60), min_size=12, max_size=70), min_size=2, max_size=6)


@settings(max_examples=100, deadline=None)
@given(months=MONTHS)
def test_no_row_is_ever_on_another_side(
    tmp_path_factory: pytest.TempPathFactory, months: list[list[int]]
) -> None:
    """Numbers stand for rows, of which some are equal."""
    folder = tmp_path_factory.mktemp("state")
    most = Counter[tuple[int, int]]()
    held = Counter[int]()
    for rows in months:
        try:
            parts, _ = deal(folder, rows)
        except FairbloomError:
            # no new one could fill the part: each is all that another part has
            assert len({*rows} - held.keys()) < 3
            continue
        assert Counter(chain(*parts)) == Counter(rows)
        assert all(parts)
        now = Counter((row, side) for side, part in enumerate(parts) for row in part)
        for row, count in Counter(rows).items():
            was = Counter({side: most[row, side] for side in range(3) if most[row, side]})
            found = {side for side in range(3) if now[row, side]}
            assert not was or found <= was.keys()
            if count >= held[row]:  # all that were known are there again
                assert all(now[row, side] >= number for side, number in was.items())
            held[row] = max(held[row], count)
        most |= now
        assert deal(folder, rows)[0] == parts  # a repeated run has the same bits


def test_later_rows_are_dealt_by_the_shares(tmp_path: Path) -> None:
    deal(tmp_path, range(20))
    (train, test, validation), _ = deal(tmp_path, range(4020))
    for part, share in ((train, 0.6), (test, 0.25), (validation, 0.15)):
        later = sum(row >= 20 for row in part)
        assert binomtest(later, 4000, share).pvalue > 1e-4
    # another seed deals them otherwise
    other = tmp_path / "other"
    deal(other, range(20), seed=4)
    assert deal(other, range(4020), seed=4)[0][1] != test


def test_a_part_whose_rows_are_gone_gets_new_ones(tmp_path: Path) -> None:
    (train, _, _), _ = deal(tmp_path, range(20))
    with pytest.raises(
        FairbloomError, match=r"of test are gone.*put rows back, or .* another seed"
    ):
        deal(tmp_path, train)
    (kept, test, validation), _ = deal(tmp_path, [*train, 100, 101])
    assert kept == train
    assert sorted([*test, *validation]) == [100, 101]
    assert all(deal(tmp_path, train, seed=4)[0])  # the remedies
    assert deal(tmp_path, range(20))[0][0] == train


def test_equal_tables_have_a_number_in_any_order(tmp_path: Path) -> None:
    tables = [[*range(20)], [*range(20)][::-1], [*range(21)], [*range(20)], [*range(21), 3]]
    assert [deal(tmp_path, rows)[1] for rows in tables] == [1, 1, 2, 1, 3]


def test_after_a_model_of_all_rows_later_ones_test(tmp_path: Path) -> None:
    after = {"after": "0123"}
    plain = deal(tmp_path, range(20), **after)[0]
    assert plain == deal(tmp_path, range(20))[0]  # the device had no part in that model
    other = {"after": "4567"}
    deal(tmp_path, range(20), test_share=0.0, validation_share=0.0)
    (train, test, validation), _ = deal(tmp_path, range(20), **other)
    assert (train, test, validation) == ([*range(20)], [], [])
    (train, test, _), _ = deal(tmp_path, range(120), **other)
    assert {*train} > {*range(20)}
    assert 10 < len(test) < 45
    # what is trained on later, in the next model of all rows, is no test row after it
    deal(tmp_path, range(120), test_share=0.0, validation_share=0.0)
    assert deal(tmp_path, range(120), after="89ab")[0][1] == []


@pytest.mark.parametrize("spoil", ["cut", "another secret"])
def test_damaged_sides_are_an_error(tmp_path: Path, spoil: str) -> None:
    before, _ = deal(tmp_path, range(20))
    path = next((tmp_path / FOLDER).glob("sides-*"))
    spoiled = path if spoil == "cut" else tmp_path / NAME
    content = spoiled.read_bytes()
    spoiled.write_bytes(content[:-3] if spoil == "cut" else bytes(len(content)))
    with pytest.raises(FairbloomError, match=f"{path} is damaged.*Bring the state-dir back"):
        deal(tmp_path, range(25))
    spoiled.write_bytes(content)
    assert deal(tmp_path, range(20))[0] == before


@pytest.mark.parametrize("schema", [OF_ROWS, OF_PERSONS], ids=["rows", "units"])
def test_a_sites_patients_keep_their_sides(tmp_path: Path, schema: str) -> None:
    site = Site(tmp_path, schema)
    random = np.random.default_rng(0)
    site.write([*range(30)], [*range(30, 50)])
    known = sides_of(site.parts())
    there = [*range(50)]
    for month in range(30):
        size = len(there)
        there = [each for each in there if random.random() > 0.1]
        there += [*range(100 * month + 100, 100 * month + 105)]
        random.shuffle(there)
        site.write(there[: size // 2], there[size // 2 :])
        sides = sides_of(site.parts())
        assert sides.keys() == {*there}
        assert all(known.get(number, side) == side for number, side in sides.items())
        assert site.splits.version == month + 2
        known |= sides
    if schema == OF_PERSONS:
        by_person = {(number // 2, side) for number, side in known.items()}
        assert len(by_person) == len({number // 2 for number in known})
    later = Counter(side for number, side in known.items() if number >= 100)
    assert binomtest(later["test"], later.total(), 0.2).pvalue > 1e-4


def test_two_clients_of_a_state_folder_have_their_own_sides(tmp_path: Path) -> None:
    rows = [repr(number).encode() for number in range(30)]
    found = [
        split_by_sides(30, setup_in(tmp_path), name, lambda: rows)[0] for name in ("a", "b", "a")
    ]
    assert [*map(list, found[0])] == [*map(list, found[2])]
    assert found[0].test.tolist() != found[1].test.tolist()
    assert len([*(tmp_path / FOLDER).glob("sides-*")]) == 2


def test_a_prediction_reads_the_sides_and_writes_none(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write([*range(40)])
    site.parts()
    site.write([*range(39, -1, -1), 40, 41])
    files = {path: path.read_bytes() for path in site.state.rglob("*") if path.is_file()}
    reading = {DEPLOYED: False, "state-dir": "", SIDES_IN: str(site.state)}
    before = site.parts(**reading)
    assert files == {path: path.read_bytes() for path in site.state.rglob("*") if path.is_file()}
    assert before == site.parts()


def test_in_one_process_no_side_is_kept(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write([*range(40)])
    site.parts(**{DEPLOYED: False})
    assert site.splits.version == 0
    assert not site.state.exists()


def test_images_keep_their_sides_under_other_names(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")

    def parts(names: Iterator[str], count: int) -> list[dict[int, str]]:
        folder = tmp_path / "data" / "lund"
        for place in range(count):
            path = folder / ("a", "b")[place % 2] / f"{next(names)}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.new("L", (4, 4), place).save(path)
        task = load_task(
            RunSettings.of(
                {
                    **{"task": "image-folder", "data-dir": str(folder.parent), DEPLOYED: True},
                    **{"state-dir": str(tmp_path / "state"), "model": "logistic"},
                    "schema": 'classes = ["a", "b"]\nsize = [4, 4]\ngrey = true\n',
                }
            )
        )
        return [
            {round(float(each.max() * 255)): part for each in examples[slice(0, None)][0]}
            for part, examples in zip(("train", "test"), task.splits("lund"), strict=True)
        ]

    before = parts(map(str, range(100, 200)), 20)
    for path in [*(tmp_path / "data").rglob("*.png")]:
        path.unlink()
    after = parts(map(str, range(99, 0, -1)), 30)
    for was, now in zip(before, after, strict=True):
        assert was.items() <= now.items()
    assert sum(map(len, after)) == 30


def test_a_split_that_moves_no_row_stands(tmp_path: Path) -> None:
    digests = [*"abcdef"]
    first = Parts(np.array([3, 0, 5, 4]), np.array([2]), np.array([1]))
    parts, rows = assign({}, digests, first, setup_in(tmp_path))
    assert parts is first
    more = {**rows, "z": "0"}
    assert assign(more, digests, first, setup_in(tmp_path)) == (first, more)
    moved, _ = assign({**rows, "c": "0", "d": "1"}, digests, first, setup_in(tmp_path))
    assert [part.tolist() for part in moved] == [[0, 2, 4, 5], [3], [1]]


def test_fewer_rows_than_before_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By any seed: a file that was cut off between two lines looks like any other.

    Their number stays until the data change again.
    """

    def count(rows: int, client: str = "lund", **changes: Any) -> int:
        return count_missing(rows, setup_in(tmp_path, **changes), client)

    assert [count(40, seed=seed) for seed in (1, 2)] == [0, 0]
    assert count(30, seed=3, writes=False) == 10
    assert not caplog.records
    assert [count(30, seed=seed) for seed in (3, 4)] == [10, 10]
    (said,) = caplog.messages
    assert "have 30 rows, or units, and had 40 before" in said
    assert count(20, "another") == 0
    assert count(30, seed=5, writes=False) == 10
    assert [count(50), count(50, writes=False)] == [0, 0]
    assert len(caplog.records) == 1


def test_a_column_that_is_gone_is_said_until_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = parse_schema(SCHEMA)

    def count_said(*found: str, **changes: Any) -> int:
        caplog.clear()
        warn_of_lost_columns(found, schema, setup_in(tmp_path, **changes))
        return len(caplog.records)

    assert count_said("age") == 0
    assert count_said("ward", writes=False) == 1
    assert count_said("age") == 0  # a column that was never there
    assert count_said("age", "ward") == 0
    assert [count_said("age") for _ in range(2)] == [1, 1]
    (said,) = caplog.messages
    assert "no file has the column ward any more" in said
    keep_columns(tmp_path, ["age"])  # as accepting the schema again does
    assert count_said("age") == 0
    keep_columns(tmp_path, ["age", "no field"])
    assert count_said("age") == 0
    warn_of_lost_columns((), schema, Setup())
    assert not caplog.records


def test_only_rows_that_a_file_lacks_are_missing(tmp_path: Path) -> None:
    """Not those that a schema has no use for; and persons count, where a schema has them."""
    site = Site(tmp_path)
    write(site.data / "0.csv", [("p", each, "north", each % 2) for each in range(40)])
    site.numbers = [*range(40)]
    site.parts()
    site.schema = f'missing = "drop"\n{OF_ROWS}'
    rows = [("p", each if each % 4 else "", "north", each % 2) for each in range(40)]
    write(site.data / "0.csv", rows)
    site.parts()
    assert (len(site.splits.train) < 30, site.splits.missing) == (True, 0)
    write(site.data / "0.csv", rows[:32])
    site.parts()
    assert site.splits.missing == 8
    persons = Site(tmp_path / "persons", OF_PERSONS)
    persons.write([*range(40)])
    persons.parts()
    persons.write([*range(0, 40, 2), 1])  # one of two visits of each person, but the first
    persons.parts()
    assert persons.splits.missing == 0
    persons.write([*range(0, 28, 2), 1])
    persons.parts()
    assert persons.splits.missing == 6
