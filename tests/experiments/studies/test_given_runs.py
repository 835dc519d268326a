"""`fairbloom compare --runs`: runs that exist, whatever made them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fairbloom.errors import FairbloomError
from fairbloom.experiments.api import compare, load, refit
from fairbloom.experiments.results.caveats import caveats_of_run
from fairbloom.protocol.scores import Score
from fairbloom.server.run_folder.files import CONFIG, DATA, LEFT_OUT, MODEL, ROWS
from fairbloom.strategies import FedAvg, FedFV, from_config
from tests.client import changed
from tests.server.run_folder.test_flower import start

from ..helpers import as_json, captured, fairbloom
from ..made_up import make_run


class Mine(FedAvg):
    """A method of the app itself, which nothing can import by its name."""

    def __init__(self, *, share: float = 0.5, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.share = share


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of an app with three methods and three seeds, one run of them interrupted."""
    folder = tmp_path_factory.mktemp("made")
    for seed in range(3):
        for name, strategy in (
            ("fedavg", FedAvg(seed=seed, fraction_train=0.5)),
            ("fedfv", FedFV(alpha=0.25, seed=seed, fraction_train=0.5)),
            ("mine", Mine(share=0.3, seed=seed, fraction_train=0.5)),
        ):
            start(folder / f"runs/{name}-{seed}", strategy)
    return folder


@pytest.fixture
def here(made: Path, here: Path) -> Path:
    shutil.copytree(made, here, dirs_exist_ok=True)
    return here


def folders(pattern: str = "*") -> list[Path]:
    return sorted(Path("runs").glob(pattern))


def test_runs_are_compared_by_their_recorded_method_and_seed(here: Path) -> None:
    compared = compare(runs=folders(), out="runs/all", progress=False)
    assert compared.methods == ("FedAvg", "FedFV (alpha=0.25)", "Mine (share=0.3)")
    assert compared.seeds == (0, 1, 2)
    assert compared.baseline == "FedAvg"
    for seed in range(3):
        assert compared.values["FedFV (alpha=0.25)"][seed] == load(f"runs/fedfv-{seed}").final()
    assert set(compared.verdict.sentences)
    assert {"study.json", "comparison.csv", "differences.csv", "report.html"} <= {
        path.name for path in Path("runs/all").iterdir() if not path.name.startswith(".")
    }


@pytest.mark.parametrize("words", ["runs/fed*", ["runs/fedavg-*", "{here}/runs/fedfv-*"]])
def test_a_pattern_stands_for_what_it_matches(here: Path, words: str | list[str]) -> None:
    given = words if isinstance(words, str) else [word.format(here=here) for word in words]
    compared = compare(runs=given, out="all", progress=False)
    assert (compared.methods, compared.seeds) == (("FedAvg", "FedFV (alpha=0.25)"), (0, 1, 2))
    with pytest.raises(FairbloomError, match="no finished run to compare"):
        compare(runs="runs/none*", out="none", progress=False)


def test_the_folder_is_a_comparison_to_every_command(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "compare",
        "--runs",
        *folders(),
        "--baseline",
        "fedfv(alpha=0.25)",
        "--out",
        "runs/all",
    )
    assert as_json(capsys, *words) == as_json(capsys, "show", "runs/all")
    assert fairbloom("report", "runs/all", "--out", "page.html") == 0
    assert "3 methods compared</title>" in Path("page.html").read_text()
    capsys.readouterr()
    # again, with the folder itself among the runs
    out = captured(capsys, "compare", "--runs", *folders(), "--out", "runs/all").out
    assert out.startswith("3 methods compared\nbaseline FedAvg")
    assert "left out" not in out


def test_the_page_of_an_apps_run_names_the_command(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        "in the app by fairbloom compare --app, or from run folders by fairbloom compare --runs."
        in captured(capsys, "show", "runs/fedfv-0").out
    )


def test_an_apps_runs_have_no_refit(here: Path) -> None:
    compare(runs=folders(), out="runs/all", progress=False)
    with pytest.raises(FairbloomError, match=r"an app trains FedFV \(alpha=0.25\), .* run the app"):
        refit("runs/all", method="fedfv")


def test_what_is_left_out_is_named(here: Path) -> None:
    (here / "runs/fedfv-2" / MODEL.name).unlink()
    shutil.copytree("runs/fedavg-0", "runs/x-again")
    (here / "runs/notes").mkdir()
    (here / "runs/notes.txt").write_text("a file is no folder")
    start(here / "runs/z", FedFV(seed=9, fraction_train=0.5))
    said = " ".join(compare(runs=folders(), out="runs/all", progress=False).caveats)
    assert "runs/fedfv-2 is left out: it is interrupted after round 6 of 6." in said
    assert (
        "x-again is left out: it is another run of FedAvg with seed 0, like runs/fedavg-0." in said
    )
    assert "runs/notes is left out: it is not a run folder." in said
    assert "FedFV is left out: FedAvg has no run with its seeds (9)." in said
    assert "Runs with seed 2 are left out: FedFV (alpha=0.25) lacks it." in said
    assert load("runs/all").seeds == (0, 1)
    assert "runs/notes is left out" in " ".join(load("runs/all").caveats)


