"""Table 1 of hospitals whose data never meet: what a device's owner lets leave, and what the
operator makes of it."""

import json
import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from fairbloom.client.guard.log_files import read_entries
from fairbloom.deploy.device.answers import send_yes
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.device.profile import choose_letter
from fairbloom.deploy.device.table import choose_table
from fairbloom.deploy.device.today import read_site, send
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.deploy.fleet.profiles import keep
from fairbloom.deploy.fleet.wire_pb2 import Told
from fairbloom.deploy.operator.profiles import read_tables, write_markdown
from fairbloom.system.lock import exclusive_lock
from fairbloom.tables.releases import ALL
from fairbloom.tables.schema import parse_schema
from fairbloom.tables.site_table import SiteTable, join_tables
from tests.deploy.served import Served
from tests.experiments.helpers import captured
from tests.tables.helpers import refused_with
from tests.tables.test_letters import Rows, hospital, renamed, with_cells

from .test_profiles import DAY, FIELDS, write

SCHEMA = f"""
target = "outcome"
unit = "patient"
ignore = ["remark", "stage"]
missing = "fill"
{FIELDS}"""


class Site:
    """A device of a federation that is served, whose owner lets tables leave."""

    def __init__(self, served: Served, name: str, rows: Rows) -> None:
        self.served = served
        self.folder = served.place / "bundles" / name
        self.config = self.folder / "client.toml"
        write(self.folder / "data", rows)
        self.say('[limits]\ndescribe = "all"')

    def say(self, *lines: str, unit: str = "patient") -> None:
        text = "\n".join(['data-dir = "data"', f'unit = "{unit}"', *lines])
        (self.folder / "owner.toml").write_text(text)

    @property
    def client(self) -> ClientSettings:
        return ClientSettings.of({"server": self.served.address}, self.config)

    def send(self, schema: str = SCHEMA) -> SiteTable:
        chosen = choose_table(self.client, schema, DAY)
        send(self.client, chosen)
        return chosen.table


@pytest.fixture
def site(served: Served) -> Site:
    return Site(served, "a", hospital(130, visits=2))


def test_a_table_counts_persons_above_the_floor(site: Site) -> None:
    """Each of 130 persons, a third of whom have the outcome, has two rows."""
    table = site.send()
    assert {name: each.rows for name, each in table.letters.items()} == {ALL: 130, "0": 85, "1": 40}
    every = table.letters[ALL].columns
    assert every.keys() == {"age", "sex", "outcome"}  # no file has smoker
    assert every["sex"].values == {"f": 65, "m": 65}
    assert every["outcome"].values == {"0": 85, "1": 40}
    assert len(every["age"].quantiles) == 7
    assert not every["age"].values
    for letter in table.letters.values():
        for column in letter.columns.values():
            assert (column.found, column.patterns, column.others) == ((), {}, 0)
            assert all(count >= 5 and count % 5 == 0 for count in column.values.values())
    assert SiteTable.decode(table.encode()) == table
    (entry,) = read_entries(site.folder / "state")
    assert entry["asked"] == "table"


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ((), 'limits.describe is "off"'),
        (("[limits]", 'describe = "off"'), 'write describe = "counts" or "all"'),
        (
            ("[limits]", 'describe = "all"', "snapshots = 0"),
            "limits.snapshots = 0 in twelve months",
        ),
    ],
)
def test_no_table_leaves_unless_its_owner_allows_it(
    site: Site, says: tuple[str, ...], words: str
) -> None:
    site.say(*says)
    with refused_with(words):
        choose_table(site.client, SCHEMA, DAY)
    site.say("[limits]", 'describe = "counts"')
    for letter in site.send().letters.values():
        assert letter.columns["age"].quantiles == ()
        assert letter.columns["sex"].values


def test_a_table_needs_a_unit_and_files_without_faults(site: Site) -> None:
    site.say("[limits]", 'describe = "all"', unit="")
    with refused_with('write unit = "COLUMN"'):
        choose_table(site.client, SCHEMA, DAY)
    site.say("[limits]", 'describe = "all"')
    write(site.folder / "data", with_cells(hospital(130, visits=2), "sex", "?!"))
    with refused_with("1 faults, which client data shows"):
        choose_table(site.client, SCHEMA, DAY)


