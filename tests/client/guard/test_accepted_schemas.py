"""A device reads its tables by schemas alone that its owner has accepted."""

import errno
import json
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import IO, Any

import pytest
from hypothesis import example, given, strategies as st

from fairbloom.client.guard import accepted_schemas
from fairbloom.client.guard.accepted_schemas import (
    MAX_RUNS,
    Schemas,
    check_accepted,
    describe_acceptance,
    describe_change,
    describe_schemas,
    digest_of,
    is_comparable,
    read_refused,
)
from fairbloom.client.guard.accepted_settings import SettingRefusedError
from fairbloom.errors import FairbloomError
from fairbloom.system import files, retry
from fairbloom.tables.schema import SchemaError, parse_schema, parse_toml
from tests.experiments.helpers import fairbloom

from ..hospital import SCHEMA, grouped

SIXTY = grouped("age>=60")
OLDER = grouped("age>=61")


def refused(text: str, folder: Path, run: int, settings: str = "") -> bool:
    try:
        check_accepted({"schema": text, "fingerprint": settings}, folder, "accepted", run)
    except SettingRefusedError:
        return True
    return False


@pytest.fixture
def schemas(tmp_path: Path) -> Schemas:
    return Schemas(tmp_path)


def test_a_schema_is_accepted_once_by_the_owner(
    tmp_path: Path, schemas: Schemas, subtests: pytest.Subtests
) -> None:
    with pytest.raises(FairbloomError, match="nothing to accept"):
        read_refused(tmp_path)
    with pytest.raises(FairbloomError, match="one schema's digest; there are none"):
        schemas.withdraw("0")
    with pytest.raises(SettingRefusedError, match="fairbloom client accept"):
        check_accepted({"schema": SCHEMA, "fingerprint": ""}, tmp_path, "accepted", 1)
    assert [*describe_change(schemas, read_refused(tmp_path))] == SCHEMA.splitlines()
    assert refused(SCHEMA, tmp_path, 1)  # never by itself
    schemas.accept(read_refused(tmp_path))
    assert not refused(SCHEMA, tmp_path, 1)
    with pytest.raises(FairbloomError, match="'' is not the beginning of one schema's digest"):
        schemas.withdraw("")
    for other in (grouped("chol>=237"), grouped("chol>=238")):  # which would show who has 237
        with subtests.test(other=other):
            assert refused(other, tmp_path, 1)
            change = [*describe_change(schemas, read_refused(tmp_path))]
            assert f"+groups = {[other.split(chr(39))[1]]}" in change
    check_accepted({"schema": grouped("chol>=238")}, tmp_path, "any", 1)
    with pytest.raises(SettingRefusedError, match="no state-dir"):
        check_accepted({"schema": SCHEMA}, None, "accepted", 1)
    check_accepted({}, None, "accepted", 1)


def test_a_new_schema_is_compared_with_the_last_accepted_one(schemas: Schemas) -> None:
    schemas.accept(OLDER)
    schemas.accept(SIXTY, also=True)
    schemas.withdraw(digest_of(SIXTY)[:8])
    assert [*describe_change(schemas, OLDER)] == []
    schemas.withdraw(digest_of(OLDER))
    assert [*describe_change(schemas, SIXTY)] == []  # without an accepted one, with the last of all
    schemas.accept(OLDER)
    schemas.accept(SIXTY)
    assert [each.digest for each in schemas.accepted()] == [digest_of(SIXTY)]


RUNS = st.tuples(st.sampled_from([7, 8]), st.sampled_from("xy"), st.sampled_from([SIXTY, OLDER]))


ACTS = st.tuples(st.sampled_from(["accept", "also", "withdraw"]), st.sampled_from([SIXTY, OLDER]))