def test_settings_in_which_runs_differ_are_part_of_their_names(here: Path) -> None:
    start(here / "runs/longer", FedAvg(fraction_train=0.5), rounds=8)
    start(here / "runs/all-clients", FedAvg())
    assert set(
        compare(runs=folders("[afl]*-0") + folders("[al][lo]*"), out="all", progress=False).methods
    ) == {
        "FedAvg (num-rounds=6, fraction-train=0.5)",
        "FedFV (num-rounds=6, fraction-train=0.5, alpha=0.25)",
        "FedAvg (num-rounds=8, fraction-train=0.5)",
        "FedAvg (num-rounds=6)",
    }


def test_weightings_of_torchjd_are_methods_of_their_own(here: Path) -> None:
    pytest.importorskip("torchjd")
    for name in ("upgrad", "mgda"):
        start(here / f"jd/{name}", from_config({"method": f"torchjd:{name}"}))
    compared = compare(runs=sorted(Path("jd").iterdir()), out="all", progress=False)
    assert compared.methods == ("torchjd:mgda", "torchjd:upgrad")


@pytest.mark.slow
def test_methods_are_compared_in_flowers_quickstart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changed.change(tmp_path / "app")
    changed.let_the_config_choose(tmp_path / "app")
    config = {**changed.CONFIG, "learning-rate": 0.01, "num-server-rounds": 2}
    for method in ("fedavg", "fedmgdaplus"):
        for seed in range(2):
            chosen = {"method": method, "seed": seed, "out": f"runs/{method}-{seed}"}
            changed.run_in_process(tmp_path / "app", config | chosen, 4)
    compared = compare(runs=folders(), out="all", progress=False)
    assert (compared.methods, compared.seeds) == (("FedAvg", "FedMGDAPlus"), (0, 1))
    assert set(compared.values["FedAvg"][0]) == {f"client-{i}" for i in range(4)}


def lose_site_2(folder: Path) -> None:
    for file in ("clients.csv", "rounds.csv"):
        lines = (folder / file).read_text().splitlines(keepends=True)
        (folder / file).write_text("".join(line for line in lines if "site-2" not in line))


def take_longer_steps(folder: Path) -> None:
    config = folder / CONFIG.name
    config.write_text(config.read_text() + 'task = "digits"\n')


def measure_the_loss(folder: Path) -> None:
    shutil.rmtree(folder)
    start(folder, FedFV(alpha=0.25, fraction_train=0.5), score=Score("eval_loss", False))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lose_site_2, "only one of them has site-2: choose runs of the same clients"),
        (take_longer_steps, "their task is 'digits', and None: choose runs with the same data"),
        (
            measure_the_loss,
            "their scores are eval_loss, and eval_acc: choose runs with the same",
        ),
    ],
)
def test_other_clients_scores_or_data_are_refused_by_name(
    here: Path, change: Callable[[Path], None], said: str
) -> None:
    change(here / "runs/fedfv-0")
    with pytest.raises(
        FairbloomError, match=f"runs/fedfv-0 and runs/fedavg-0 cannot be compared: {said}"
    ):
        compare(runs=folders("fed*"), out="runs/all", progress=False)
    assert not Path("runs/all").exists()


def add_test_examples(folder: Path) -> None:
    table = folder / "clients.csv"
    table.write_text(table.read_text().replace(",2,", ",3,"))


OTHER_ROWS: dict[str, Callable[[Path, Path], object]] = {
    "site-0": lambda here, there: add_test_examples(here),
    "site-1": lambda here, there: [
        ROWS.write(folder, {"site-1": [[1, 1, 0], *changes], "site-2": [[1, 4, 0]]})
        for folder, changes in ((here, [[2, 2, 0]]), (there, []))
    ],
    "all clients": lambda here, there: [
        DATA.write(folder, {"a.csv": digest}) for folder, digest in ((here, "01"), (there, "23"))
    ],
}


@pytest.mark.parametrize("names", OTHER_ROWS)
def test_runs_of_other_rows_are_no_pair(here: Path, names: str) -> None:
    OTHER_ROWS[names](here / "runs/fedfv-0", here / "runs/fedavg-0")
    said = f"runs/fedfv-0 and runs/fedavg-0 cannot be compared: in one of them {names}.* had other"
    with pytest.raises(FairbloomError, match=said):
        compare(runs=folders("fed*-0"), out="all", progress=False)
    compare(runs=folders("fed*-1"), out="all", progress=False)