def test_a_table_of_nearly_the_same_persons_goes_again(site: Site) -> None:
    """A difference of few persons would show them: by rows, or by categories."""
    first = site.send()
    write(site.folder / "data", hospital(139, visits=2))
    chosen = choose_table(site.client, SCHEMA, DAY)
    assert chosen.table == first
    assert chosen.note.startswith("Only 9 rows changed")
    other = SCHEMA.replace('"f", "m"', '"f", "m", "x"')
    with refused_with("Only 9 rows changed", "Of 2025-01-31 has left: table."):
        choose_table(site.client, other, DAY)
    write(site.folder / "data", hospital(130, visits=2))  # put back
    assert choose_table(site.client, other, DAY).note == ""
    write(site.folder / "data", hospital(140, visits=2))
    assert site.send().letters[ALL].rows == 140


def test_a_column_that_is_written_anew_is_a_change(site: Site) -> None:
    """It hides no change of the others, and the same rows have the same table again."""
    first = site.send()
    assert choose_table(site.client, SCHEMA, DAY).table == first
    rows = [{**row, "age": f"{float(row['age']) + 1:.1f}"} for row in hospital(130, visits=2)]
    write(site.folder / "data", rows)
    chosen = choose_table(site.client, SCHEMA, DAY)
    assert chosen.note == ""
    assert chosen.table != first
    few = [{**row, "age": "44.0"} for row in hospital(130, visits=2)[:40]]
    rows = [*few, *hospital(130, visits=2)[40:]]
    write(site.folder / "data", with_cells(rows, "sex", *["f"] * 4))
    chosen = choose_table(site.client, SCHEMA, DAY)
    assert "sex" not in chosen.table.letters[ALL].columns
    assert "sex" in chosen.note


def write_two_years(site: Site, before: list[str], after: list[str]) -> None:
    """Write two files, in which the column of sexes has another name each."""
    shutil.rmtree(site.folder / "data")
    first = with_cells(hospital(len(before)), "sex", *before)
    second = with_cells(hospital(len(after), seed=1), "sex", *after)
    write(site.folder / "data", first, "2024.csv")
    write(site.folder / "data", renamed(second, sex="gender"), "2025.csv")
    site.say(*("[limits]", 'describe = "all"', '[files."2025.csv"]', 'fields.sex.name = "gender"'))


@pytest.mark.parametrize(("males", "hidden"), [(34, True), (32, False)])
@pytest.mark.parametrize("table_first", [True, False])
def test_a_field_of_two_files_is_one_sum_with_a_letter(
    site: Site, males: int, hidden: bool, table_first: bool
) -> None:
    """75, 34 and 2 are 110 or more, and of the letter's two columns at most 75 and 34 are: of these
    the first has nothing to round, by the exact number of rows."""
    last = [*["m"] * males, *["M"] * 2, *["f"] * (63 - males)]
    write_two_years(site, [*["m"] * 75, *["f"] * 60], last)
    client = site.client
    if table_first:
        site.send()
        chosen = choose_letter(client, read_site(client), DAY)
        assert ("sex" not in chosen.letter.columns) == hidden
        assert ("sex" in chosen.note) == hidden
        return
    send(client, choose_letter(client, read_site(client), DAY), site.folder / "letter.json")
    chosen = choose_table(client, SCHEMA, DAY)
    assert ("sex" not in chosen.table.letters[ALL].columns) == hidden
    assert ("sex" in chosen.note) == hidden


def test_a_column_of_two_fields_leaves_in_one_release(site: Site) -> None:
    """Each year's ward is the other field: no sum of one with the letter is bounded."""
    write(site.folder / "data", hospital(130), "2024.csv")
    swapped = renamed(hospital(130, seed=1), stage="sex", sex="stage")
    write(site.folder / "data", swapped, "2025.csv")
    (site.folder / "data" / "site.csv").unlink()
    stage = '[fields.stage]\ntype = "integer"\ncategories = [1, 2, 3, 4]\n'
    schema = SCHEMA.replace(', "stage"]', "]") + stage
    site.say(
        *("[limits]", 'describe = "all"', '[files."*"]'),
        *('fields.sex.name = "sex"', 'fields.stage.name = "stage"', '[files."2025.csv"]'),
        *('fields.sex.name = "stage"', 'fields.stage.name = "sex"'),
    )
    client = site.client
    both = {"sex", "stage"}
    assert both <= choose_table(client, schema, DAY).table.letters[ALL].columns.keys()
    letter = choose_letter(client, read_site(client), DAY)
    assert both <= letter.letter.columns.keys()
    send(client, letter, site.folder / "letter.json")
    assert both.isdisjoint(choose_table(client, schema, DAY).table.letters[ALL].columns)


