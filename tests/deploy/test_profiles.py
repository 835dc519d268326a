"""Profiles of hospitals whose data never meet: what a device lets leave, what a server keeps, and
what the operator makes of it. Attacks: sequences of profiles and answers, and hostile devices."""

import csv
import json
import re
import shutil
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fairbloom.client.guard.accepted_schemas import digest_of
from fairbloom.client.guard.evaluated_model import keep_model
from fairbloom.client.guard.log_files import read_entries
from fairbloom.deploy.device import answers, today
from fairbloom.deploy.device.answers import find_faults, send_unknown, send_yes
from fairbloom.deploy.device.book import enter
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.device.profile import (
    choose_letter,
    describe_letter,
    describe_sent,
    show_site,
)
from fairbloom.deploy.device.table import choose_table
from fairbloom.deploy.device.today import Chosen, read_site, send
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.fleet import profiles as profiles_of_fleet
from fairbloom.deploy.fleet.client import tell
from fairbloom.deploy.fleet.enrolment import enroll, revoke
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.deploy.fleet.messages import LARGEST_CHUNK
from fairbloom.deploy.fleet.profiles import HOUR, MOST_TOLD, Hourly, describe_told, keep
from fairbloom.deploy.fleet.wire_pb2 import Told
from fairbloom.deploy.operator.profiles import describe_findings, read_letters, write_schema
from fairbloom.deploy.operator.status import survey
from fairbloom.protocol.settings import RunSettings
from fairbloom.system.files import SMALL_BYTES
from fairbloom.system.lock import exclusive_lock
from fairbloom.system.versions import NAME as SECRET
from fairbloom.tables.comparison import OneValue, compare
from fairbloom.tables.letters import (
    ROW,
    Letter,
    compare_letters,
    decode_letter,
    encode_letter,
    join_columns,
    letter_of,
)
from fairbloom.tables.own_codes import find_own_codes
from fairbloom.tables.schema import Field, parse_schema, with_files
from fairbloom.tasks import load_task
from fairbloom.tasks.models import arrays_of
from tests.deploy.served import Caller, Served, code_of
from tests.experiments.helpers import captured, fairbloom, refusal
from tests.tables.helpers import refused_with
from tests.tables.test_letters import Rows, hospital, renamed, site_of, with_cells

DAY = "2025-01-31"


def write(folder: Path, rows: Rows, name: str = "site.csv") -> None:
    folder.mkdir(exist_ok=True)
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    (folder / name).write_text("\n".join([*lines, ""]))


class Owner:
    """A device's owner, who sends profiles into a file."""

    def __init__(self, bundle: Path) -> None:
        self.bundle = bundle
        self.data = bundle / "data"
        self.out = bundle / "letter.json"
        self.say('unit = "patient"')

    def say(self, *lines: str) -> None:
        (self.bundle / "owner.toml").write_text("\n".join(['data-dir = "data"', *lines]))

    @property
    def client(self) -> ClientSettings:
        return ClientSettings.of({}, self.bundle / "client.toml")

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in (self.bundle / "state" / "profiles").glob("[0-9]*"))

    def send(self, rows: Rows) -> Letter:
        """Let a profile of these rows leave; return it."""
        write(self.data, rows)
        client = self.client
        send(client, choose_letter(client, read_site(client), DAY), self.out)
        return decode_letter(self.out.read_bytes())


@pytest.fixture
def owner(bundle: Path) -> Owner:
    return Owner(bundle)


# The device ---------------------------------------------------------------------------------------


def test_nothing_leaves_before_the_owner_names_the_unit(owner: Owner) -> None:
    owner.say()
    with refused_with('write unit = "COLUMN"', 'unit = "row"'):
        owner.send(hospital())
    assert 'write unit = "patient"' not in "".join(show_site(owner.client, read_site(owner.client)))
    write(owner.data, hospital(visits=2))
    shown = "\n".join(show_site(owner.client, read_site(owner.client)))
    assert (
        'patient: several rows have the same value: if it names a person, write unit = "' in shown
    )
    assert owner.left == []
    owner.say('unit = "row"')
    assert owner.send(hospital()).unit == ROW
    owner.say('unit = "patient"')
    assert "several rows" not in "".join(show_site(owner.client, read_site(owner.client)))


def with_wards(rows: int) -> Rows:
    """Return rows of twelve wards, each with its own rate of the outcome, and of padded rooms."""
    random = np.random.default_rng(0)
    rates = np.random.default_rng(5).permutation(np.linspace(0.05, 0.95, 12))
    found = []
    for place in range(rows):
        ward = int(random.integers(12))
        outcome = "yes" if random.random() < rates[ward] else "no"
        cells = {"patient": f"p{place}", "ward": str(ward + 1), "room": f"0{place % 40:02}"}
        found.append({**cells, "age": str(random.integers(30, 90)), "outcome": outcome})
    return found


def test_codes_are_shown_to_the_owner_only(
    owner: Owner, capsys: pytest.CaptureFixture[str]
) -> None:
    made = owner.send(with_wards(400))
    site = read_site(owner.client)
    room = "room: zeros are before other digits, as in codes: if they are, tell the operator"
    ward = "ward: by outcome, its numbers act as names, not as amounts: if they are, tell the oper"
    without = "\n".join(show_site(owner.client, site))
    assert room in without
    assert "ward:" not in without
    by_target = "\n".join(show_site(owner.client, site, "Outcome"))
    assert room in by_target
    assert ward in by_target
    assert "age:" not in by_target
    assert "act as names" not in encode_letter(made).decode()
    with refused_with("--target = 'outcom'", "outcome"):
        list(show_site(owner.client, site, "outcom"))
    config = owner.bundle / "client.toml"
    ask = ("client", "profile", config, "--yes", "--out", owner.bundle / "again.json")
    assert ward in captured(capsys, *ask, "--target", "outcome").out


def test_visits_of_one_person_make_no_codes(owner: Owner) -> None:
    random = np.random.default_rng(1)
    rows = []
    for place in range(110):
        person = {"patient": f"p{place}", "bmi": str(random.integers(20, 60))}
        person["outcome"] = str(random.choice(["yes", "no"]))
        rows += [person] * 6
    write(owner.data, rows)
    site = read_site(owner.client)
    assert "act as names" not in "".join(show_site(owner.client, site, "outcome"))
    quantities = {name: column for name, column in site.read.items() if name != "patient"}
    assert [*find_own_codes(quantities, "outcome")] != []  # each row another person


