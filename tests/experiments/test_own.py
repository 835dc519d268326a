"""A user's own task and method, imported from the working directory, next to ours.

Data frames in place of files: kept, read and refused as files are.
"""

import inspect
import re
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas
import pytest

import fairbloom as api
from fairbloom.errors import FairbloomError
from fairbloom.experiments.frames import Frames
from fairbloom.experiments.options import StudyOptions
from fairbloom.server.fairness import summarize
from fairbloom.server.settings import Settings
from fairbloom.tasks import infer_schema
from tests.simulation.helpers import Outcome, table

from .helpers import as_json, captured, fairbloom, refusal

OWN = Path(__file__).parent / "own"
METHODS = "fedavg,my_method:WorstHalf(share=0.4),my_method:WorstHalf,qfedavg(q=1)"
WORDS = (
    "compare",
    "--task",
    "my_task:prices",
    "--methods",
    METHODS,
    "--rounds",
    2,
    "--fraction",
    1,
)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's directory, with a comparison over two seeds by two processes."""
    here = tmp_path_factory.mktemp("user")
    for file in OWN.glob("*.py"):
        shutil.copy(file, here)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        words = (
            *WORDS,
            "--seeds",
            2,
            "--jobs",
            2,
            "--set",
            "prices.noise=0.2",
            "--set",
            "device=cpu",
            "--out",
            "cmp",
        )
        assert fairbloom(*words) == 0
    return here


