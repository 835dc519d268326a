"""The files of a run folder: each is declared once, read as it was written, and refused with a
remedy where damaged.

The tables of a finished run: read where they are whole, refused with file and fault where
not.

A run continues with data at another path, and with a file that is empty.

Run folders of format 7 stay readable: this pins their content, which other tests read.
"""

import csv
import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import example, given, strategies as st
from safetensors import safe_open

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import ACCURACY, GroupScore, Score
from fairbloom.protocol.version import RUN_FOLDER_FORMAT
from fairbloom.rounds.run_state import RunState
from fairbloom.server.plan import choose_run_folder
from fairbloom.server.run_folder import files
from fairbloom.server.run_folder.csv_rows import (
    ClientRows,
    format_round,
    parse_names,
    parse_refusals,
)
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    DATA,
    ENGINE,
    ENTRIES,
    ENVIRONMENT,
    EXAMPLES,
    GROUPED,
    GROUPS,
    HELD_OUT,
    KNOWN,
    MADE,
    MODEL,
    MODULES,
    PREPROCESSING,
    PRIVACY,
    SCHEMA,
    SCORES,
    SPLIT,
    File,
    read_model,
    record_known,
    record_rows,
)
from fairbloom.server.run_folder.group_rows import Grouped
from fairbloom.server.run_folder.tables import format_csv, read_table
from fairbloom.server.run_folder.values import Known, RecordedSettings, RunStart
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.system.values import encode
from fairbloom.system.versions import Point, Versions
from fairbloom.tables.preprocessing import InputColumn, Preprocessing
from fairbloom.tasks import load_task
from fairbloom.tasks.measures import TRUE_POSITIVE_RATE
from fairbloom.tasks.models.made import Made
from fairbloom.tasks.split import Split
from tests.simulation.helpers import run
from tests.tables.helpers import csv_of

from .test_recorder import a_round

# A value of each file.
VALUES: dict[File[Any], Any] = {
    CONFIG: RecordedSettings({"seed": 1, "task": "digits", "num-rounds": 3}),
    ENVIRONMENT: {"python": "3.11"},
    SCORES: (ACCURACY, Score("mae", higher_is_better=False, percent=False)),
    DATA: {"images": "0123"},
    EXAMPLES: {"seeds": "draw", "trained": {"é": 30}},
    SCHEMA: 'target = "é"\n',
    SPLIT: Split.of(load_task(Settings.of({"clients": 3}).run_config())),
    MADE: Made({"é": (2.0, -0.5, 1e-300)}, {"": ((1, 8, 8), "float32")}, (1.0, 0.5, 0.25)),
    ENGINE: {"engine": "stacked", "block": 2},
    KNOWN: Known(("a", "b"), ("a", "b", "c")),
    PREPROCESSING: Preprocessing(
        form="table",
        columns=(
            InputColumn("é", "category", ("a", "b,")),
            InputColumn("x", "number", (), 0.1, 1e-300),
        ),
        target="y",
        classes=("no", "ä"),
    ),
    MODULES: {"my_module": "0123"},
    HELD_OUT: {"not in training": {"é": {"auc": None, "accuracy": 62.5}}},
    files.ROWS: {"é": [[1, 1, 0], [11, 2, 5]]},
    PRIVACY: {"simulated": True, "clients": {"é": {"epsilon": 3.0}}},
    GROUPED: Grouped(
        {"sex": ("ä", "b", None)}, (GroupScore("accuracy", percent=True), TRUE_POSITIVE_RATE)
    ),
}