def test_the_owner_sees_single_rows_and_the_server_none(owner: Owner) -> None:
    rows = with_cells(hospital(), "age", "999", "999", "999")
    made = owner.send(rows)
    assert "age: 999 in 3 rows, far from the others" in "\n".join(
        show_site(owner.client, read_site(owner.client))
    )
    assert "999" not in encode_letter(made).decode()
    words = "\n".join(describe_letter(made))
    assert "130 rows, unit patient; all counts are multiples of 5" in words
    assert "sex: 'f' 65, 'm' 65" in words
    assert "patient: only that it seems to name" in words


def test_each_profile_that_left_is_in_the_owners_log(owner: Owner) -> None:
    owner.send(hospital())
    (entry,) = read_entries(Path(owner.client.state_dir))
    assert entry["asked"] == "profile"
    assert entry["sent"] == {"profile": f"4 columns, {owner.out}"}
    assert [*describe_sent(owner.client)] == [
        "a profile of 4 columns, of 130 rows or persons on 2025-01-31, has left: an account does"
        " not count it"
    ]
    assert owner.left == ["0001.snapshot"]


def choose(owner: Owner, rows: Rows) -> Chosen:
    """Return what would leave of these rows, and let nothing leave."""
    write(owner.data, rows)
    return choose_letter(owner.client, read_site(owner.client), DAY)


@pytest.mark.parametrize("floor", [5, 20])
@pytest.mark.parametrize("unit", ["row", "patient"])
@pytest.mark.parametrize("what", ["more", "fewer", "a cell"])
def test_profiles_of_nearly_the_same_rows_are_one(
    owner: Owner, floor: int, unit: str, what: str
) -> None:
    owner.say(f'unit = "{unit}"', "[limits]", f"rows = {floor}")
    rows = hospital(200)

    def changed(count: int) -> Rows:
        more = rows + hospital(count, seed=1)
        cells = with_cells(rows, "sex", *["x"] * count)
        return {"more": more, "fewer": rows[count:], "a cell": cells}[what]

    first = owner.send(rows)
    for count in (1, 2 * floor - 1):
        assert owner.send(changed(count)) == first
        assert choose(owner, changed(count)).note.startswith(f"Only {count} rows changed")
    wider = [row | {"more": str(k % 2)} for k, row in enumerate(changed(1))]
    assert owner.send(wider) == first  # a new column makes no row new
    assert owner.send(changed(2 * floor)) != first


@pytest.mark.parametrize("name", ["age", "years"])
def test_a_column_written_anew_does_not_hide_a_row(owner: Owner, name: str) -> None:
    rows = hospital(200)
    first = owner.send(rows)

    def anew(count: int) -> Rows:
        more = [row | {"age": f"{row['age']}0"} for row in rows + hospital(count, seed=1)]
        return renamed(more, age=name)

    assert owner.send(anew(1)) == first
    assert owner.send(anew(10)).rows == 210


def test_corrected_cells_do_not_hide_another_cell(owner: Owner) -> None:
    rows = hospital(200)
    owner.send(rows)
    ages = with_cells(rows, "age", *["50.5"] * 10)
    chosen = choose(owner, with_cells(ages, "sex", "x"))
    assert "sex" not in chosen.letter.columns
    assert chosen.note == ("Not in this one, as a difference would show few rows, or persons: sex.")
    assert "sex" in choose(owner, with_cells(ages, "sex", *["x"] * 5)).letter.columns


def test_a_profile_is_compared_with_all_that_left(owner: Owner) -> None:
    rows = hospital()
    first = owner.send(rows)
    second = owner.send(rows + hospital(10, seed=1))
    assert second != first
    # 13 from the last one, 3 from the first
    assert owner.send(rows + hospital(3, seed=2)) == second
    assert owner.left == ["0001.snapshot", "0002.snapshot"]


@pytest.mark.parametrize("other", ['unit = "row"', 'unit = "patient"\n[limits]\nrows = 6'])
def test_two_floors_or_units_of_one_book_are_refused(owner: Owner, other: str) -> None:
    owner.send(hospital())
    owner.say(other)
    for rows in (hospital(), hospital(seed=1)):
        with refused_with(
            "both together would show exact counts" if other[8:11] == "row" else "6", "Set it back"
        ):
            owner.send(rows)
    owner.say('unit = "patient"')
    assert owner.send(hospital()).floor == 5


def test_a_hospital_has_four_profiles_a_year_and_a_table(owner: Owner) -> None:
    """150 rows, and 5 new patients a month: the law does not refuse all."""
    owner.say('unit = "row"', "[limits]", 'describe = "all"')
    random = np.random.default_rng(7)
    rows = [clinic_row(random) for _ in range(150)]
    absent = 0
    for month in range(12):
        rows += [clinic_row(random) for _ in range(5)]
        if month % 3 == 0:
            write(owner.data, rows)
            day = f"2025-{month + 1:02}-15"
            chosen = choose_letter(owner.client, read_site(owner.client), day)
            assert chosen.letter.date == day
            absent += 8 - len(chosen.letter.columns)
            send(owner.client, chosen, owner.out)
        if month == 0:
            table = choose_table(owner.client, CLINIC, day)
            assert table.note == ""
            send_quietly(owner, table)
    assert absent <= 0.1 * 4 * 8
    assert len(owner.left) == 4


# The fields of a schema of tables of these patients, with the target outcome.
FIELDS = """
[fields.age]
type = "number"
[fields.sex]
type = "string"
categories = ["f", "m"]
[fields.smoker]
type = "string"
categories = ["no", "yes"]
[fields.outcome]
type = "integer"
categories = [0, 1]
"""

CLINIC = f"""
target = "outcome"
missing = "fill"
ignore = ["stage", "ward", "dose"]
{FIELDS}
[fields.weight]
type = "number"
"""


def clinic_row(random: np.random.Generator) -> dict[str, str]:
    """Return a patient with numbers, categories of many and of few, and empty cells."""
    return {
        "age": f"{random.normal(60, 12):.0f}",
        "weight": f"{random.normal(75, 12):.1f}" if random.random() > 0.1 else "",
        "dose": f"{random.gamma(2, 5):.2f}",
        "sex": random.choice(["f", "m"]),
        "smoker": random.choice(["no", "yes"], p=[0.8, 0.2]),
        "stage": random.choice(["1", "2", "3", "4"]),
        "ward": random.choice([*"abcdef"]),
        "outcome": random.choice(["0", "1"], p=[0.7, 0.3]),
    }


