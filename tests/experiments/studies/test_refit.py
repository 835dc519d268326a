"""A refit: a compared method trained once more, on all rows, and runs without test examples."""

import re
import shlex
from dataclasses import replace
from html import unescape
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.experiments.api import compare, load, refit, run, search
from fairbloom.experiments.render.html import render
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.results.differences import Difference
from fairbloom.experiments.results.joining import Joined
from fairbloom.experiments.results.presentation import page_of
from fairbloom.experiments.studies.compare import settings_of_refit
from fairbloom.experiments.study import STUDY
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.files import BEST, MODEL
from fairbloom.tasks import TASKS, Examples, Setup, Splits, Task
from tests.client.private.device import SCHEMA, write_table
from tests.prediction.hospitals import write_hospital, write_hospitals
from tests.simulation.helpers import assert_same_model, table
from tests.tasks.mine import line

from ..helpers import captured, fairbloom as command

SMALL: dict[str, Any] = {"clients": 5, "rounds": 4, "jobs": 2, "progress": False}
STOPPING: dict[str, Value] = {
    "validation-share": 0.2,
    "early-stopping": 2,
    "held-out-clients": 0.2,
    "fraction": 1.0,
    "scores": "brier",
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of three methods, of which no run ends before its last round."""
    out = tmp_path_factory.mktemp("compared") / "cmp"
    options = {**SMALL, "fraction": 0.5}
    compare(methods="fedavg,qfedavg(q=1),ditto", seeds=3, seed=7, out=out, **options)
    return out


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds whose runs may end early, with a client that is not in training."""
    out = tmp_path_factory.mktemp("stopped") / "cmp"
    compare(methods="fedavg", out=out, settings=STOPPING, **{**SMALL, "rounds": 12, "clients": 6})
    return out


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of hospitals, each of which standardises by its own rows."""
    folder = tmp_path_factory.mktemp("hospitals")
    data = write_hospitals(folder / "data")
    options = {"jobs": 2, "rounds": 3, "progress": False}
    compare(data_dir=data, target="target", methods="fedavg,ditto", task="csv", seeds=1,
            out=folder / "cmp", **options)  # fmt: skip
    return folder


# What is trained ----------------------------------------------------------------------------------


def test_a_refit_has_all_rows_and_the_first_seed(compared: Path) -> None:
    done = refit(compared, method="qfedavg")
    assert done.folder == compared / "refit-qfedavg-q=1"
    settings = {**load(compared / "runs" / "qfedavg-q=1-seed7").settings, "test-share": 0.0}
    settings |= {"out": str(done.folder)}
    assert done.settings == settings
    assert {*done.split().part.tolist()} == {0}


@pytest.mark.parametrize("method", ["fedavg", "QFedAvg (q=1)", "qfedavg(q=1)", "ditto"])
def test_with_the_share_of_the_study_it_is_its_run(
    compared: Path, tmp_path: Path, method: str
) -> None:
    done = refit(compared, method=method, test_share=0.2, out=tmp_path)
    label = done.label.lower().replace(" (", "-").removesuffix(")")
    assert_same_model(done.folder, compared / "runs" / f"{label}-seed7")
    assert table(done.folder / "clients.csv") == table(
        compared / "runs" / f"{label}-seed7" / "clients.csv"
    )


def test_with_the_share_of_the_study_it_is_the_best_model(stopped: Path, tmp_path: Path) -> None:
    """A run's best model by validation examples is that of as many rounds."""
    first = stopped / "runs" / "fedavg-seed0"
    changed = {"out": str(tmp_path), "num-rounds": int(BEST.read_about(first)["round"])}
    run(settings={**settings_of_refit(stopped, "fedavg", 0.2), **changed}, progress=False)
    np.testing.assert_equal(MODEL.read(tmp_path), BEST.read(first))


def test_rounds_are_the_median_of_those_of_the_runs(
    stopped: Path, compared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends = [
        int(BEST.read_about(stopped / "runs" / f"fedavg-seed{seed}")["round"]) for seed in range(3)
    ]
    assert len({*ends}) > 1
    config = settings_of_refit(stopped, "fedavg")
    assert config["num-rounds"] == sorted(ends)[1]
    of = rf"num-rounds = {sorted(ends)[1]}, the median of.* examples: {', '.join(map(str, ends))}\s*$"
    assert re.search(of, caplog.text)
    assert "early-stopping" not in config
    assert settings_of_refit(compared, "fedavg", 0.2)["num-rounds"] == 4


def test_of_runs_that_end_early_the_last_rounds_count(tmp_path: Path) -> None:
    """Without validation examples no best model counts: it was chosen by the test examples.

    Of four runs the higher of the two in the middle counts."""
    for seed, last in enumerate((2, 5, 3, 4)):

        def stop(recorded: fairbloom.RecordedRound, last: int = last) -> None:
            if recorded.number == last:
                raise fairbloom.StopRun("enough")

        run(clients=5, rounds=9, seed=seed, out=tmp_path / f"r{seed}", on_round=stop)
    compare(runs=[tmp_path / f"r{seed}" for seed in range(4)], out=tmp_path / "cmp")
    assert settings_of_refit(tmp_path / "cmp", "fedavg")["num-rounds"] == 4


@pytest.mark.parametrize(
    ("methods", "settings"),
    [("fedavg", {"schedule": "cosine"}), ("fedavgn(decay=0.5)", {}), ("fedavg", {})],
)
def test_rounds_over_which_steps_decay_are_kept(
    tmp_path: Path, methods: str, settings: dict[str, Value], monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(methods=methods, seeds=1, out=tmp_path, settings=settings, **SMALL)
    monkeypatch.setattr("fairbloom.experiments.studies.compare._round_of_model", lambda run: 2)
    is_paced = bool(settings) or methods != "fedavg"
    assert settings_of_refit(tmp_path, methods)["num-rounds"] == (4 if is_paced else 2)


def test_held_out_clients_stay_out_and_are_named(
    stopped: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = refit(stopped, method="fedavg", out=tmp_path)
    (held_out,) = load(stopped / "runs" / "fedavg-seed0").held_out()
    assert f"held out, as in the comparison: {held_out}" in caplog.text
    trained = {row["client"] for row in table(done.folder / "coefficients.csv")}
    assert (len(trained), held_out in trained) == (5, False)
    assert not (done.folder / "held-out.json").exists()


def test_the_methods_of_a_search_are_trained_too(tmp_path: Path) -> None:
    search(methods="fedavg", grid=["learning-rate=0.1,0.5"], seeds=1, out=tmp_path, **SMALL)
    done = refit(tmp_path, method="fedavg(learning-rate=0.5)")
    assert (done.finished, done.settings["validation-share"]) == (True, 0.0)
    assert done.settings["learning-rate"] == 0.5


def test_test_examples_of_the_data_set_itself_stay_out(
    compared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert settings_of_refit(compared, "fedavg")["test-share"] == 0.0
    monkeypatch.setitem(vars(TASKS["digits"]), "held_out", 0.3)
    assert "test-share" not in settings_of_refit(compared, "fedavg")
    assert "task digits has test examples of its own, which stay out" in caplog.text


def test_pooled_data_are_trained_on_as_one(tmp_path: Path) -> None:
    compare(methods="fedavg", seeds=1, out=tmp_path, settings={"pooled": True}, **SMALL)
    assert_same_model(
        refit(tmp_path, method="fedavg", test_share=0.2).folder, tmp_path / "runs" / "fedavg-seed0"
    )


# Refusals -----------------------------------------------------------------------------------------


def test_the_same_command_continues_and_another_is_refused(compared: Path, tmp_path: Path) -> None:
    done = refit(compared, method="fedavg", out=tmp_path)
    before = MODEL.path_in(tmp_path).stat().st_mtime_ns
    assert refit(compared, method="fedavg", out=tmp_path).folder == done.folder
    assert MODEL.path_in(tmp_path).stat().st_mtime_ns == before
    with pytest.raises(FairbloomError, match=r"test-share = 0\.0 there and 0\.3 here.*\(--out\)"):
        refit(compared, method="fedavg", test_share=0.3, out=tmp_path)
    assert refit(compared, method="fedavg", test_share=0.3, out=tmp_path / "b").final()


@pytest.mark.parametrize(
    ("place", "method", "words"),
    [
        ("", "scaffold", r"method = 'scaffold' .*: there are FedAvg, QFedAvg \(q=1\), Ditto"),
        ("", "fed", r"method = 'fed' .*: there are FedAvg, QFedAvg \(q=1\), Ditto"),
        ("runs/fedavg-seed7", "fedavg", "holds no study: name the folder of a comparison"),
        ("unfinished", "fedavg", "FedAvg has no finished run in .*: the same command"),
    ],
)
def test_what_was_not_compared_is_refused(
    compared: Path, place: str, method: str, words: str
) -> None:
    (compared / "unfinished").mkdir(exist_ok=True)
    copy(compared / STUDY, compared / "unfinished")
    with pytest.raises(FairbloomError, match=words):
        refit(compared / place, method=method)


def test_after_privacy_accounts_the_compared_run_is_the_model(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for seed in range(3):
        write_table(tmp_path / "data" / f"site-{seed}.csv", seed=seed)
    private: dict[str, Value] = {"privacy.mode": "simulated", "privacy.epsilon": "3"}
    private |= {"batch-size": 0, "fraction": 1.0, "task": "csv", "schema": SCHEMA}
    private["data-dir"] = str(tmp_path / "data")
    small = {key: value for key, value in SMALL.items() if key != "clients"}
    compare(methods="fedavg", seeds=1, out=tmp_path / "all", settings=private, **small)
    for share in (0.0, 0.2):
        with pytest.raises(FairbloomError, match="fixed the split of their rows") as error:
            refit(tmp_path / "all", method="fedavg", test_share=share)
    assert load(str(error.value).rpartition(", ")[2]).model() is not None
    with pytest.raises(FairbloomError, match="test-share = 0: a privacy account has fixed"):
        run(settings={**private, "test-share": 0.0}, out=tmp_path / "run")
    assert "fairbloom refit" not in render(page_of(load(tmp_path / "all")))


# Used ---------------------------------------------------------------------------------------------


def test_predict_names_the_command(
    hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Following the words leads to a model, and those of one client need its name."""
    new = write_hospital(tmp_path / "h0.csv", 30, 99)
    out = tmp_path / "predicted.csv"
    said = captured(capsys, "predict", hospitals / "cmp", new, "--out", out, code=2).err
    named = "on all rows by fairbloom (refit .+ --method METHOD)"
    (found,) = re.findall(named, " ".join(said.split()))
    place = tmp_path / "refit"
    assert command(*shlex.split(found.replace("METHOD", "ditto")), "--out", place) == 0
    assert "name a client by --client with one of h0, h1, h2" in captured(
        capsys, "predict", place, new, "--out", out, code=2
    ).err.replace("\n", " ")
    own = ("--client", "h0", "--model", "personal")
    assert command("predict", place, new, *own, "--out", out) == 0
    assert out.stat().st_size


def test_the_report_of_a_comparison_names_the_command(
    compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names folder and method, and can be pasted."""
    comparison = load(compared)
    assert isinstance(comparison, Comparison)
    better = (*comparison.verdict.improving, "FedAvg")[0].removesuffix(" (personal)")
    named = f"fairbloom refit {compared} --method {better}"
    assert render(page_of(comparison)).count(named) == 1
    shown = "".join(captured(capsys, "show", compared).out.split())
    assert named.replace(" ", "") in shown
    on_devices = replace(comparison, deployed=True)
    named = f"fairbloom deploy submit --refit {compared} --method {better}"
    assert named in render(page_of(on_devices))


def test_the_next_step_is_the_better_methods(compared: Path) -> None:
    comparison = load(compared)
    assert isinstance(comparison, Comparison)
    for better, arm in (("QFedAvg (q=1)", "'QFedAvg (q=1)'"), ("Ditto (personal)", "Ditto")):
        found = replace(comparison)
        found.__dict__["verdict"] = replace(comparison.verdict, improving=(better, "FedAvg"))
        assert f"refit {compared} --method {arm}" in unescape(render(page_of(found)))


@pytest.mark.parametrize(
    ("gains", "said"), [((-3.0, -1.0), "Train alone (Local)"), ((-3.0, 1.0), "fairbloom refit")]
)
def test_who_loses_by_joining_trains_alone(
    compared: Path, gains: tuple[float, float], said: str
) -> None:
    comparison = load(compared)
    assert isinstance(comparison, Comparison)
    low, high = gains
    mean = Difference(
        mean=-2.0, error=1.0, low=low, high=high, better=0, worse=5, seeds=5, p_value=0.04
    )
    comparison.__dict__["joining"] = [Joined("FedAvg", "Local", mean, {}, {})]
    page = render(page_of(comparison))
    assert said in page
    assert ("Train alone" in page) == (high < 0.0)


# Without test examples ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def untested(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    out = tmp_path_factory.mktemp("untested")
    return run(clients=5, rounds=3, settings={"test-share": 0}, out=out / "a", progress=False)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_every_engine_trains_on_all_rows(tmp_path: Path, engine: str) -> None:
    done = run(
        clients=5, rounds=3, engine=engine, settings={"test-share": 0}, out=tmp_path, progress=False
    )
    assert np.bincount(done.split().part).tolist() == [1797]
    assert table(tmp_path / "clients.csv") == []
    assert all(np.isfinite(array).all() for array in done.arrays().values())


def test_every_page_says_that_there_are_no_test_rows(
    untested: fairbloom.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "FedAvg has no test rows: trained on all rows."
    page = render(page_of(untested))
    assert said in page
    assert "nan" not in re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL).lower()
    assert said in captured(capsys, "show", untested.folder).out
    assert repr(untested) == f"Run(FedAvg on digits: {said})"
    assert "no test rows: trained on all rows" in captured(
        capsys, "run", "--clients", 5, "--rounds", 3, "--set", "test-share=0", "--out",
        untested.folder,
    ).out  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("validation-share", 0.2),
        ("early-stopping", 3),
        ("best-model", "worst-10"),
        ("scores", "brier"),
        ("score", "loss"),
        ("evaluate-every", 2),
        ("fraction-evaluate", 0.5),
    ],
)
def test_settings_of_measuring_are_refused_without_tests(
    tmp_path: Path, key: str, value: Value
) -> None:
    """Both remedies help: without the setting, and with test examples."""
    without: dict[str, Value] = {"test-share": 0.0, key: value}
    words = rf"{key} = .* with test-share = 0, .*leave it out, or set test-share"
    with pytest.raises(FairbloomError, match=words):
        run(clients=5, rounds=2, settings=without, out=tmp_path, progress=False)
    also: dict[str, Value] = {"validation-share": 0.2} if key == "early-stopping" else {}
    chosen = {**without, **also, "test-share": 0.2}
    assert run(clients=5, rounds=2, settings=chosen, out=tmp_path, progress=False).final()


@pytest.mark.parametrize("study", [compare, search])
def test_studies_need_test_examples(tmp_path: Path, study: Any, untested: fairbloom.Run) -> None:
    with pytest.raises(FairbloomError, match=r"test-share = 0.*set test-share|fairbloom refit"):
        study(methods="fedavg,fedfv", settings={"test-share": 0.0}, out=tmp_path, **SMALL)
    with pytest.raises(FairbloomError, match="no test rows: trained on all rows"):
        compare(runs=[untested.folder], out=tmp_path)


def test_a_site_is_evaluated_on_a_share_of_its_own(hospitals: Path, tmp_path: Path) -> None:
    write_hospital(tmp_path / "new" / "newtown.csv", 100, 9)
    done = refit(hospitals / "cmp", method="fedavg", out=tmp_path / "refit")
    found = fairbloom.evaluate(done.folder, data_dir=tmp_path / "new")
    assert (found.train_examples, found.test_examples) == (80, 20)


def whole_line(setup: Setup) -> Task:
    """The points on lines without those for tests."""
    task = line(setup)

    def splits(client: str) -> Splits:
        train, test = task.splits(client)
        return Splits(train, Examples(test.inputs[:0], test.all_targets[:0]))

    return replace(task, splits=splits)


def test_a_task_of_ones_own_may_leave_the_tests_out(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"rounds": 1, "settings": {"test-share": 0.0}, "progress": False}
    assert run(f"{__name__}:whole_line", out=tmp_path / "a", **shared).finished
    with pytest.raises(FairbloomError, match=r"test-share = 0: task .* sets 10 test examples of"):
        run(f"{line.__module__}:line", out=tmp_path / "b", **shared)