def test_two_tables_of_the_same_rows_have_one_target(site: Site) -> None:
    site.send()
    with refused_with("1 tables of the same rows have left, of the target 'outcome'"):
        choose_table(site.client, SCHEMA.replace('"outcome"', '"sex"', 1), DAY)
    other = SCHEMA.replace('"f", "m"', '"f", "m", "x"')
    assert site.send(other).letters[ALL].columns["sex"].values == {"f": 65, "m": 65}
    for third in (SCHEMA + "# a third\n", SCHEMA.replace('"outcome"', '"sex"', 1)):
        with refused_with("2 tables of the same rows have left, of the target 'outcome'"):
            choose_table(site.client, third, DAY)


def test_the_one_patient_of_a_class_is_not_shown_by_the_others(site: Site) -> None:
    """All less the living would be the dead patient: of ages, of a diagnosis, by counts."""
    rows = hospital(144)
    living = [row | {"outcome": "0", "sex": "m"} for row in rows]
    for place in range(40):
        living[place]["sex"] = "f"
    dead = living[0] | {"outcome": "1", "patient": "MRN-99999"}
    write(site.folder / "data", [dead, *living])
    table = site.send()
    assert table.letters[ALL].columns.keys() == {"age", "sex"}  # 144 of 145 are known to live
    assert table.letters.keys() == {ALL}


def test_a_class_has_quartiles_alone_and_of_many(site: Site) -> None:
    table = site.send()
    low, _, quarter, median, third, _, high = table.letters["0"].columns["age"].quantiles
    assert (low, high) == (None, None)
    assert quarter < median < third
    rows = [row | {"outcome": str(int(k < 21))} for k, row in enumerate(hospital(130, seed=3))]
    write(site.folder / "data", rows)
    assert site.send().letters["1"].columns["age"].quantiles == ()


def test_the_operator_reads_one_table_and_whom_it_waits_for(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA)
    words = ("deploy", "describe", "--schema", schema, "--dir", site.served.place)
    nobody = captured(capsys, *words).out
    assert "waits for a: fairbloom client describe" in nobody
    site.send()
    said = captured(capsys, *words).out.splitlines()
    assert said[0] == "| field | value | a |"
    assert "|  | n | 130 |" in said
    assert "| sex | f, n (%) | 65 (50) |" in said
    assert "| smoker | missing | absent |" in said
    assert any(
        re.fullmatch(r"\| age \| median \[25 %, 75 %\] \| 5\d.* \[.*\] \|", line) for line in said
    )
    assert said[-1] == "waits for b: fairbloom client describe, on its device"
    captured(capsys, *words, "--by-class", "--out", tmp_path / "t.csv")
    heads, n, *_ = (tmp_path / "t.csv").read_text().splitlines()
    assert heads == 'field,value,a,"a, 0","a, 1"'
    assert n == ",n,130,85,40"
    captured(capsys, *words, "--out", tmp_path / "t.md")
    assert (tmp_path / "t.md").read_text().splitlines() == said[:-1]
    schema.write_text(SCHEMA + "# another\n")
    assert "waits for a" in captured(capsys, *words).out