def send_quietly(owner: Owner, chosen: Chosen) -> None:
    """Enter a table into the book, as one that has left; nobody gets it."""
    enter(Path(owner.client.state_dir), chosen.snapshot, chosen.release)


def test_the_floor_is_at_least_five(owner: Owner) -> None:
    owner.say('unit = "patient"', "[limits]", "rows = 1")
    assert owner.send(hospital()).floor == 5


def test_no_thirteenth_answer_leaves_in_a_year(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Told] = []
    monkeypatch.setattr(answers, "tell", lambda client, each: told.append(each))
    monkeypatch.setattr(today, "connection_fault", lambda client: None)
    for _ in range(12):
        send_yes(owner.client, DAY)
    with refused_with("12 answers on schemas have left in twelve months"):
        send_yes(owner.client, "2025-12-31")
    # the server learns that it cannot tell, and not what the answer was
    assert told == [Told(accepts=True)] * 12 + [Told(unknown=True)]
    send_yes(owner.client, "2026-02-01")
    assert told[-1] == Told(accepts=True)


def test_the_server_cannot_tell_once_no_schema_is_accepted(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A withdrawn schema is no answer; while another one is accepted, nothing has changed."""
    told: list[Told] = []
    monkeypatch.setattr(answers, "tell", lambda client, each: told.append(each))
    monkeypatch.setattr(today, "connection_fault", lambda client: None)
    write(owner.data, hospital())
    toml = owner.bundle / "client.toml"
    schema = SCHEMA.replace('"person"', '"patient"')
    texts = [f"{schema}\n# {number}" for number in range(2)]
    for text in texts:
        (owner.bundle / "schema.toml").write_text(text)
        captured(
            capsys,
            *("client", "accept", toml, "--schema", owner.bundle / "schema.toml"),
            *("--yes", "--also"),
        )
    digests = [digest_of(text) for text in texts]
    for digest in digests:
        captured(capsys, "client", "schemas", toml, "--withdraw", digest)
    captured(capsys, "client", "schemas", toml, "--withdraw", digests[0])  # again
    assert told == [Told(accepts=True)] * 2 + [Told(unknown=True)]
    assert len(owner.left) == 2
    assert "unknown" in captured(capsys, "client", "log", toml).out


def test_neither_a_schema_nor_a_table_steers_the_terminal(
    owner: Owner, capsys: pytest.CaptureFixture[str]
) -> None:
    write(owner.data, renamed(hospital(), age="a\x1b[2J"))
    config = owner.bundle / "client.toml"
    schema = owner.bundle / "schema.toml"
    schema.write_text(
        'target = "outcome"\nunit = "patient"\n[fields."b\\u001b[2J"]\ntype = "number"\n'
        '[fields.outcome]\ntype = "integer"\ncategories = [0, 1]\n'
    )
    for ask in (
        ("client", "accept", config, "--yes", "--schema", schema),
        ("client", "profile", config, "--yes", "--out", owner.out),
    ):
        shown = captured(capsys, *ask).out
        assert "x1b[2J" in shown
        assert "\x1b" not in shown


def test_two_profiles_at_once_are_refused(owner: Owner, capsys: pytest.CaptureFixture[str]) -> None:
    owner.send(hospital())
    ask = ("client", "profile", owner.bundle / "client.toml", "--yes", "--out", owner.out)
    with exclusive_lock(Path(owner.client.state_dir, "profiles.lock")):
        assert "profiles.lock is locked by process" in captured(capsys, *ask, code=2).err
    assert owner.left == ["0001.snapshot"]
    captured(capsys, *ask)
    assert owner.left == ["0001.snapshot"]


def test_with_an_open_account_nothing_leaves(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (answers, today):
        monkeypatch.setattr(module, "tell", lambda *_: pytest.fail("something leaves"))
    monkeypatch.setattr(today, "connection_fault", lambda client: None)
    write(owner.data, hospital())
    owner.say("[limits.privacy]", "epsilon = 3.0", f'ledger = "{owner.bundle / "accounts"}"')
    schema = (
        'target = "outcome"\nignore = ["patient", "remark", "sex", "stage"]\n[fields.age]\n'
        'type = "number"\ncenter = 60\nscale = 12\n'
        '[fields.outcome]\ntype = "integer"\ncategories = [0, 1]\n'
    )
    nothing = "no profile and no table of the rows has left this device, by its book"
    assert [*describe_sent(owner.client)] == [nothing]
    (owner.bundle / "schema.toml").write_text(schema)
    toml = owner.bundle / "client.toml"
    command = ("client", "account")
    opened = captured(capsys, *command, "open", toml, "--schema", owner.bundle / "schema.toml").out
    number = opened.split()[1]
    shown = captured(capsys, *command, "show", toml).out
    assert "left: 450 of 450 units" in shown
    assert opened.endswith(f"\n{nothing}\n")
    assert shown.endswith(f"\n{nothing}\n")
    assert show_site(owner.client, read_site(owner.client))
    for attempt in (
        lambda: owner.send(hospital()),
        lambda: send_yes(owner.client, DAY),
        lambda: send_unknown(owner.client),
    ):
        with refused_with("a privacy account is open", "codebook"):
            attempt()
    assert owner.left == []
    assert not owner.out.exists()
    assert f"account {number} is closed" in captured(capsys, *command, "close", toml).out
    assert "no account is open" in captured(capsys, *command, "show", toml, code=2).err


@pytest.mark.parametrize("spoil", ["cut", "flip", "secret"])
def test_a_damaged_store_lets_nothing_leave(owner: Owner, spoil: str) -> None:
    owner.send(hospital())
    state = owner.bundle / "state"
    file = state / (SECRET if spoil == "secret" else "profiles/0001.snapshot")
    content = file.read_bytes()
    shutil.copytree(state, owner.bundle / "copy")
    changed = {"cut": content[:50], "flip": content[:-1] + b"?", "secret": b"t" * 32}
    file.write_bytes(changed[spoil])
    with refused_with("0001.snapshot is damaged", "Bring the state-dir back from a copy"):
        owner.send(hospital(131))
    shutil.copytree(owner.bundle / "copy", state, dirs_exist_ok=True)
    assert owner.send(hospital(131)).rows == 130


def test_a_killed_send_counts_and_leaves_no_part(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(today, "write_private", kill)
        with pytest.raises(KeyboardInterrupt):
            owner.send(hospital())
    assert owner.left == ["0001.snapshot"]
    assert not owner.out.exists()
    (owner.bundle / "state" / "profiles" / ".0001.snapshot.draft").write_bytes(b"half")
    assert owner.send(hospital()).rows == 130
    assert owner.left == ["0001.snapshot"]


def test_a_release_that_cannot_be_entered_does_not_leave(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(today, "enter", kill)
    with pytest.raises(KeyboardInterrupt):
        owner.send(hospital())
    assert owner.left == []
    assert not owner.out.exists()


# Schemas ------------------------------------------------------------------------------------------

SCHEMA = """
target = "outcome"
unit = "person"
ignore = ["remark"]

[fields.age]
type = "number"

[fields.stage]
type = "integer"
categories = [1, 2, 3, 4]

[fields.sex]
type = "string"
categories = ["f", "m"]

[fields.outcome]
type = "integer"
categories = [0, 1]
"""


def test_a_schema_with_another_unit_is_refused(owner: Owner) -> None:
    write(owner.data, hospital())
    with refused_with("the schema's unit is person", "unit = 'patient'", "fields.person.name"):
        find_faults(owner.client, SCHEMA)
    block = '[files."*"]\nfields.person.name = "patient"'
    owner.say('unit = "patient"', block)
    assert find_faults(owner.client, SCHEMA) == []
    owner.say('unit = "row"', block)
    with refused_with("unit = 'row'"):
        find_faults(owner.client, SCHEMA)
    without = SCHEMA.replace('unit = "person"', "").replace('"remark"', '"remark", "patient"')
    owner.say('unit = "row"')
    assert find_faults(owner.client, without) == []
    owner.say('unit = "patient"')
    with refused_with("the schema's unit is row"):
        find_faults(owner.client, without)
    owner.say()
    assert find_faults(owner.client, without) == []


def test_faults_by_a_schema_are_shown_to_the_owner(owner: Owner) -> None:
    write(owner.data, with_cells(hospital(), "sex", "x", "y"))
    owner.say('[files."*"]\nfields.person.name = "patient"')
    found = find_faults(owner.client, SCHEMA)
    assert [each for each in found if "line 2, column 'sex' holds 'x'" in each]


def test_no_unreadable_file_and_no_images_hinder_an_answer(owner: Owner) -> None:
    owner.say()
    (found,) = find_faults(owner.client, SCHEMA)
    assert "this machine has no such folder" in found
    assert find_faults(owner.client, 'classes = ["a", "b"]\nsize = [8, 8]\n') == ()
    with refused_with("is not valid TOML"):
        find_faults(owner.client, "no [ toml")


def test_one_file_overrides_what_owner_toml_says_of_all(owner: Owner) -> None:
    owner.say(
        '[files."*"]\ndecimalChar = ","\nfields.age.name = "Alter"',
        '[files."2024.csv"]\ndecimalChar = "."\nfields.age.name = "age"',
    )
    schema = parse_schema(with_files(SCHEMA, owner.client.files, "site-a"))
    for file, decimal, name in (("2023.csv", ",", "Alter"), ("2024.csv", ".", "age")):
        found = schema.file(file, "site-a")
        assert (found.decimalChar, found.names_of("age")) == (decimal, (name,))


# The server ---------------------------------------------------------------------------------------


def told(served: Served, content: Told, name: str = "a") -> Any:
    call = Caller(served, name).call("Tell", b"", content.SerializeToString(), silent=False)
    return code_of(call), call.details()


def revoke_but_keep(served: Served, name: str) -> None:
    """Revoke a client, whose device still has its key."""
    folder = served.place / "bundles" / name
    shutil.copytree(folder, served.place / name)
    revoke(Federation.read(served.place), name)
    (served.place / name).rename(folder)
    served.look()


def letter(folder: Path, client: str, rows: Rows, **asked: Any) -> bytes:
    folder.mkdir(exist_ok=True)
    site = site_of(folder, rows)
    return encode_letter(
        letter_of(site, client, DAY, asked.get("floor", 5), asked.get("unit", ROW))
    )


def test_the_server_keeps_letters_and_answers(served: Served, tmp_path: Path) -> None:
    profiles = served.place / "profiles"
    first, second = (letter(tmp_path / "data", "a", hospital(count)) for count in (130, 160))
    assert describe_told(served.place, "a") == {"profile": None, "accepts": None}
    for content in (first, second):
        assert told(served, Told(profile=content))[0] == grpc.StatusCode.OK
    for answer, said in (
        (Told(unknown=True), "unknown"),
        (Told(accepts=True), "yes"),
    ):
        assert told(served, answer)[0] == grpc.StatusCode.OK
        assert describe_told(served.place, "a")["accepts"] == said
    day = describe_told(served.place, "a")["profile"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", day)
    assert (profiles / "a" / f"{day}.json").read_bytes() == second
    assert sorted(path.name for path in (profiles / "a").iterdir()) == [f"{day}.json", "accepts"]
    assert not (profiles / "b").exists()
    received = read_letters(Federation.read(served.place), [])
    assert (received.usable, received.left_out) == ({"a": decode_letter(second)}, [])
    clients = survey(Federation.read(served.place))["clients"]
    assert (clients["a"]["profile"], clients["a"]["accepts"]) == (day, "yes")
    assert (clients["b"]["profile"], clients["b"]["accepts"]) == (None, None)


def test_a_no_on_a_schema_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the only answer on a schema is yes"):
        keep(tmp_path, "a", Told(accepts=False))
    assert not any(tmp_path.iterdir())
    keep(tmp_path, "a", Told(accepts=True))
    assert describe_told(tmp_path, "a")["accepts"] == "yes"


def test_a_stranger_tells_the_server_nothing(served: Served, tmp_path: Path) -> None:
    content = Told(profile=letter(tmp_path / "data", "b", hospital()))
    revoke_but_keep(served, "b")
    code, words = told(served, content, "b")
    assert code == grpc.StatusCode.PERMISSION_DENIED
    assert "was revoked" in words
    assert not (served.place / "profiles").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (Told(), "neither a profile nor an answer"),
        (Told(profile=b" " * (SMALL_BYTES + 1)), "1,048,577 bytes, and 1,048,576 are the most"),
        (Told(table=b" " * (SMALL_BYTES + 1)), "1,048,577 bytes, and 1,048,576 are the most"),
        (Told(profile=b" " * (2 * LARGEST_CHUNK)), "larger than max"),
    ],
)
def test_too_large_or_empty_a_message_is_refused(served: Served, content: Told, words: str) -> None:
    code, said = told(served, content)
    assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert words in said
    assert not (served.place / "profiles").exists()


@pytest.mark.parametrize("content", [b"", b"{" * 100_000, b"\xff\xfe{", b" " * SMALL_BYTES])
def test_bytes_are_kept_as_they_came(served: Served, content: bytes) -> None:
    for message, name in ((Told(profile=content), "*.json"), (Told(table=content), "table")):
        assert told(served, message)[0] == grpc.StatusCode.OK
        (file,) = (served.place / "profiles" / "a").glob(name)
        assert file.read_bytes() == content


def test_an_hour_has_ten_messages_of_each_client() -> None:
    now = [0.0]
    hourly = Hourly(lambda: now[0])
    for _ in range(MOST_TOLD):
        hourly.count("a")
        now[0] += 60.0
    hourly.count("b")
    with pytest.raises(ValueError, match=r"^client 'a' has sent .* repeat the command in 50 min"):
        hourly.count("a")
    now[0] = HOUR - 1.0
    with pytest.raises(ValueError, match=r"in 1 minute$"):
        hourly.count("a")
    now[0] = HOUR  # the remedy
    hourly.count("a")
    with pytest.raises(ValueError, match=r"in 1 minute$"):
        hourly.count("a")


def test_the_eleventh_message_is_refused_unread(served: Served, tmp_path: Path) -> None:
    folder = served.place / "bundles" / "a"
    (folder / "owner.toml").write_text("")
    client = ClientSettings.of({"server": served.address}, folder / "client.toml")
    for _ in range(MOST_TOLD):
        assert told(served, Told(accepts=True))[0] == grpc.StatusCode.OK
    with refused_with(f"{served.address} refuses it", "repeat the command in 60 minutes"):
        tell(client, Told(profile=b"{}"))
    assert describe_told(served.place, "a") == {"profile": None, "accepts": "yes"}
    assert told(served, Told(accepts=True), "b")[0] == grpc.StatusCode.OK


def test_a_newer_letter_takes_the_place_of_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in ("2025-01-31", "2025-02-28"):
        monkeypatch.setattr(profiles_of_fleet, "timestamp", lambda day=day: f"{day}T00:00:00")
        for name in "ab":
            keep(tmp_path, name, Told(profile=day.encode()))
    keep(tmp_path, "a", Told(table=b"t"))
    kept = [path.name for path in sorted((tmp_path / "profiles").rglob("*")) if path.is_file()]
    assert kept == ["2025-02-28.json", "table", "2025-02-28.json"]


def test_a_device_sends_by_its_certificate(served: Served, tmp_path: Path) -> None:
    write(tmp_path / "data", hospital())
    folder = served.place / "bundles" / "a"
    (folder / "owner.toml").write_text(f'data-dir = "{tmp_path / "data"}"\nunit = "patient"\n')
    client = ClientSettings.of({"server": served.address}, folder / "client.toml")
    with pytest.raises(DeployError, match="does not vouch for"):
        send_yes(replace(client, ca=str(folder / "certificate")), DAY)
    assert not (Path(client.state_dir) / "profiles").exists()  # nothing has left
    send(client, choose_letter(client, read_site(client), DAY), None)
    send_yes(client, DAY)
    assert describe_told(served.place, "a")["accepts"] == "yes"
    assert len(list((Path(client.state_dir) / "profiles").glob("[0-9]*"))) == 2


def test_a_refused_profile_names_the_servers_reason(served: Served, tmp_path: Path) -> None:
    folder = served.place / "bundles" / "b"
    client = ClientSettings.of({"server": served.address}, folder / "client.toml")
    revoke_but_keep(served, "b")
    with refused_with(served.address, "was revoked by the federation's operator"):
        send_yes(client, DAY)


def test_a_letter_lies_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairbloom.system import files

    first, second = (letter(tmp_path / "data", "a", hospital(n)) for n in (130, 160))
    keep(tmp_path, "a", Told(profile=first))

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", kill)
        with pytest.raises(KeyboardInterrupt):
            keep(tmp_path, "a", Told(profile=second))
    (tmp_path / "profiles" / "a" / ".9999-01-01.json.draft").write_bytes(second[:100])
    (file,) = (tmp_path / "profiles" / "a").glob("*.json")
    assert file.read_bytes() == first


# The operator -------------------------------------------------------------------------------------


def scaled(rows: Rows, factor: float) -> Rows:
    return [row | {"age": f"{factor * float(row['age']):.1f}"} for row in rows]


@pytest.fixture
def hospitals(tmp_path: Path) -> dict[str, Rows]:
    west = scaled(renamed(hospital(160, seed=3), patient="PID", sex="SEX_"), 12.0)
    return {
        "north": hospital(160, seed=1),
        "south": hospital(160, seed=2),
        "west": renamed(west, age="age"),
    }


@pytest.fixture
def letters(tmp_path: Path, hospitals: dict[str, Rows]) -> dict[str, Letter]:
    return {
        name: decode_letter(
            letter(tmp_path / "data", name, rows, unit="PID" if "PID" in rows[0] else "patient")
        )
        for name, rows in hospitals.items()
    }


def test_the_page_says_who_stands_out_and_who_cannot_be_told(
    tmp_path: Path, letters: dict[str, Letter]
) -> None:
    small = decode_letter(letter(tmp_path / "data", "east", hospital(22, seed=9), floor=20))
    findings = compare(join_columns([*letters.values(), small]))
    lines = "\n".join(describe_findings(findings))
    assert "west: age: median" in lines
    assert "months and years" in lines
    assert '    [files."*"]\n    fields.age.factor = 0.0833333' in lines
    assert "east cannot be compared, for too few rows, in age" in lines
    many = [*describe_findings([findings[0]] * 12)]
    assert many[-1] == "and 2 more"
    assert "more" not in "".join(describe_findings([findings[0]] * 10))


def test_a_block_has_no_line_for_the_schema_of_all(
    tmp_path: Path, letters: dict[str, Letter]
) -> None:
    """A second category is everybody's, and an owner's file does not take it."""
    finding = OneValue("sex", ("west",), value="f", rows=30)
    assert finding.propose(Field(type="string"), "*") is not None
    list(write_schema(letters, [finding], tmp_path, {"target": "outcome"}))
    block = (tmp_path / "clients" / "west.toml").read_text()
    assert "does nothing mean no?" not in block
    assert "categories" not in block


def test_the_draft_reads_every_hospital_by_its_block(
    tmp_path: Path, letters: dict[str, Letter], hospitals: dict[str, Rows]
) -> None:
    findings = compare(join_columns(letters.values()))
    said = list(write_schema(letters, findings, tmp_path / "out", {"target": "outcome"}))
    assert len(said) == 5
    text = (tmp_path / "out" / "schema.toml").read_text()
    schema = parse_schema(text)
    assert (schema.unit, schema.target) == ("patient", "outcome")
    assert [*schema.fields] == ["age", "stage", "sex", "outcome"]
    west = (tmp_path / "out" / "clients" / "west.toml").read_text()
    assert 'fields.patient.name = "PID"' in west
    assert 'fields.sex.name = "SEX_"' in west
    assert "# fields.age.factor = 0.0833333" in west
    for name, rows in hospitals.items():
        bundle = enroll(Federation.init(tmp_path / f"of-{name}", ["localhost"], 1), name)
        write(bundle / "data", rows)
        block = (tmp_path / "out" / "clients" / f"{name}.toml").read_text()
        unit = "PID" if name == "west" else "patient"
        (bundle / "owner.toml").write_text(f'data-dir = "data"\nunit = "{unit}"\n{block}')
        assert find_faults(ClientSettings.of({}, bundle / "client.toml"), text) == []


SPANISH = {"age": "edad", "sex": "sexo", "stage": "estadio"}
IN_SPANISH = {"m": "varón", "f": "mujer", "1": "sí", "0": "no"}


def in_spanish(rows: Rows) -> Rows:
    """Return a hospital's rows with other names of columns, and other words."""
    words = [
        {**row, "sex": IN_SPANISH[row["sex"]], "outcome": IN_SPANISH[row["outcome"]]}
        for row in rows
    ]
    return renamed(words, **SPANISH)


def in_english(rows: Rows) -> Rows:
    return [{**row, "outcome": {"1": "yes", "0": "no"}[row["outcome"]]} for row in rows]


@pytest.mark.parametrize("spanish", [1, 2], ids=["of three", "of two, either side"])
def test_a_hospital_in_another_language_only_uncomments(tmp_path: Path, spanish: int) -> None:
    """The draft has each category once, and the block all names and words."""
    rows = {
        "north": in_english(hospital(160, seed=1)),
        "south": in_english(hospital(160, seed=2)),
        "west": in_spanish(hospital(160, seed=3)),
    }
    if spanish == 2:
        del rows["south"]
        rows["west"] = renamed(rows["west"], **{own: name for name, own in SPANISH.items()})
    letters = {
        name: decode_letter(letter(tmp_path / "data", name, of_site, unit="patient"))
        for name, of_site in rows.items()
    }
    _, findings = compare_letters(letters.values())
    list(write_schema(letters, findings, tmp_path / "out", {"target": "outcome"}))
    text = (tmp_path / "out" / "schema.toml").read_text()
    schema = parse_schema(text)
    assert len(schema.fields["sex"].categories) == len(schema.fields["outcome"].categories) == 2
    for name in rows:
        bundle = enroll(Federation.init(tmp_path / f"of-{name}", ["localhost"], 1), name)
        write(bundle / "data", rows[name])
        block = (tmp_path / "out" / "clients" / f"{name}.toml").read_text()
        is_usual = {row["outcome"] for row in rows[name]} == {*schema.fields["outcome"].categories}
        if not is_usual:
            block = block.replace("# fields.", "fields.")
        (bundle / "owner.toml").write_text(f'data-dir = "data"\nunit = "patient"\n{block}')
        faults = find_faults(ClientSettings.of({}, bundle / "client.toml"), text)
        assert faults == []


def test_each_field_has_one_column_of_a_block(tmp_path: Path, letters: dict[str, Letter]) -> None:
    def with_ages(name: str, *names: str) -> Letter:
        columns = dict(letters[name].columns)
        age = columns.pop("age")
        return replace(letters[name], columns=columns | dict.fromkeys(names, age))

    changed = {
        "north": letters["north"],
        "south": with_ages("south", "Age (y)", "A.G.E"),
        "west": with_ages("west", "age", "Age."),
    }
    list(write_schema(changed, [], tmp_path, {"target": "outcome"}))
    blocks = {
        name: tomllib.loads((tmp_path / "clients" / f"{name}.toml").read_text())["files"]["*"]
        for name in changed
    }
    assert "fields" not in blocks["south"]  # its owner knows which of the two it is
    assert "age" not in blocks["west"]["fields"]


def test_a_newcomer_changes_no_digest(tmp_path: Path, letters: dict[str, Letter]) -> None:
    out = tmp_path / "out"
    wanted = {"target": "outcome"}
    list(write_schema(letters, [], out, wanted))
    before = (out / "schema.toml").read_bytes()
    (out / "clients" / "north.toml").write_text("# mine\n")
    rows = [row | {"extra": "x"} for row in renamed(hospital(160, seed=4), age="Age.")]
    east = decode_letter(letter(tmp_path / "data", "east", rows, unit="patient"))
    said = list(write_schema({**letters, "east": east}, [], out, wanted))
    assert said == [
        f'{out / "schema.toml"} does not name extra: extend ignore by ["extra"]',
        f"{out / 'clients' / 'east.toml'} is written: lines for the owner.toml of east",
    ]
    assert (out / "schema.toml").read_bytes() == before
    assert (out / "clients" / "north.toml").read_text() == "# mine\n"
    assert 'fields.age.name = "Age."' in (out / "clients" / "east.toml").read_text()


def test_a_schema_is_extended_and_never_rewritten(
    tmp_path: Path, letters: dict[str, Letter]
) -> None:
    out = tmp_path / "out"
    wanted = {"target": "outcome"}
    list(write_schema(letters, [], out, wanted))
    text = (out / "schema.toml").read_text() + "# mine\n"
    (out / "schema.toml").write_text(text)
    more = {
        name: decode_letter(
            letter(
                tmp_path / "data",
                name,
                [row | {"dose": f"{k * 0.37:.2f}"} for k, row in enumerate(hospital(160, seed=5))],
                unit="patient",
            )
        )
        for name in letters
    }
    (first, *_) = write_schema(more, [], out, wanted)
    assert first == f"{out / 'schema.toml'} is extended: read it and correct it"
    extended = (out / "schema.toml").read_text()
    assert extended.startswith(text)
    assert "dose" in parse_schema(extended).fields


def test_units_of_some_sites_only_are_no_unit(tmp_path: Path, letters: dict[str, Letter]) -> None:
    mixed = {**letters, "north": replace(letters["north"], unit=ROW)}
    list(write_schema(mixed, [], tmp_path / "out", {"target": "outcome"}))
    schema = parse_schema((tmp_path / "out" / "schema.toml").read_text())
    assert schema.unit == ""
    assert {"patient", "PID"} <= {*schema.ignore}


def test_formats_are_lines_of_the_block(tmp_path: Path, letters: dict[str, Letter]) -> None:
    german = {"encoding": "cp1252", "decimalChar": ",", "groupChar": "."}
    usual = {"encoding": "utf-8", "decimalChar": ".", "groupChar": ""}
    changed = {
        "north": replace(letters["north"], formats=(german,)),
        "south": replace(letters["south"], formats=(usual, german)),
        "west": letters["west"],
    }
    list(write_schema(changed, [], tmp_path, {"target": "outcome"}))
    north, south, west = (
        (tmp_path / "clients" / f"{name}.toml").read_text().splitlines() for name in changed
    )
    assert north == ['[files."*"]', 'encoding = "cp1252"', 'decimalChar = ","', 'groupChar = "."']
    assert south[1:] == [f"# of some files only: {line}" for line in north[1:]]
    assert not [line for line in west if "decimalChar" in line]


def test_letters_are_of_enrolled_clients_or_named(tmp_path: Path) -> None:
    federation = Federation.init(tmp_path / "fed", ["localhost"], 1)
    with refused_with("no client has sent a profile", "--out FILE"):
        read_letters(federation, [])
    for name in ("north", "south"):
        enroll(federation, name)
        keep(federation.path, name, Told(profile=letter(tmp_path / "d", name, hospital())))
    revoke(federation, "south")
    assert [*read_letters(federation, []).usable] == ["north"]
    named = tmp_path / "named.json"
    named.write_bytes(letter(tmp_path / "d", "north", hospital(160)))
    assert read_letters(federation, [named]).usable["north"].rows == 160
    named.write_bytes(letter(tmp_path / "d", "north", hospital(4)))
    with refused_with("no client has sent a profile of at least limits.rows rows"):
        read_letters(Federation.init(tmp_path / "other", ["localhost"], 1), [named])
    named.write_bytes(b"{}")
    received = read_letters(federation, [named])
    assert received.usable["north"].rows == 130
    (sentence,) = received.left_out
    assert sentence.startswith(f"{named} cannot be used and is left out: it is no profile as a")
    assert sentence.endswith("Ask its client's owner for another")
    named.unlink()
    with refused_with(str(named)):
        read_letters(federation, [named])


def changed_letter(content: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(content), **changes}).encode()


