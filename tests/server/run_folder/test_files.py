"""The files of a run folder: each is declared once, read as it was written, and refused with a
remedy where damaged."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.protocol.scores import ACCURACY, GroupScore, Score
from fairbloom.server.run_folder import files
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
    KNOWN,
    MODEL,
    MODULES,
    PREPROCESSING,
    SCHEMA,
    SCORES,
    SPLIT,
    File,
    read_model,
    record_known,
)
from fairbloom.server.run_folder.group_rows import Grouped
from fairbloom.server.run_folder.values import Known, RecordedSettings, RunStart
from fairbloom.server.settings import Settings
from fairbloom.tables.preprocessing import InputColumn, Preprocessing
from fairbloom.tasks import load_task
from fairbloom.tasks.measures import TRUE_POSITIVE_RATE
from fairbloom.tasks.split import Split
from tests.simulation.helpers import run

VALUES: dict[File[Any], Any] = {
    CONFIG: RecordedSettings({"seed": 1, "task": "digits", "num-rounds": 3}),
    ENVIRONMENT: {"python": "3.11"},
    SCORES: (ACCURACY, Score("mae", higher_is_better=False, percent=False)),
    DATA: {"images": "0123"},
    EXAMPLES: {"seeds": "draw", "trained": {"é": 30}},
    SCHEMA: 'target = "é"\n',
    SPLIT: Split.of(load_task(Settings.of({"clients": 3}).run_config())),
    ENGINE: {"engine": "workers", "workers": 2},
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
    GROUPED: Grouped(
        {"sex": ("ä", "b", "other")}, (GroupScore("accuracy", percent=True), TRUE_POSITIVE_RATE)
    ),
}
"""A value of each file."""

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


def test_a_file_with_wrong_content_is_refused_with_a_remedy(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for file, content in product(ONE_VALUE, (b"\xff\xfe\x00", b"{", b"7", b"[1, 2]", None)):
        with subtests.test(file=file, content=content):
            if file is SCHEMA and content is not None:
                continue
            path = file.path_in(tmp_path)
            path.mkdir() if content is None else path.write_bytes(content)
            with pytest.raises(RunFolderError) as refusal:
                file.read(tmp_path)
            assert str(refusal.value).startswith(f"{path} cannot be read: ")
            assert str(refusal.value).endswith(file.remedy)
            assert "\n" not in str(refusal.value)
            path.rmdir() if content is None else path.unlink()


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
    with pytest.raises(RunFolderError) as refusal:
        file.write(tmp_path / "gone", VALUES[file])
    assert str(refusal.value).startswith(
        f"{file.name} cannot be written to {tmp_path / 'gone'}: No such file"
    )
    assert "(--out)" in str(refusal.value)


def test_a_run_writes_exactly_its_declared_files(
    finished: Path,
) -> None:
    declared = {entry.name for entry in ENTRIES}
    there = {str(path.relative_to(finished)) for path in finished.iterdir()}
    assert there <= declared
    of_others = {"data.json", "examples.json", "schema.toml", "known.json", *OF_GROUPS}
    of_others |= {"modules.json", "exports", "metrics.csv", "contexts", "data"}
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
    assert split is not None
    assert list(sizes.read(folder).values()) == [
        int(((split.client == i) & (split.part == 0)).sum()) for i in range(5)
    ]
    before = sizes.path_in(folder).read_bytes()
    run(folder, num_rounds=2)
    assert sizes.path_in(folder).read_bytes() == before


def test_what_a_file_held_when_the_run_began_is_kept(tmp_path: Path) -> None:
    begun = RunStart(load_task(Settings.of({}).run_config()), {}, {"engine": "loop"}, deployed=True)
    files.write_initial_files(tmp_path, begun)
    files.write_initial_files(tmp_path, replace(begun, engine={"engine": "workers"}))
    assert ENGINE.read(tmp_path) == {"engine": "loop"}
    assert not SPLIT.exists_in(tmp_path)  # this machine does not know a deployed run's split


def test_who_came_first_is_whom_a_run_began_with(tmp_path: Path) -> None:
    assert record_known(tmp_path, ["b", "a"]) == Known(("a", "b"), ("a", "b"))
    assert (
        record_known(tmp_path, ["c", "a"])
        == KNOWN.read(tmp_path)
        == Known(("a", "b"), ("a", "b", "c"))
    )


def test_until_the_final_model_the_last_checkpoints_is_read(finished: Path, tmp_path: Path) -> None:
    assert read_model(tmp_path) is None
    final = MODEL.read(finished)
    again = {name: array.tobytes() for name, array in (read_model(finished) or {}).items()}
    assert again == {name: array.tobytes() for name, array in final.items()}
    CHECKPOINTS.path_in(finished).rename(CHECKPOINTS.path_in(tmp_path))
    try:
        model = read_model(tmp_path)
        assert model is not None
        assert {name: array.tobytes() for name, array in model.items()} == again
    finally:
        CHECKPOINTS.path_in(tmp_path).rename(CHECKPOINTS.path_in(finished))
    assert BEST.read_about(finished).keys() == {
        "round",
        "validation_accuracy_of_global_model_mean",
        "sha256",
    }
    assert MODEL.read_about(finished).keys() == {"sha256"}
    assert MODEL.read_about(finished) != {"sha256": BEST.read_about(finished)["sha256"]}
