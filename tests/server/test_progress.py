"""How far a run is, as its folder shows the server's status."""

import shutil
from pathlib import Path

import pytest

from fairbloom.protocol.names import ORDER_FOLDER
from fairbloom.server.progress import announce, describe_progress, find_announced
from fairbloom.server.run_folder.csv_rows import parse_refusals
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate

HEADER = "round,participants,replies_used,refused,missing,seconds\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three rounds."""
    out = tmp_path_factory.mktemp("run") / "run"
    return simulate(
        Settings.of(
            {"clients": 2, "num-rounds": 3, "device": "cpu", "method": "fedfv", "out": str(out)}
        )
    )


def test_a_finished_run_tells_its_rounds(run: Path) -> None:
    found = describe_progress(run)
    assert (found["task"], found["method"], found["state"]) == ("digits", "fedfv", "finished")
    assert (found["round"], found["of-rounds"]) == (3, 3)
    assert found["seconds-a-round"] > 0
    assert found["seconds-since-round"] >= 0
    assert (found["refused"], found["missing"]) == ([], "")


def test_a_run_that_ends_during_the_look_is_not_interrupted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    model = (folder / "model.safetensors").rename(tmp_path / "model.safetensors")

    def is_held(path: Path) -> bool:  # it has just written its model and given the folder back
        model.rename(folder / "model.safetensors")
        return False

    monkeypatch.setattr("fairbloom.server.run_folder.files.is_held", is_held)
    assert describe_progress(folder)["state"] == "finished"


def test_an_unfinished_run_lists_the_latest_refusals_first(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes((run / "config.toml").read_bytes())
    rows = [
        "1,2,1,old: too large,,2.0\n",
        "2,2,1,'a b': error 2: it said / no | other: not finite,,4.0\n",
        "3,2,2,,,3.0\n",
        "4,2,1,,site-c,5.0\n",
        "5,2,2,,si",  # is being written
    ]
    (tmp_path / "rounds.csv").write_text(HEADER + "".join(rows))
    found = describe_progress(tmp_path)
    assert (found["round"], found["state"], found["seconds-a-round"]) == (4, "interrupted", 3.5)
    assert found["missing"] == "site-c"
    assert found["refused"] == [
        {"round": 2, "client": "a b", "reason": "error 2: it said / no"},
        {"round": 2, "client": "other", "reason": "not finite"},
        {"round": 1, "client": "old", "reason": "too large"},
    ]


def test_a_run_that_has_no_round_yet_is_at_none(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes((run / "config.toml").read_bytes())
    found = describe_progress(tmp_path)
    assert (found["round"], found["seconds-a-round"], found["seconds-since-round"]) == (
        0,
        None,
        None,
    )


def test_a_folder_that_holds_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="none holds no run yet: it waits for its clients"):
        describe_progress(tmp_path / "none")


@pytest.mark.parametrize(
    ("cell", "found"), [("", []), ("no colon", []), ("a: b: c", [("a", "b: c")])]
)
def test_a_cell_of_refusals_is_read_as_it_is_written(
    cell: str, found: list[tuple[str, str]]
) -> None:
    assert parse_refusals(cell) == found


def test_a_run_goes_on_where_its_word_cannot_be_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ORDER_FOLDER, str(tmp_path / "gone"))
    announce(tmp_path / "run")
    assert (
        f"will not show the rounds of this run: {tmp_path / 'gone'} cannot be written"
        in caplog.text
    )


def test_a_run_announces_its_folder_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(tmp_path / "unasked")
    monkeypatch.setenv(ORDER_FOLDER, str(tmp_path))
    assert find_announced(tmp_path) is None
    announce(tmp_path / "run é")
    assert find_announced(tmp_path) == tmp_path / "run é"