ONE_VALUE = [entry for entry in ENTRIES if isinstance(entry, File)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    return run(folder, num_rounds=3, method="ditto", validation_share=0.2)


OF_GROUPS = {GROUPED.name, GROUPS.name}


def name_of(entry: files.Entry) -> str:
    return entry.name


def test_every_file_of_one_value_has_a_value_here() -> None:
    assert VALUES.keys() == set(ONE_VALUE)


@pytest.mark.parametrize("file", ONE_VALUE, ids=name_of)
def test_what_is_written_is_read(tmp_path: Path, file: File[Any]) -> None:
    assert not file.exists_in(tmp_path)
    file.write(tmp_path, VALUES[file])
    read = file.read(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    if file is SPLIT:
        assert read.clients == VALUES[SPLIT].clients
        np.testing.assert_array_equal(read.row, VALUES[SPLIT].row)
    else:
        assert read == VALUES[file]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (file, content)
        for file, content in product(ONE_VALUE, (b"\xff\xfe\x00", b"{", b"7", b"[1, 2]", None))
        if file is not SCHEMA or content is None
    ],
)
def test_a_file_with_wrong_content_is_refused_with_a_remedy(
    tmp_path: Path, file: Any, content: bytes | None
) -> None:
    path = file.path_in(tmp_path)
    path.mkdir() if content is None else path.write_bytes(content)
    words = rf"^{re.escape(str(path))} cannot be read: [^\n]+{re.escape(file.remedy)}$"
    with pytest.raises(RunFolderError, match=words):
        file.read(tmp_path)


@pytest.mark.parametrize("file", [ENGINE, KNOWN], ids=name_of)
def test_the_remedy_of_deleting_a_file_that_cannot_be_read_works(
    tmp_path: Path, file: File[Any]
) -> None:
    file.path_in(tmp_path).write_bytes(b"\xff")
    with pytest.raises(RunFolderError, match="or delete it"):
        file.read(tmp_path)
    file.path_in(tmp_path).unlink()
    assert file.read(tmp_path) == file.default


def test_a_key_that_is_missing_is_named(tmp_path: Path) -> None:
    KNOWN.path_in(tmp_path).write_text('{"began": []}')
    with pytest.raises(
        RunFolderError, match=r"known\.json cannot be read: it has no 'known'\. Restore it"
    ):
        KNOWN.read(tmp_path)


@pytest.mark.parametrize("file", ONE_VALUE, ids=name_of)
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, file: File[Any]) -> None:
    words = f"^{file.name} cannot be written to {tmp_path / 'gone'}: No such file.*\\(--out\\)"
    with pytest.raises(RunFolderError, match=words):
        file.write(tmp_path / "gone", VALUES[file])


def test_a_run_writes_exactly_its_declared_files(finished: Path) -> None:
    declared = {entry.name for entry in ENTRIES}
    there = {str(path.relative_to(finished)) for path in finished.iterdir()}
    assert there <= declared
    of_others = {"data.json", "examples.json", "schema.toml", "known.json", *OF_GROUPS}
    of_others |= {"modules.json", "metrics.csv", "contexts", "data", "privacy.json"}
    of_others |= {"held-out.json", "rows.json"}
    assert declared - there == of_others | {".lock"}


