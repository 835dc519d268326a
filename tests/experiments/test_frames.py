"""Data frames in place of files: kept, read and refused as files are."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.experiments.frames import Frames
from tests.simulation.helpers import Outcome

SMALL: dict[str, Any] = {"rounds": 2, "device": "cpu", "progress": False}


def sites() -> dict[str, pandas.DataFrame]:
    """Return the tables of three sites, with columns of several types and a missing value."""
    random = np.random.default_rng(0)
    found = {}
    for site, rows in (("Genève", 60), ("Sion", 40), ("Davos", 30)):
        age = random.normal(60, 10, rows).round()
        table = pandas.DataFrame({"age": age, "ward": random.choice(["a", "b"], rows)})
        table["ward"] = table["ward"].astype("category")
        table["stay"] = pandas.array(random.integers(1, 9, rows), "Int64")
        table["readmitted"] = np.where(age + random.normal(0, 5, rows) > 60, "yes", "no")
        found[site] = table
    found["Sion"].loc[3, "stay"] = pandas.NA
    return found


def test_a_run_on_frames_is_that_on_their_files(tmp_path: Path) -> None:
    settings = {"csv.missing": "fill"}
    own = fairbloom.run(
        data=sites(), target="readmitted", settings=settings, out=tmp_path / "a", **SMALL
    )
    assert {path.name for path in (tmp_path / "a" / "data").iterdir()} == {
        "Genève.parquet",
        "Sion.parquet",
        "Davos.parquet",
    }
    files = fairbloom.run(
        "csv",
        data_dir=tmp_path / "a" / "data",
        settings={**settings, "csv.target": "readmitted"},
        out=tmp_path / "b",
        **SMALL,
    )
    assert not Outcome.of(own.folder).differences(Outcome.of(files.folder))


def test_only_the_same_frames_continue_a_run(tmp_path: Path, subtests: pytest.Subtests) -> None:
    about = {"target": "readmitted", "settings": {"csv.missing": "fill"}, "out": tmp_path / "a"}
    fairbloom.run(data=sites(), **about, **SMALL)
    longer = fairbloom.run(data=sites(), **about, **(SMALL | {"rounds": 3}))
    assert longer.rounds_done == 3
    changed = sites()
    changed["Davos"].loc[0, "age"] = 7.0
    fewer = sites()
    del fewer["Sion"]
    for data, name in ((changed, "Davos"), (fewer, "Sion")):
        with subtests.test(name=name):
            with pytest.raises(
                FairbloomError, match=rf"has other data.*\({name}.parquet differ\).*folder \(out\)"
            ):
                fairbloom.run(data=data, **about, **SMALL)


@pytest.mark.slow
def test_a_comparison_takes_frames_and_continues(tmp_path: Path) -> None:
    about = {"target": "readmitted", "settings": {"csv.missing": "fill"}, "out": tmp_path}
    for seeds in (1, 2):
        found = fairbloom.compare(
            data=sites(), methods="fedavg,fedfv", seeds=seeds, jobs=1, **about, **SMALL
        )
        assert len(found.seeds) == seeds
    assert {*found.clients["client"]} == {"Genève", "Sion", "Davos"}


def test_tables_of_check_data_describe_frames(tmp_path: Path) -> None:
    described = fairbloom.check_data(sites(), target="readmitted")
    assert list(described["clients"]["client"]) == ["Davos", "Genève", "Sion"]
    assert {*described["columns"]["column"]} == {"age", "ward", "stay", "readmitted"}
    for name, table in sites().items():
        table.to_parquet(tmp_path / f"{name}.parquet", index=False)
    assert fairbloom.check_data(tmp_path, target="readmitted")["columns"].equals(
        described["columns"]
    )


@pytest.mark.parametrize(
    ("data", "more", "said"),
    [
        ({"a/b": pandas.DataFrame({"x": [1]})}, {}, "client's name must be that of a file"),
        (
            {"a": pandas.DataFrame({"x": [1, "b", (2,)]})},
            {},
            r"data\['a'\] is not a data frame with",
        ),
        ({"a": [1, 2]}, {}, r"data\['a'\] is not a data frame"),
        (sites()["Sion"], {}, "give a data frame for each client by name .from one frame"),
        ("sites", {}, "or name a folder of files by data_dir"),
        (sites(), {"out": None}, r"name the folder that keeps them and the run \(out\)"),
        (sites(), {"data_dir": "files"}, "the data are frames: leave it out"),
        (sites(), {"target": ""}, r'add settings=.*"csv.target": "readmitted"'),
    ],
)
def test_what_is_no_data_is_refused(
    data: Frames, more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    about = {"out": tmp_path / "run", "target": "readmitted", **SMALL, **more}
    with pytest.raises(FairbloomError, match=said):
        fairbloom.run(data=data, **about)


def test_check_data_refuses_a_single_frame() -> None:
    with pytest.raises(FairbloomError, match="give a data frame for each client by name"):
        fairbloom.check_data(sites()["Sion"], target="readmitted")