@given(steps=st.lists(ACTS | RUNS, max_size=12))
@example(
    steps=[
        ("accept", SIXTY),
        (7, "x", SIXTY),
        ("withdraw", SIXTY),
        ("accept", OLDER),
        (7, "x", SIXTY),
    ]
)
@example(steps=[("accept", SIXTY), (7, "x", SIXTY), ("accept", OLDER), (7, "y", SIXTY)])
@example(
    steps=[
        ("accept", SIXTY),
        (7, "x", SIXTY),
        ("accept", OLDER),
        (7, "x", OLDER),
        (7, "x", SIXTY),
    ]
)
def test_an_ended_schema_is_for_the_run_that_has_it(steps: list[tuple[Any, ...]]) -> None:
    """A step is the owner's, or a run that asks for a schema with a number and its settings."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        accepted = set[str]()
        withdrawn = set[str]()
        last = dict[int, tuple[str, str]]()
        for first, *rest in steps:
            text = rest[-1]
            if isinstance(first, int):
                is_let_in = text in accepted or (
                    text not in withdrawn and last.get(first) == (rest[0], text)
                )
                assert refused(text, folder, first, rest[0]) != is_let_in
                if is_let_in:
                    last[first] = (rest[0], text)
            elif first != "withdraw":
                Schemas(folder).accept(text, also=first == "also")
                accepted = {text} | (accepted if first == "also" else set())
                withdrawn.discard(text)
            elif any(each.digest == digest_of(text) for each in Schemas(folder).known()):
                Schemas(folder).withdraw(digest_of(text))
                accepted.discard(text)
                withdrawn.add(text)


def test_many_runs_leave_small_files(tmp_path: Path, schemas: Schemas) -> None:
    schemas.accept(SIXTY)
    (tmp_path / "schemas" / "runs.json").write_text('{"7": "the digest in an older version"}')
    for run in range(MAX_RUNS + 5):
        assert not refused(SIXTY, tmp_path, run)
    (known,) = schemas.known()
    assert schemas.runs_of(known) == [str(run) for run in range(5, MAX_RUNS + 5)]


def test_an_acceptance_says_whom_two_schemas_show(schemas: Schemas) -> None:
    schemas.accept(SIXTY)
    said = "\n".join(describe_acceptance(schemas, OLDER, also=False))
    label = f"schema {digest_of(SIXTY)[:12]}, accepted on 20"
    assert f"This ends {label}" in said
    assert f"It counts other rows than {label}" in said
    assert "groups: ['age>=60'] there, ['age>=61'] here. The difference of the two" in said
    assert "can reveal single rows, outliers first" in said
    assert "only noise helps: docs/privacy.md" in said
    assert "ends" not in "\n".join(describe_acceptance(schemas, OLDER, also=True))
    # also of a schema that has ended, and of one that was withdrawn
    schemas.accept(SCHEMA)
    schemas.withdraw(digest_of(SIXTY))
    assert "['age>=61'] here" in "\n".join(describe_acceptance(schemas, OLDER, also=False))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("[0, 1]", "[0, 1, 2]"), "sex.categories"),
        (('missing = "fill"', 'missing = "drop"'), "missing"),
        (("[fields.chol]", "[fields.chol]\nmissingValues = [-9]"), "chol.missingValues"),
        (("[fields.age]", '[files."*"]\nfields.age.factor = 0.98\n[fields.age]'), "files"),
        (("[fields.ca]", "[fields.ca]\nconstraints = {maximum = 2}"), "ca.constraints"),
    ],
)
def test_each_other_way_to_count_rows_is_said(
    schemas: Schemas, change: tuple[str, str], key: str
) -> None:
    schemas.accept(SCHEMA)
    (_, said, _) = describe_acceptance(schemas, SCHEMA.replace(*change, 1), also=False)
    assert f": {key}: " in said
    assert " here. The difference" in said


def test_a_new_column_that_drops_rows_is_said(schemas: Schemas) -> None:
    dropping = SCHEMA.replace('missing = "fill"', 'missing = "drop"')
    schemas.accept(dropping)
    (_, said, _) = describe_acceptance(
        schemas, dropping + '\n[fields.weight]\ntype = "number"\n', also=False
    )
    assert "columns that drop rows: [] there, ['weight'] here" in said


def test_the_same_rows_give_no_warning(schemas: Schemas) -> None:
    schemas.accept(SCHEMA)
    same = SCHEMA.replace("[fields.age]", "[fields.age]\ncenter = 50\nscale = 10")
    same = same.replace('["hospice", "north", "south"]', '["south", "north", "hospice"]')
    assert len(list(describe_acceptance(schemas, same, also=False))) == 2
    others = ("no [ toml", "fields = 3", "fields = {a = 3}")
    said = [list(describe_acceptance(schemas, other, also=True)) for other in others]
    assert [*map(len, said)] == [2, 2, 2]


def test_accept_asks_and_schemas_lists_and_withdraws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("sixty", SIXTY), ("older", OLDER)):
        (tmp_path / name).write_text(text)
    state = tmp_path / "state"
    assert fairbloom("client", "schemas", state) == 0
    assert "no schema was accepted" in capsys.readouterr().out
    assert fairbloom("client", "accept", state, "--schema", tmp_path / "sixty", "--yes") == 0
    asked = list[str]()
    monkeypatch.setattr("typer.confirm", lambda words: asked.append(words))
    assert fairbloom("client", "accept", state, "--schema", tmp_path / "older") == 0
    said = capsys.readouterr().out
    assert asked
    assert f"This ends schema {digest_of(SIXTY)[:12]}" in said
    assert [each.state for each in Schemas(state).known()] == ["accepted"]
    assert fairbloom("client", "accept", state, "--schema", tmp_path / "older", "--yes") == 0
    assert fairbloom("client", "schemas", state, "--withdraw", digest_of(SIXTY)[:6]) == 0
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert lines[0].startswith(f"withdrawn: {digest_of(SIXTY)[:12]}, accepted on 20")
    assert lines[1].startswith(f"accepted: {digest_of(OLDER)[:12]}, accepted on 20")
    assert "runs: none; " in lines[1]
    assert fairbloom("client", "schemas", state, "--withdraw", "xyz") == 2
    known = f"{digest_of(SIXTY)[:12]}, {digest_of(OLDER)[:12]}"
    assert f"'xyz' is not the beginning of one schema's digest; there are {known}" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_schema_steers_no_terminal(schemas: Schemas) -> None:
    evil = SCHEMA.replace("hospice", "\x1b[2J\x9b31m\u202e")
    schemas.accept(SCHEMA)
    said = [*describe_change(schemas, evil), *describe_acceptance(schemas, evil, also=True)]
    schemas.accept(evil)
    said += describe_schemas(schemas)
    assert all(text.isprintable() for text in said)


HOSTILE = {
    "a deep key": "a" + ".a" * 100_000 + " = 1",
    "a deep header": "[" + "a." * 100_000 + "a]",
    "a deep key in quotation marks": '"="' + '."="' * 100_000 + " = 1",
    "a deep array": "x = " + "[" * 20_000 + "]" * 20_000,
    "deep tables": "x = " + "{a=" * 5_000 + "1" + "}" * 5_000,
    "a long number": "x = " + "9" * 1_000_000,
    "a long number in hexadecimal": "x = 0x" + "9" * 1_000_000,
    "a long center": "[fields.age]\ncenter = 0x" + "9" * 1_000_000,
    "many quotation marks": 'x = "' + '\\"' * 400_000,
    "a long target": f"target = {'ab' * 30!r}\n"
    + "".join(f"[fields.{n:060b}]\ntype = 'number'\n" for n in range(8_000)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_schema_is_one_sentence(schemas: Schemas, kind: str) -> None:
    """Each of them took minutes, or ended in a traceback."""
    schemas.accept(SCHEMA)
    text = HOSTILE[kind] if kind == "a long target" else f"{SCHEMA}{HOSTILE[kind]}\n"
    said = [*describe_change(schemas, text), *describe_acceptance(schemas, text, also=False)]
    assert all(line.isprintable() for line in said)
    with pytest.raises(SchemaError) as raised:
        parse_schema(text)
    assert len(str(raised.value)) < 1000


def test_a_key_may_be_as_deep_as_schemas_need() -> None:
    deep = "a" + ".a" * 16
    with pytest.raises(SchemaError, match="a is unknown"):
        parse_schema(f"{SCHEMA}\n[{deep}]\n")
    with pytest.raises(SchemaError, match="nested too deeply"):
        parse_schema(f"{SCHEMA}\n[{deep}.a]\n")
    dotted = [f"x.{n}" for n in range(50)]  # in one line, and no key
    assert parse_toml(f"ignore = {json.dumps(dotted)}") == {"ignore": dotted}
    assert parse_toml("x = [" + "0.5, " * 50 + "]")["x"] == [0.5] * 50


def test_texts_that_take_long_to_compare_are_shown_whole(schemas: Schemas) -> None:
    before = [f"# {n % 101}" for n in range(3_000)]
    schemas.accept("\n".join(before))
    assert not is_comparable(before, before[::-1])
    first, *rest = describe_change(schemas, "\n".join(before[::-1]))
    assert (
        first
        == "It has too many lines in common with the accepted one to be compared; all of it is:"
    )
    assert rest == before[::-1]
    wide = "\n".join(f"[fields.f{n}]\ntype = 'number'\ncenter = {n % 9}" for n in range(1_000))
    schemas.accept(wide)
    (_, _, _, *changed) = describe_change(schemas, wide.replace("f500]", "g]"))
    assert [line for line in changed if line[0] in "+-"] == ["-[fields.f500]", "+[fields.g]"]


def test_a_disk_that_is_full_for_a_while_keeps_no_run_out(
    schemas: Schemas, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    schemas.accept("target = 'x'")
    whole_file = files.whole_file

    def refuse(path: Path, mode: int | None) -> AbstractContextManager[IO[bytes]]:
        if len(waits) < 3:
            raise OSError(errno.ESTALE, "Stale file handle")
        return whole_file(path, mode)

    monkeypatch.setattr(
        retry, "time", SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append)
    )
    monkeypatch.setattr(files, "whole_file", refuse)
    digest = accepted_schemas.digest_of("target = 'x'")
    with pytest.raises(OSError, match="Stale"):
        schemas.admits(digest, 1, "settings")
    with retry.retrying_writes(30.0):
        assert schemas.admits(digest, 1, "settings")
    assert len(waits) == 3
    assert schemas.runs_of(schemas.accepted()[0]) == ["1"]
