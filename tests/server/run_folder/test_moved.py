"""A run continues with data at another path, and with files that were damaged in between."""

from pathlib import Path
from typing import Any

import pandas
import pytest

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.server.app import choose_run_folder
from fairbloom.server.run_folder.files import CONFIG, PREPROCESSING
from fairbloom.server.settings import Settings
from tests.tasks.tables import csv_of


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which has the data of two clients in `data`."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for seed, name in enumerate("ab"):
        Path("data", f"{name}.csv").write_text(csv_of(30, seed))
    return tmp_path


def run(data: str | Path, rounds: int = 1, **more: Any) -> fairbloom.Run:
    given = {"device": "cpu", "progress": False, "out": "run", **more}
    return fairbloom.run("csv", data_dir=data, rounds=rounds, **given)


def test_a_run_continues_with_its_data_at_another_path(
    there: Path, subtests: pytest.Subtests
) -> None:
    run("data")
    Path("link").symlink_to("data")
    for rounds, place in enumerate((there / "data", "./data/../data", "link"), start=2):
        with subtests.test(place=place):
            assert run(place, rounds).rounds_done == rounds
    Path("data").rename("moved")
    assert run("moved", 5).rounds_done == 5
    Path("moved", "a.csv").write_text(csv_of(30, 7))
    with pytest.raises(FairbloomError, match=r"the data have changed .*a\.csv"):
        run("moved", 6)


def test_clients_find_their_states_beside_an_inferred_schema(there: Path) -> None:
    settings = {"personal-lambda": 0.5}
    run("data", 1, settings=settings)
    continued = run("data", 3, settings=settings)
    whole = run("data", 3, settings=settings, out="whole")
    found, expected = (each.final(model="personal") for each in (continued, whole))
    assert found == expected
    assert len([path for path in (there / "run" / "clients").iterdir() if path.is_dir()]) == 1


def test_a_default_folder_is_that_of_the_data(there: Path) -> None:
    places = ("data", str(there / "data"), "data/")
    folders = {choose_run_folder(Settings.of({"task": "csv", "data-dir": each})) for each in places}
    assert len(folders) == 1
    assert choose_run_folder(Settings.of({"task": "csv", "data-dir": "other"})) not in folders


@pytest.mark.parametrize("rounds", [1, 2], ids=["finished", "continued"])
@pytest.mark.parametrize("folder", ["", "clients/*/"], ids=["run", "clients"])
@pytest.mark.parametrize("kept", [0, 2, 100], ids=["empty", "two bytes", "cut off"])
def test_a_damaged_preprocessing_is_written_again(
    kept: int, folder: str, rounds: int, there: Path
) -> None:
    run("data")
    (file,) = (there / "run").glob(f"{folder}{PREPROCESSING.name}")
    before = file.read_bytes()
    file.write_bytes(before[:kept])
    continued = run("data", rounds)
    assert file.read_bytes() == before
    assert len(continued.predict(pandas.read_csv("data/a.csv"), client="a")) == 30


def test_a_config_that_is_cut_off_is_named(there: Path, subtests: pytest.Subtests) -> None:
    run("data")
    file = there / "run" / CONFIG.name
    whole = file.read_text()
    for lines in range(3, whole.count("\n"), 7):
        with subtests.test(lines=lines):
            kept = whole.splitlines(keepends=True)[:lines]
            for text in ("".join(kept), "".join(kept)[:-2]):
                file.write_text(text)
                with pytest.raises(FairbloomError, match=r"config\.toml cannot be read: .*cut off"):
                    run("data", 2)
    file.write_text(whole)
    assert run("data", 2).rounds_done == 2