def test_who_stands_out_of_the_tables_is_named(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the same comparison as of profiles; the schema's unit says which of two is right."""
    schema = tmp_path / "schema.toml"
    words = ("deploy", "describe", "--schema", schema, "--dir", site.served.place)
    rows = [row | {"age": f"{12 * float(row['age']):.0f}"} for row in hospital(130, seed=1)]
    other = Site(site.served, "b", rows)
    for line, named in (("", ["a", "b"]), ('unit = "years"\n', ["b"])):
        text = SCHEMA.replace("[fields.age]\n", f"[fields.age]\n{line}")
        schema.write_text(text)
        for each in (site, other):
            each.send(text)
        said = captured(capsys, *words).out.splitlines()
        lines = [each for each in said if ": age: median" in each]
        assert sorted(each[0] for each in lines) == named
    assert said[-1].strip() == "fields.age.factor = 0.0833333"
    assert said[-2].strip() == '[files."*"]'


def test_the_owner_sees_and_confirms_what_leaves(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = site.folder / "schema.toml"
    schema.write_text(SCHEMA)
    left = list[ClientSettings]()
    monkeypatch.setattr(
        "fairbloom.deploy.device.today.send", lambda client, chosen: left.append(client)
    )
    words = ("client", "describe", site.config, "--schema", schema)
    monkeypatch.setattr("typer.confirm", lambda question: False)
    captured(capsys, *words)
    assert left == []
    with exclusive_lock(site.folder / "state" / "profiles.lock"):
        captured(capsys, *words, "--yes", code=2)  # another command has it
    assert left == []
    said = captured(capsys, *words, "--yes").out
    assert "all rows:" in said
    assert "sex: 'f' 65, 'm' 65" in said
    assert len(left) == 1


def edited(table: SiteTable, **changes: object) -> bytes:
    made = json.loads(table.encode())
    return json.dumps({**made, **changes}).encode()


def test_an_accounts_owner_reads_what_has_left(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.send()
    client = site.client
    send(client, choose_letter(client, read_site(client), DAY), None)
    for _ in range(2):
        send_yes(client, DAY)
    site.say("[limits.privacy]", f'ledger = "{site.folder / "accounts"}"', "epsilon = 3.0")
    schema = site.folder / "rows.toml"
    schema.write_text(
        'target = "outcome"\nignore = ["patient", "remark", "sex", "stage"]\n'
        '[fields.age]\ntype = "number"\ncenter = 60\nscale = 12\n'
        '[fields.outcome]\ntype = "integer"\ncategories = [0, 1]\n'
    )
    opened = captured(capsys, "client", "account", "open", site.config, "--schema", schema).out
    shown = captured(capsys, "client", "account", "show", site.config).out
    for said in (opened, shown):
        *_, table, letter, answers = said.splitlines()
        assert letter.startswith(f"a profile of 4 columns, of 130 rows or persons on {DAY}, has")
        assert table.startswith(f"a table of 3 columns, of 130 rows or persons on {DAY}, has left")
        assert answers == "2 answers on schemas left"


def forged(table: SiteTable, column: str, name: str = "", **changes: object) -> bytes:
    """Return a table in which a column of the class `name` says something else."""
    letters = json.loads(table.encode())["letters"]
    letters[name]["columns"][column] |= changes
    return edited(table, letters=letters)


def forgeries(table: SiteTable) -> Iterator[tuple[bytes, str]]:
    """Yield what no device makes, and why it is left out."""
    letters = json.loads(table.encode())["letters"]
    many = {f"k{n}": letters["1"] for n in range(1001)}
    yield b"{}", "it is no table"
    yield b"nonsense", "it is no table"
    yield b"[" * 500_000, "it is no table"
    yield table.encode().decode().encode("utf-16"), "codec can't decode"
    yield table.encode()[:-9], "it is no table"
    yield edited(table, letters={}), "it is no table"
    yield edited(table, letters={"1": letters["1"]}), "it is no table"
    yield edited(table, letters=[1]), "it is no table"
    yield forged(table, "sex", "1", values={"f": 3}), "it is no table"
    yield edited(table, letters={**letters, "=cmd": letters["1"]}), "no class '=cmd'"
    yield edited(table, letters={"": letters[""], **many}), "no class 'k0'"
    yield forged(table, "sex", values={"<b>": 10}), "column 'sex' has no value '<b>'"
    yield forged(table, "age", values={"=1": 10}, quantiles=[]), "column 'age' has no value '=1'"
    own = {**letters[""], "columns": {"q": letters[""]["columns"]["sex"]}}
    yield edited(table, letters={"": own}), "the schema has no column 'q'"
    yield edited(table, letters={"": {**letters[""], "client": "b"}}), "it is of client 'b'"


def test_a_table_that_cannot_be_used_is_left_out(
    site: Site, subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]
) -> None:
    table = site.send()
    federation = Federation.read(site.served.place)
    received, waits = read_tables(federation, SCHEMA)
    assert (received.usable, received.left_out, waits) == ({"a": table}, [], ["b"])
    keep(
        federation.path, "b", Told(table=table.encode().replace(b'"client": "a"', b'"client": "b"'))
    )
    schema = site.folder / "schema.toml"
    schema.write_text(SCHEMA)
    words = ("deploy", "describe", "--dir", federation.path, "--schema", schema)
    for content, why in forgeries(table):
        with subtests.test(why=why, content=content[:40]):
            keep(federation.path, "a", Told(table=content))
            received, waits = read_tables(federation, SCHEMA)
            assert ([*received.usable], waits) == (["b"], ["a"])
            (sentence,) = received.left_out
            assert why in sentence
            assert sentence.endswith("Ask a's owner for another")
            said = captured(capsys, *words)
            assert said.err.startswith("fairbloom deploy: ")
            assert "| b |" in said.out
    keep(federation.path, "a", Told(table=table.encode()))  # the remedy
    assert [*read_tables(federation, SCHEMA)[0].usable] == ["a", "b"]


def test_sites_and_classes_have_columns_of_their_own(site: Site) -> None:
    table = site.send()
    rows = [*join_tables(parse_schema(SCHEMA), {"a": table, "b": table}, by_class=True)]
    heads = {f"{name}{of}" for name, of in product("ab", ("", ", 0", ", 1"))}
    assert rows[0].keys() == {"field", "value", *heads}
    assert write_markdown([{"a|b": "x"}]).startswith("| a&#124;b |")