def test_rows_that_changed_in_both_runs_are_named(here: Path) -> None:
    for name in ("fedfv-0", "fedavg-0"):
        ROWS.write(here / "runs" / name, {"a": [[1, 1, 7]], "b": [[1, 1, 0], [2, 2, 0], [3, 1, 9]]})
        DATA.write(here / "runs" / name, {LEFT_OUT: [name]})
    compared = compare(runs=folders("fed*-0"), out="all", progress=False)
    fewer = "fewer rows, or units, than before its data last changed: if a file was cut off or a"
    remedy = "table is missing, its owner puts it back."
    said = [
        f"a, from round 1 on: 7 {fewer} {remedy}",
        "b: other rows from round 2 and 3 on.",
        f"b, from round 3 on: 9 {fewer} {remedy}",
    ]
    for name in ("fedfv-0", "fedavg-0"):
        assert {f"{name}: {each}" for each in said} <= {*compared.caveats}
    found = caveats_of_run(load(here / "runs/fedfv-0"))
    assert [each for each in found if " rows" in each] == said


def test_the_reported_examples_widen_the_intervals(here: Path) -> None:
    """Each client of the app trains on 10 examples and is tested on 2."""
    compared = compare(runs=folders("fed*"), out="all", progress=False)
    assert compared.shared.unknown
    assert compared.shared.test_share == pytest.approx(2 / 10)


def test_runs_of_tasks_are_compared_too_and_other_data_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    clients = [f"client-{i}" for i in range(5)]
    for method in ("fedavg", "qfedavg"):
        for seed in range(3):
            make_run(tmp_path / f"runs/{method}{seed}", method, seed, clients, 4, draws)
    compared = compare(runs=folders(), out="all", progress=False)
    assert (compared.methods, compared.seeds) == (("FedAvg", "QFedAvg"), (0, 1, 2))
    assert compared.shared.clients_differ
    config = tmp_path / "runs/qfedavg1" / CONFIG.name
    config.write_text(
        config.read_text().replace('digits.rotated-clients" = 0', 'digits.rotated-clients" = 3')
    )
    with pytest.raises(FairbloomError, match=r"their digits.rotated-clients is 3, and 0: choose"):
        compare(runs=folders(), out="all", progress=False)


FAULTS = {
    ("--rounds", "3"): "num-rounds has no effect with --runs, as these runs have theirs",
    ("--task", "digits"): "task has no effect with --runs",
    ("--methods", "fedfv"): "methods has no effect with --runs",
    ("--seeds", "5"): "seeds has no effect with --runs",
    ("--out", "runs/fedfv-1"): "runs/fedfv-1 is the folder of a single run",
    ("--baseline", "fedprox"): "baseline = 'fedprox' is not among the methods: there are FedAvg",
    ("--runs", "runs/none"): "no folder",
}


@pytest.mark.parametrize(("words", "said"), FAULTS.items())
def test_what_cannot_be_is_said_and_nothing_is_written(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    before = {path for path in here.rglob("*") if ".lock" not in path.name}
    given = ("--runs", "runs/fedavg-0", "runs/fedfv-0", *words)
    assert said in captured(capsys, "compare", *given, code=2).err
    assert {path for path in here.rglob("*") if ".lock" not in path.name} == before


def test_no_seed_in_common_is_an_error(here: Path) -> None:
    for name in ("mine-0", "mine-2", "fedavg-2", "fedfv-0", "fedfv-1"):
        shutil.rmtree(here / "runs" / name)
    # seeds 0 and 1 of FedAvg, 2 of FedFV, 1 of Mine
    compared = compare(runs=folders(), out="all", progress=False)
    assert compared.methods == ("FedAvg", "Mine (share=0.3)")
    shutil.rmtree("all")
    shutil.copytree("runs/fedfv-2", "runs/fedfv-0")
    config = here / "runs/fedfv-0" / CONFIG.name
    config.write_text(config.read_text().replace("seed = 2", "seed = 0"))
    with pytest.raises(FairbloomError, match="no seed has a run of each of FedAvg, FedFV"):
        compare(runs=folders(), out="all", progress=False)


def test_a_comparison_that_trained_is_not_replaced(here: Path) -> None:
    compare(methods="fedavg", seeds=1, rounds=1, clients=3, out="trained", jobs=1, progress=False)
    with pytest.raises(FairbloomError, match="trained holds a comparison: choose another folder"):
        compare(runs=folders(), out="trained", progress=False)