def test_declaring_a_file_is_enough_for_runs_to_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The declaration here is the only code about this file."""
    sizes = File[dict[str, int]](
        name="sizes.json",
        encode=files._encode_json,
        decode=files._decode_object,
        default={},
        initial=lambda start: {
            name: len(start.task.splits(name).train) for name in start.task.clients
        },
    )
    monkeypatch.setattr(files, "ENTRIES", (*ENTRIES, sizes))
    folder = run(tmp_path / "run", num_rounds=1)
    split = SPLIT.read(folder)
    assert list(sizes.read(folder).values()) == [
        int(((split.client == i) & (split.part == 0)).sum()) for i in range(5)
    ]
    before = sizes.path_in(folder).read_bytes()
    run(folder, num_rounds=2)
    assert sizes.path_in(folder).read_bytes() == before


def test_what_a_file_held_when_the_run_began_is_kept(tmp_path: Path) -> None:
    begun = RunStart(load_task(Settings.of({}).run_config()), {}, {"engine": "loop"}, deployed=True)
    files.write_initial_files(tmp_path, begun)
    files.write_initial_files(tmp_path, replace(begun, engine={"engine": "stacked"}))
    assert ENGINE.read(tmp_path) == {"engine": "loop"}
    assert not SPLIT.exists_in(tmp_path)  # this machine does not know a deployed run's split


def test_who_came_first_is_whom_a_run_began_with(tmp_path: Path) -> None:
    assert record_known(tmp_path, ["b", "a"]) == Known(("a", "b"), ("a", "b"))
    assert (
        record_known(tmp_path, ["c", "a"])
        == KNOWN.read(tmp_path)
        == Known(("a", "b"), ("a", "b", "c"))
    )


def test_a_round_names_the_clients_with_other_rows_than_before(tmp_path: Path) -> None:
    def with_tables(number: int, *, tested: bool = True, **tables: int) -> list[str]:
        reports = {name: {"rows-version": float(table)} for name, table in tables.items()}
        finished = a_round(number)
        parts = {"evaluations": reports, "train_metrics": {}}
        if not tested:
            parts = {"evaluations": {}, "train_metrics": reports}
        return record_rows(tmp_path, replace(finished, **parts))

    assert with_tables(1, a=3, b=1) == []  # nothing was known of them
    assert with_tables(2, a=4, b=1) == ["a"]
    assert with_tables(2, a=3, b=1) == []  # the round is repeated
    assert with_tables(3, tested=False, b=2, c=1) == ["b"]
    assert with_tables(4, a=5, b=1, c=1) == ["a", "b"]
    assert with_tables(5) == []
    assert files.ROWS.read(tmp_path) == {
        "a": [[1, 3, 0], [4, 5, 0]],
        "b": [[1, 1, 0], [3, 2, 0], [4, 1, 0]],
        "c": [[3, 1, 0]],
    }


@pytest.mark.parametrize(
    ("said", "noted"), [(120.0, 120), (-3.0, 0), (1e300, 2**53), (0.0, 0), (None, 0)]
)
def test_the_missing_rows_of_a_table_are_noted(
    tmp_path: Path, said: float | None, noted: int
) -> None:
    report = {"rows-version": 2.0} | ({} if said is None else {"rows-missing": said})
    assert record_rows(tmp_path, replace(a_round(1), evaluations={"a": report})) == []
    again = {"a": {"rows-version": 2.0, "rows-missing": 7.0}}  # of the same table
    assert record_rows(tmp_path, replace(a_round(2), evaluations=again)) == []
    assert files.ROWS.read(tmp_path) == {"a": [[1, 2, noted]]}


def test_until_the_final_model_the_last_checkpoints_is_read(finished: Path, tmp_path: Path) -> None:
    assert read_model(tmp_path) is None
    final = MODEL.read(finished)
    again = {name: array.tobytes() for name, array in (read_model(finished) or {}).items()}
    assert again == {name: array.tobytes() for name, array in final.items()}
    CHECKPOINTS.path_in(finished).rename(CHECKPOINTS.path_in(tmp_path))
    try:
        assert {name: array.tobytes() for name, array in read_model(tmp_path).items()} == again
    finally:
        CHECKPOINTS.path_in(tmp_path).rename(CHECKPOINTS.path_in(finished))
    assert BEST.read_about(finished).keys() == {
        "rows",
        "round",
        "validation_accuracy_of_global_model_mean",
        "blake3",
    }
    assert MODEL.read_about(finished).keys() == {"rows", "blake3"}
    assert MODEL.read_about(finished) != {"blake3": BEST.read_about(finished)["blake3"]}


ROWS = [
    {"round": number, "client": name}
    for number in (1, 2)
    for name in ("a", 'b, "the second"\nof two')
]

# Contents of no finished table, and what the refusal names.
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


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text(format_csv(ClientRows().columns, ROWS))
    assert [
        (row["round"], row["client"])
        for row in read_table(tmp_path / "clients.csv", ClientRows().columns, finished=True)
    ] == [(str(row["round"]), row["client"]) for row in ROWS]


@pytest.mark.parametrize(("content", "fault"), {None: "No such file", **DAMAGED}.items())
def test_a_damaged_or_missing_table_is_refused_with_a_remedy(
    tmp_path: Path, content: bytes | None, fault: str
) -> None:
    path = tmp_path / "clients.csv"
    path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
    words = rf"^{re.escape(str(path))} cannot be read: .*{re.escape(fault)}.*\(--out\)"
    with pytest.raises(RunFolderError, match=words):
        read_table(path, ("client",), finished=True)


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"], include_characters=" '|:"),
    min_size=1,
)


@given(names=st.lists(NAMES, unique=True), reason=st.text(min_size=1))
@example(names=[" | ", "b"], reason="0")
@example(names=["a", "b"], reason="| ends with |")
def test_no_name_of_those_who_were_absent_is_lost(names: list[str], reason: str) -> None:
    """Whatever a client calls itself, or writes as the reason of its error."""
    row = format_round(
        a_round(1, missing=names, offline=names[:1], refused=dict.fromkeys(names, reason)), 0.0
    )
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


@pytest.fixture
def there(here: Path) -> Path:
    """Return the current folder, which has the data of two clients in `data`."""
    Path("data").mkdir()
    for seed, name in enumerate("ab"):
        Path("data", f"{name}.csv").write_text(csv_of(30, seed))
    return here


def run_at(data: str | Path, rounds: int = 1, **more: Any) -> fairbloom.Run:
    given = {"device": "cpu", "progress": False, "out": "run", **more}
    return fairbloom.run("csv", data_dir=data, rounds=rounds, **given)


def test_a_run_continues_with_its_data_at_another_path(there: Path) -> None:
    run_at("data")
    Path("link").symlink_to("data")
    places = enumerate((there / "data", "./data/../data", "link"), start=2)
    assert [run_at(place, rounds).rounds_done for rounds, place in places] == [2, 3, 4]
    Path("data").rename("moved")
    assert run_at("moved", 5).rounds_done == 5
    Path("moved", "a.csv").write_text(csv_of(30, 7))
    with pytest.raises(FairbloomError, match=r"the data have changed .*a\.csv"):
        run_at("moved", 6)


def test_clients_find_their_states_beside_an_inferred_schema(there: Path) -> None:
    settings = {"personal-lambda": 0.5}
    run_at("data", 1, settings=settings)
    continued = run_at("data", 3, settings=settings)
    whole = run_at("data", 3, settings=settings, out="whole")
    found, expected = (each.final(model="personal") for each in (continued, whole))
    assert found == expected
    assert len([path for path in (there / "run" / "clients").iterdir() if path.is_dir()]) == 1


def test_a_default_folder_is_that_of_the_data(there: Path) -> None:
    places = ("data", str(there / "data"), "data/")
    folders = {choose_run_folder(Settings.of({"task": "csv", "data-dir": each})) for each in places}
    assert len(folders) == 1
    assert choose_run_folder(Settings.of({"task": "csv", "data-dir": "other"})) not in folders


def test_an_empty_preprocessing_is_written_again(there: Path) -> None:
    run_at("data")
    file = there / "run" / PREPROCESSING.name
    before = file.read_bytes()
    file.write_bytes(b"")
    run_at("data", 2)
    assert file.read_bytes() == before


def test_a_damaged_preprocessing_is_refused_with_a_remedy(there: Path) -> None:
    done = run_at("data")
    file = there / "run" / PREPROCESSING.name
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(FairbloomError, match=r"preprocessing\.json cannot be read.*Restore it"):
        done.predict(pandas.read_csv("data/a.csv"))


def test_a_config_that_is_cut_off_is_named(there: Path, subtests: pytest.Subtests) -> None:
    run_at("data")
    file = there / "run" / CONFIG.name
    whole = file.read_text()
    for lines in range(3, whole.count("\n"), 7):
        with subtests.test(lines=lines):
            kept = whole.splitlines(keepends=True)[:lines]
            for text in ("".join(kept), "".join(kept)[:-2]):
                file.write_text(text)
                with pytest.raises(FairbloomError, match=r"config\.toml cannot be read: .*cut off"):
                    run_at("data", 2)
    file.write_text(whole)
    assert run_at("data", 2).rounds_done == 2


def test_a_run_folder_is_laid_out_as_its_format_says(tmp_path: Path) -> None:
    assert RUN_FOLDER_FORMAT == 13
    config = {"task": "digits", "clients": 2, "method": "ditto", "num-rounds": 2, "device": "cpu"}
    simulate(Settings.of({**config, "out": str(tmp_path)}))
    with safe_open(tmp_path / "checkpoint" / "2.safetensors", framework="numpy") as file:
        state = json.loads(file.metadata()["about"])["state"]["dict"]
    assert state.keys() == {"strategy", "tables"}
    of_run = encode(RunState()).keys()
    assert state["strategy"]["dict"].keys() == {"method", "server-optimizer", *of_run}
    (folder,) = tmp_path.glob("clients/*")
    kept = Versions(folder)
    for client in ("client-0", "client-1"):
        assert kept.steps(json.dumps([client, "personal"]))[-1] == Point(2)