HOSTILE = {
    "utf-16": lambda made: made.decode().encode("utf-16"),
    "nothing": lambda made: b"",
    "deep": lambda made: b"[" * 500_000,
    "a long number": lambda made: b'{"client": ' + b"9" * 900_000 + b"}",
    "a surrogate": lambda made: made.replace(b'"stage"', b'"\\ud800"'),
    "of another client": lambda made: changed_letter(made, client="a"),
    "a unit of no column": lambda made: changed_letter(made, unit="nobody"),
    "a number of 1e300": lambda made: made.replace(b'"quantiles": [', b'"quantiles": [-1e300, ', 1),
    "no rows": lambda made: changed_letter(made, rows=-5),
    "a list": lambda made: b"[1]",
    "many columns": lambda made: changed_letter(
        made, columns={f"{n}": None for n in range(20_000)}
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_letter_that_cannot_be_used_stops_no_others(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "evil") == 0
    for place, name in enumerate(("a", "b", "evil")):
        content = letter(tmp_path / "d", name, hospital(160, seed=place), unit="patient")
        keep(made, name, Told(profile=HOSTILE[kind](content) if name == "evil" else content))
    capsys.readouterr()
    words = ("deploy", "profiles", "--target", "outcome", "--write-schema", tmp_path / "out")
    said = captured(capsys, *words, "--page", tmp_path / "page.html")
    (line,) = said.err.splitlines()
    assert re.fullmatch(
        r"fairbloom deploy: \S+profiles/evil/\S+\.json cannot be used and is left out: .+\. Ask"
        r" evil's owner for another",
        line,
    )
    assert len(line) < 600
    assert sorted(path.stem for path in (tmp_path / "out/clients").iterdir()) == ["a", "b"]
    (made / "profiles/evil" / Path(line.split()[2]).name).unlink()
    content = letter(tmp_path / "d", "evil", hospital(160, seed=3), unit="patient")
    keep(made, "evil", Told(profile=content))  # the remedy
    assert captured(capsys, *words).err == ""
    assert (tmp_path / "out/clients/evil.toml").exists()


def test_names_and_values_are_text_in_page_and_schema(
    tmp_path: Path, letters: dict[str, Letter], capsys: pytest.CaptureFixture[str]
) -> None:
    script = "<script>alert(1)</script>\x1b[2J"
    odd = dict[str, Letter]()
    for client, each in letters.items():
        sex = next(name for name in each.columns if name.startswith("sex") or name == "SEX_")
        columns = {name: one for name, one in each.columns.items() if name != sex}
        columns[script] = replace(each.columns[sex], values={f"{script}f": 80, "m": 80})
        odd[client] = replace(each, columns=columns)
        (tmp_path / f"{client}.json").write_bytes(encode_letter(odd[client]))
    federation = Federation.init(tmp_path / "fed", ["localhost"], 1)
    files = [tmp_path / f"{client}.json" for client in odd]
    page, out = tmp_path / "page.html", tmp_path / "out"
    words = ("deploy", "profiles", *files, "--dir", federation.path, "--page", page)
    captured(capsys, *words, "--write-schema", out, "--target", "outcome")
    assert "<script>alert" not in page.read_text()
    assert "&lt;script&gt;alert" in page.read_text()
    for file in (out / "schema.toml", *(out / "clients").iterdir()):
        assert file.read_text().replace("\n", "").isprintable()
    assert f"{script}f" in parse_schema((out / "schema.toml").read_text()).fields[script].categories


def test_many_values_of_one_target_stop_no_draft(
    tmp_path: Path, letters: dict[str, Letter]
) -> None:
    many = {f"k{n}": 5 for n in range(100)}
    odd = dict[str, Letter]()
    for client, each in letters.items():
        values = many if client == "west" else {"well": 100, "ill": 50}
        rows = sum(values.values())
        columns = {name: replace(one, rows=rows) for name, one in each.columns.items()}
        columns["outcome"] = replace(columns["outcome"], values=values)
        odd[client] = replace(each, rows=rows, columns=columns)
    said = list(write_schema(odd, [], tmp_path / "out", {"target": "outcome"}))
    assert said[0].startswith("west is left out of the schema: with it, the target, column")
    assert parse_schema((tmp_path / "out/schema.toml").read_text()).predicted.categories == (
        "ill",
        "well",
    )
    two = {name: odd[name] for name in ("north", "west")}
    with refused_with("different values", "csv.target"):  # nobody can say which of two is wrong
        list(write_schema(two, [], tmp_path / "other", {"target": "outcome"}))
    with refused_with("csv.target"):  # nor does it help to leave one out
        list(write_schema(letters, [], tmp_path / "more", {"target": "absent"}))


def test_the_way_by_commands(
    made: Path, capsys: pytest.CaptureFixture[str], hospitals: dict[str, Rows]
) -> None:
    assert fairbloom("deploy", "enroll", *hospitals) == 0
    files = []
    for name, rows in hospitals.items():
        bundle = made / "bundles" / name
        write(bundle / "data", rows)
        unit = "PID" if name == "west" else "patient"
        (bundle / "owner.toml").write_text(f'data-dir = "data"\nunit = "{unit}"\n')
        files.append(made / f"{name}.json")
        shown = captured(
            capsys, "client", "profile", bundle / "client.toml", "--yes", "--out", files[-1]
        ).out
        assert "For your eyes; what would leave comes after it:" in shown
        assert files[-1].read_text() in shown
    shown = captured(
        capsys, "deploy", "profiles", *files, "--write-schema", "out", "--target", "outcome"
    ).out
    assert "west: age: median" in shown
    assert "out/schema.toml is written" in shown
    for option, words in (("task=csv", "write csv.target"), ("csv.missing=x", "csv.missing")):
        assert words in refusal(capsys, "deploy", "profiles", *files, "--set", option)
    with (made / "bundles" / "west" / "owner.toml").open("a") as file:
        file.write(Path("out/clients/west.toml").read_text())
    config = made / "bundles" / "west" / "client.toml"
    printed = captured(capsys, "client", "accept", config, "--schema", "out/schema.toml", "--yes")
    assert "accepted" in printed.out
    assert "the server does not learn it: fl.example.org:9092" in printed.err
    assert json.loads(files[0].read_text())["client"] == "north"


def test_an_owner_sees_the_data_in_the_devices_own_dialect(
    owner: Owner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"alter": f"{40 + k},5", "dead": "ja" if k % 3 else "nein"} for k in range(20)]
    lines = [";".join(rows[0]), *(";".join(row.values()) for row in rows)]
    owner.data.mkdir()
    (owner.data / "2026.csv").write_text("\n".join([*lines, ""]), encoding="utf-16")
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'target = "dead"\nmissing = "fill"\n[fields.age]\ntype = "number"\n'
        '[fields.sex]\ntype = "string"\ncategories = ["f", "m"]\n'
        '[fields.dead]\ntype = "string"\ncategories = ["no", "yes"]\n'
    )
    config = owner.bundle / "client.toml"
    assert "no schema is accepted yet" in refusal(capsys, "client", "data", config)
    shown = captured(capsys, "client", "data", config, "--schema", schema, code=1).out
    assert "faults, listed below" in shown
    owner.say(
        '[files."*"]\ndecimalChar = ","\nfields.age.name = "alter"',
        'fields.dead.spellings = {yes = ["ja"], no = ["nein"]}',
    )
    shown = captured(capsys, "client", "data", config, "--schema", schema).out
    assert re.search(r"age +│ number +│ 40.5 to 59.5, median 50 +│ 0", shown)
    heads = shown[shown.index("clients") :].splitlines()
    assert not {"train", "test"} & {*re.findall(r"\w+", heads[2])}
    assert "│ 2026 " not in shown  # the file's name
    assert re.search(rf"│ {owner.client.name} +│", shown)
    assert re.search(rf"sex +│ category +│ no such column +│ {len(rows)}", shown)
    captured(capsys, "client", "accept", config, "--schema", schema, "--yes")
    assert captured(capsys, "client", "data", config).out == shown