@pytest.fixture(autouse=True)
def there(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.slow
def test_own_method_and_task_are_compared_by_two_processes(here: Path) -> None:
    rows = table(here / "cmp" / "comparison.csv")
    labels = ["FedAvg", "WorstHalf (share=0.4)", "WorstHalf", "QFedAvg (q=1)"]
    assert [(row["method"], row["seed"]) for row in rows] == [
        (label, str(seed)) for label in labels for seed in range(2)
    ]
    assert {row["score"] for row in rows} == {"mean absolute error, lower is better"}
    assert all(
        (here / "cmp" / "runs" / f"my_method-WorstHalf-share=0.4-seed{seed}").is_dir()
        for seed in range(2)
    )
    assert (
        'prices.noise" = 0.2'
        in (here / "cmp" / "runs" / "qfedavg-q=1-seed1" / "config.toml").read_text()
    )
    by_method = {
        label: [float(row["mean"]) for row in rows if row["method"] == label] for label in labels
    }
    assert by_method["WorstHalf"] != by_method["FedAvg"]


RUN = "cmp/runs/my_method-WorstHalf-seed0"


def test_measures_are_of_the_first_score(here: Path) -> None:
    row = next(row for row in table(here / "cmp" / "comparison.csv") if row["method"] == "FedAvg")
    clients = [
        r
        for r in table(here / "cmp" / "clients.csv")
        if (r["method"], r["seed"]) == ("FedAvg", "0")
    ]
    values = {client["client"]: float(client["mae"]) for client in clients}
    assert {key: float(row[key]) for key in summarize(values)} == summarize(
        values, lower_is_better=True
    )
    assert float(row["worst"]) == max(values.values())
    assert all(client["r2"] for client in clients)


@pytest.mark.parametrize(("score", "sign"), {"": 1, "mae": 1, "r2": -1}.items())
def test_a_run_shows_all_scores_and_says_which_way_is_better(
    capsys: pytest.CaptureFixture[str], score: str, sign: int
) -> None:
    printed = captured(capsys, "show", RUN, *(["--score", score] if score else ())).out
    assert printed.startswith("WorstHalf (share=0.5) on my_task:prices\n")
    assert "mean absolute error, lower is better" in printed
    assert "\nR² " in printed
    final = api.load(RUN, score=score).final()
    worst = max(final, key=lambda town: sign * final[town])
    assert re.search(rf"first: .+\nclient .+\n─+\n{worst} ", printed)


@pytest.mark.parametrize(
    ("score", "sign", "words"),
    [
        ("", 1, "mean absolute error, lower is better"),
        ("mae", 1, "mean absolute error, lower is better"),
        ("r2", -1, "R²"),
    ],
)
def test_a_comparison_gains_where_an_error_falls(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests, score: str, sign: int, words: str
) -> None:
    comparison = api.load("cmp", score=score)
    for method in comparison.methods[1:]:
        with subtests.test(method=method):
            worst = {m: comparison.estimate(m, "worst_10").value for m in (method, "FedAvg")}
            assert fmean(comparison.gains(method, "worst_10")) == pytest.approx(
                sign * (worst["FedAvg"] - worst[method])
            )
    printed = captured(capsys, "show", "cmp", *(["--score", score] if score else ())).out
    assert f"Final models over clients: test {words}\n" in printed
    assert ("(lower is better)" in printed) == (sign == 1)


def test_a_client_without_a_score_is_named_and_left_out(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "compare",
        "--task",
        "my_task:unmeasured",
        "--methods",
        "fedavg,fedfv",
        "--seeds",
        1,
        "--rounds",
        1,
    )
    printed = captured(capsys, *words, "--jobs", 1, "--out", "some").out
    lacking = "some method has no test mean absolute error of them: town-1 (1 of 1 seeds)."
    assert lacking in " ".join(printed.split())
    rows = table(here / "some" / "clients.csv")
    assert len(rows) == 10
    assert {row["client"] for row in rows if not row["mae"]} == {"town-1"}
    printed = " ".join(captured(capsys, "show", "some/runs/fedavg-seed0").out.split())
    assert (
        "mean absolute error is the mean of 4 of 5 clients; without a test mean absolute error ("
        in printed
    )
    assert "mean absolute error, lower is better 4 of 5 " in printed


def test_own_method_and_task_are_described_with_their_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = captured(capsys, "methods", "my_method:WorstHalf").out
    assert (
        "worsthalf.share (float in (0, 1], default 0.5) Share of the clients that count." in printed
    )
    (described,) = as_json(capsys, "methods", "my_method:WorstHalf")
    assert described["parameters"][0]["key"] == "worsthalf.share"
    printed = captured(capsys, "tasks", "my_task:prices").out
    assert "Prices of houses in five towns." in printed
    assert (
        "prices.noise (float at least 0, default 0.1) How much the price of a house varies."
        in printed
    )


def test_a_parameter_of_a_method_of_ones_own_may_be_set_for_all(here: Path) -> None:
    words = (
        "compare",
        "--methods",
        "fedavg,my_method:WorstHalf",
        "--set",
        "worsthalf.share=1.0",
        "--seeds",
        1,
    )
    assert fairbloom(*words, "--clients", 4, "--rounds", 1, "--jobs", 1, "--out", "shared") == 0
    settings = (here / "shared" / "runs" / "my_method-WorstHalf-seed0" / "config.toml").read_text()
    assert '"worsthalf.share" = 1.0' in settings


def test_a_module_that_raises_keeps_its_traceback(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "broken.py").write_text("limit = int('a bug')\n")
    with pytest.raises(ValueError, match="a bug") as raised:
        fairbloom("compare", "--methods", "fedavg,broken:Mine", "--out", "never")
    assert not isinstance(raised.value, FairbloomError)
    line = refusal(capsys, "run", "--method", "not_there:Mine", "--out", "never")
    assert "method = 'not_there:Mine': there is no module not_there" in line
    assert not (here / "never").exists()


SMALL: dict[str, Any] = {"rounds": 2, "device": "cpu", "progress": False}
FILLED: dict[str, Any] = {"target": "readmitted", "settings": {"csv.missing": "fill"}, **SMALL}


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
    own = api.run(data=sites(), target="readmitted", settings=settings, out=tmp_path / "a", **SMALL)
    assert {path.name for path in (tmp_path / "a" / "data").iterdir()} == {
        "Genève.parquet",
        "Sion.parquet",
        "Davos.parquet",
    }
    files = api.run(
        "csv",
        data_dir=tmp_path / "a" / "data",
        settings={**settings, "csv.target": "readmitted"},
        out=tmp_path / "b",
        **SMALL,
    )
    assert not Outcome.of(own.folder).differences(Outcome.of(files.folder))


def test_only_the_same_frames_continue_a_run(tmp_path: Path, subtests: pytest.Subtests) -> None:
    api.run(data=sites(), out=tmp_path, **FILLED)
    assert api.run(data=sites(), out=tmp_path, **{**FILLED, "rounds": 3}).rounds_done == 3
    changed = sites()
    changed["Davos"].loc[0, "age"] = 7.0
    fewer = sites()
    del fewer["Sion"]
    for data, name in ((changed, "Davos"), (fewer, "Sion")):
        with subtests.test(name=name):
            with pytest.raises(
                FairbloomError,
                match=rf"has other data.*\({name}.parquet differ\).*folder \(--out\)",
            ):
                api.run(data=data, out=tmp_path, **FILLED)


@pytest.mark.slow
def test_a_comparison_takes_frames_and_continues(tmp_path: Path) -> None:
    for seeds in (1, 2):
        found = api.compare(
            data=sites(), methods="fedavg,fedfv", seeds=seeds, jobs=1, out=tmp_path, **FILLED
        )
        assert len(found.seeds) == seeds
    assert {*found.clients["client"]} == {"Genève", "Sion", "Davos"}


@pytest.mark.slow
def test_a_search_takes_frames(tmp_path: Path) -> None:
    found = api.search(
        data=sites(),
        methods="fedfv",
        grid={"alpha": [0.0, 0.2]},
        seeds=2,
        out=tmp_path,
        jobs=1,
        **FILLED,
    )
    assert {each.name for each in (found.folder / "data").iterdir()} == {
        f"{name}.parquet" for name in sites()
    }


def test_tables_of_check_data_describe_frames(tmp_path: Path) -> None:
    described = api.check_data(sites(), target="readmitted")
    assert list(described["clients"]["client"]) == ["Davos", "Genève", "Sion"]
    assert {*described["columns"]["column"]} == {"age", "ward", "stay", "readmitted"}
    for name, frame in sites().items():
        frame.to_parquet(tmp_path / f"{name}.parquet", index=False)
    schema = tmp_path.parent / "schema.toml"
    settings = {"task": "csv", "data-dir": str(tmp_path), "csv.target": "readmitted"}
    schema.write_text(infer_schema(Settings.of(settings)))
    for again in (
        api.check_data(tmp_path, target="readmitted"),
        api.check_data(data_dir=tmp_path, settings={"csv.target": "readmitted"}),
        api.check_data(data_dir=str(tmp_path), schema=schema),
    ):
        assert again["columns"].equals(described["columns"])


def test_check_data_reads_other_tasks_and_no_single_frame() -> None:
    assert len(api.check_data(task="digits", clients=3, partition="iid", seed=1)["clients"]) == 3
    with pytest.raises(FairbloomError, match="clients has no effect"):
        api.check_data(sites(), target="readmitted", clients=2)
    with pytest.raises(FairbloomError, match="give a data frame for each client by name"):
        api.check_data(sites()["Sion"], target="readmitted")


def test_functions_that_read_data_take_the_same_words() -> None:
    words = {"task", "data", "target", "seed", "settings", *StudyOptions.__annotations__}
    for function in (api.run, api.compare, api.search, api.check_data):
        assert words <= {*inspect.signature(function).parameters}, function


@pytest.mark.parametrize(
    ("data", "more", "said"),
    [
        ({"a/b": pandas.DataFrame({"x": [1]})}, {}, "client's name must be that of a file"),
        (
            {"a": pandas.DataFrame({"n": [1], "x": [pandas.DataFrame()]})},
            {},
            r"data\['a'\], column 'x': .* of DataFrame .*make texts of them by \.astype\(str\)",
        ),
        ({"a": pandas.DataFrame([[1, 2]], columns=["x", "x"])}, {}, "has two columns 'x': rename"),
        *(
            (
                {"a": sites()["Sion"].assign(odd=values)},
                {},
                r"data\['a'\], column 'odd': .*make texts of them by \.astype\(str\)",
            )
            for values in (
                [1, "b"] * 20,
                1j,
                pandas.Categorical([1j, 2j] * 20),
                pandas.arrays.SparseArray([0, 1] * 20),
                pandas.period_range("2024-01", periods=40, freq="M"),
                pandas.arrays.IntervalArray.from_breaks(range(41)),
                pandas.cut(range(40), 4),
            )
        ),
        *(
            (
                {"a": frame},
                {},
                rf"data\['a'\] has {index} as its index.*by reset_index\(\), or drop it by"
                r" reset_index\(drop=True\)",
            )
            for frame, index in (
                (sites()["Sion"].rename_axis("case"), "case"),
                (sites()["Sion"].set_index(["ward", "stay"]), "ward, stay"),
                (sites()["Sion"].groupby(["ward", "age"])[["readmitted"]].max(), "ward, age"),
                (sites()["Sion"].set_index("age"), "age"),
            )
        ),
        ({"a": [1, 2]}, {}, r"data\['a'\] is a list, not a data frame"),
        (sites()["Sion"], {}, "give a data frame for each client by name .from one frame"),
        ("sites", {}, "or name a folder of files by data_dir"),
        (sites(), {"out": None}, r"name the folder that keeps them and the run \(out\)"),
        (sites(), {"data_dir": "files"}, "the data are frames: leave it out"),
        (sites(), {"target": ""}, r"add --set csv.target=readmitted"),
    ],
)
def test_what_is_no_data_is_refused(
    data: Frames, more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(FairbloomError, match=said):
        api.run(data=data, **{"out": tmp_path / "run", "target": "readmitted", **SMALL, **more})
