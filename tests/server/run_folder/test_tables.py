"""The tables of a finished run: read where they are whole, refused with file and fault where
not."""

import csv
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from fairbloom.server.run_folder.csv_rows import (
    ClientTable,
    format_round,
    parse_names,
    parse_refusals,
)
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.tables import format_csv, read_table

from .test_recorder import a_round

ROWS = [
    {"round": number, "client": name}
    for number in (1, 2)
    for name in ("a", 'b, "the second"\nof two')
]

DAMAGED = {
    b"": "no column",
    b"round,client\n1,a\n2": "torn",
    b'round,client\n1,"a\n': "unexpected end",  # torn at the end of a line
    b"\x89PNG\r\n\x00\xff\n": "byte 0x89",
    b"epoch,client\n1,2\n": "round",
    b"round,gains\n1,2\n": "no column client",
    b"round,client,client\n1,a,a\n": "client",
    b"round,client\n-1,a\n": "line 2 is '-1'",
    b"round,client\n1,a\n,\n": "line 3 is ''",
    b"round,client\n1,a\n2\n": "line 3",
    b"round,client\n1,a,b\n": "line 2",
}
"""Contents of no finished table, and what the refusal names."""


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text(format_csv(ClientTable().columns, ROWS))
    read = read_table(tmp_path / "clients.csv", ClientTable().columns, finished=True)
    assert [(row["round"], row["client"]) for row in read] == [
        (str(row["round"]), row["client"]) for row in ROWS
    ]


@pytest.mark.parametrize(("content", "fault"), {None: "No such file", **DAMAGED}.items())
def test_a_damaged_or_missing_table_is_refused_with_a_remedy(
    tmp_path: Path, content: bytes | None, fault: str
) -> None:
    path = tmp_path / "clients.csv"
    path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
    with pytest.raises(RunFolderError) as refusal:
        read_table(path, ("client",), finished=True)
    assert str(refusal.value).startswith(f"{path} cannot be read: ")
    assert fault in str(refusal.value)
    assert "(--out)" in str(refusal.value)


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"], include_characters=" '|:"),
    min_size=1,
)


@given(names=st.lists(NAMES, unique=True), reason=st.text(min_size=1))
@example(names=[" | ", "b"], reason="0")
@example(names=["a", "b"], reason="| ends with |")
def test_no_name_of_those_who_were_absent_is_lost(names: list[str], reason: str) -> None:
    """Whatever a client calls itself, or writes as the reason of its error."""
    finished = a_round(1, missing=names, offline=names[:1], refused=dict.fromkeys(names, reason))
    row = format_round(finished, 0.0)
    assert parse_names(str(row["missing"])) == names
    assert parse_names(str(row["offline"])) == names[:1]
    assert [name for name, _ in parse_refusals(str(row["refused"]))] == names


def test_a_reason_can_not_name_another_client() -> None:
    row = format_round(a_round(1, refused={"Site A": "no | honest: NaN", "b": "x"}), 0.0)
    assert row["refused"] == "'Site A': no / honest: NaN | b: x"
    assert [name for name, _ in parse_refusals(str(row["refused"]))] == ["Site A", "b"]


def test_names_without_spaces_have_no_quotation_marks() -> None:
    assert (
        format_round(a_round(1, missing=("site-a", "site_b.c")), 0.0)["missing"]
        == "site-a site_b.c"
    )


@pytest.mark.parametrize("finished", [False, True])
def test_long_cells_are_read_and_csvs_limit_is_restored(tmp_path: Path, finished: bool) -> None:
    limit = csv.field_size_limit()
    reasons = "site-a: " + "it was refused " * limit
    (tmp_path / "rounds.csv").write_text(
        format_csv(("round", "refused"), [{"round": 1, "refused": reasons}])
    )
    (row,) = read_table(tmp_path / "rounds.csv", ["round", "refused"], finished=finished)
    assert row["refused"] == reasons
    assert csv.field_size_limit() == limit