def test_next_years_file_is_predicted_in_the_devices_dialect(owner: Owner, tmp_path: Path) -> None:
    """It has another name, and owner.toml was changed after the last run."""
    schema = (
        'target = "dead"\n[fields.age]\ntype = "number"\ncenter = 50\nscale = 10\n'
        '[fields.dead]\ntype = "string"\ncategories = ["no", "yes"]\n'
    )
    write(owner.data, [{"age": f"{40 + k}.5", "dead": "yes" if k % 3 else "no"} for k in range(20)])
    place = owner.data / "site.csv"
    given = RunSettings.of({"task": "csv", "schema": schema, "data-dir": str(place)})
    task = load_task(given)
    arrays = arrays_of(task.model().state_dict())
    keep_model(owner.bundle / "state", given, task, "site", arrays, 3, "global")
    (tmp_path / "2027.csv").write_bytes("Alter;x\n44,5;ja\n".encode("cp1252"))
    words = ("predict", owner.bundle / "client.toml", tmp_path / "2027.csv", "--out")
    owner.say('[files."*"]', 'encoding = "cp1252"', 'decimalChar = ","')
    assert fairbloom(*words, tmp_path / "out.csv") == 2  # it has no column age
    owner.say(
        '[files."*"]\nencoding = "cp1252"\ndecimalChar = ","\nfields.age.name = "Alter"',
        'fields.dead = {name = "x", spellings = {yes = ["ja"], no = ["nein"]}}',
    )
    assert fairbloom(*words, tmp_path / "out.csv") == 0
    (tmp_path / "plain.csv").write_text("age,dead\n44.5,yes\n")
    state = owner.bundle / "state"
    assert fairbloom("predict", state, tmp_path / "plain.csv", "--out", tmp_path / "p.csv") == 0
    (own,), (plain,) = (
        [*csv.DictReader((tmp_path / name).read_text().splitlines(), delimiter=mark)]
        for name, mark in (("out.csv", ";"), ("p.csv", ","))
    )
    assert own["probability_yes"].replace(",", ".") == plain["probability_yes"]


def test_of_answers_at_once_twelve_leave(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is counted before it leaves, under a lock."""
    told: list[Told] = []
    monkeypatch.setattr(answers, "tell", lambda client, each: told.append(each))
    monkeypatch.setattr(today, "connection_fault", lambda client: None)
    client = owner.client

    def send_one(_: int) -> None:
        with suppress(DeployError):
            send_yes(client, DAY)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send_one, range(20)))
    assert told.count(Told(accepts=True)) == 12
