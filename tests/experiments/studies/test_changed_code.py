"""A run records its user's code: with changed code it is not continued, extended or compared.

A run records its data: with changed files it is not continued or compared with new runs.

Runs that fail in a comparison: the others continue, and a row and a sentence report them.
"""

import importlib
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

import fairbloom as package
from fairbloom.errors import FairbloomError
from fairbloom.experiments import api
from fairbloom.experiments.arms import Arm
from fairbloom.experiments.results.run import REPORT
from fairbloom.experiments.study import Study, find_study
from fairbloom.own_code import digest_own_code
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.flower import RunFolder
from fairbloom.simulation.grid import InProcessGrid
from tests.simulation.helpers import table
from tests.tables.helpers import csv_of

from ...server.run_folder.test_flower import app
from ..helpers import as_json, captured, fairbloom, times_in

# Modules of a user's; the method imports the helper late.
SOURCES = {
    "my_helper": "K = 1\n",
    "my_task": """
from fairbloom.tasks import find_task
def task(setup):
    known = find_task("digits")
    return known.load(setup.model_copy(update={"data_dir": ""}), known.check_parameters({}))
""",
    "my_model": "import torch\ndef net(outputs, inputs):\n"
    "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(inputs, outputs))\n",
    "my_methods": """
from fairbloom.strategies import FedAvg
class Mine(FedAvg):
    def weigh(self, cohort):
        import my_helper
        return super().weigh(cohort)
""",
    "my_rules": """
class Plain:
    def start(self, received, kept, sent):
        return None
    def correct(self, gradients, state, step):
        return gradients
    def finish(self, received, trained, state, steps):
        return trained, {}
""",
}

NAMED = (
    "--task",
    "my_task:task",
    "--model",
    "my_model:net",
    "--method",
    "my_methods:Mine",
    "--clients",
    "3",
)
SMALL = ("--rounds", "1", "--device", "cpu")


@pytest.fixture
def modules(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(here)
    for name, source in SOURCES.items():
        sys.modules.pop(name, None)
        Path(f"{name}.py").write_text(source)
    importlib.invalidate_caches()
    return here


def edit(module: str, added: str = "EDITED = True\n") -> None:
    Path(f"{module}.py").write_text(SOURCES[module] + added)


def test_a_run_is_not_taken_up_with_other_code(
    modules: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    more = {"client-rule": "my_rules:Plain"}
    words = (
        *NAMED,
        *SMALL,
        *(word for each in more.items() for word in ("--set", "=".join(each))),
        "--out",
        "a",
    )
    assert fairbloom("run", *words) == 0, capsys.readouterr().err
    for module in SOURCES:
        with subtests.test(module=module):
            edit(module)
            for longer in ((), ("--rounds", "2")):
                capsys.readouterr()
                assert f"{modules / 'a'} was begun ({module})" in " ".join(
                    captured(capsys, "run", *words, *longer, code=2).err.split()
                )
            edit(module, added="")
    assert fairbloom("run", *words) == 0
    Path("my_other.py").write_text("")  # which none of them imports
    assert fairbloom("run", *words, "--rounds", "2") == 0


@pytest.mark.slow
def test_a_comparison_has_no_rows_of_two_algorithms(
    modules: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    words = ("--task", "digits", "--clients", "3", *SMALL, "--jobs", "1", "--out", "c")
    methods = ("--methods", "fedavg,my_methods:Mine")
    assert fairbloom("compare", *words, *methods, "--seeds", "1") == 0, capsys.readouterr().err
    edit("my_helper")
    for seeds in ("1", "2"):
        with subtests.test(seeds=seeds):
            assert (
                "(my_helper)"
                in captured(capsys, "compare", *words, *methods, "--seeds", seeds, code=2).err
            )
    assert len([*Path("c", "runs").iterdir()]) == 2
    assert fairbloom("compare", *words, "--methods", "fedavg", "--seeds", "1") == 0


def test_own_strategies_of_apps_are_compared_too(modules: Path) -> None:
    def start(rounds: int) -> None:
        strategy = importlib.import_module("my_methods").Mine()
        arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
        RunFolder("a", score="eval_acc", wait=False).start(
            strategy, InProcessGrid(app, {}, 3), arrays, rounds
        )

    start(1)
    edit("my_methods")
    with pytest.raises(
        RunFolderError, match=r"code has changed since the run in .* \(my_methods\)"
    ):
        start(2)
    edit("my_methods", added="")
    start(2)


def test_the_code_is_what_is_imported_from_the_same_folder(modules: Path) -> None:
    """Packages around a module, relative and late imports, and nothing that is installed or not
    imported."""
    package = Path("own", "deep")
    package.mkdir(parents=True)
    for file, source in {
        "__init__": "",
        "a": "from . import b\nfrom ..top import x\nimport torch\nimport my_helper as h",
        "b": "def f():\n    from own.deep.c import *",
        "c": "if True:\n    import not_there",
        "unused": "",
    }.items():
        (package / f"{file}.py").write_text(source)
    Path("own", "top.py").write_text("x = 1")
    found = digest_own_code(
        ["own.deep.a:Task", "fedavg", "torch.optim:Adam", "fairbloom.strategies:FedAvg", "no:thing"]
    )
    assert set(found) == {
        "own.deep",
        "own.deep.a",
        "own.deep.b",
        "own.deep.c",
        "own.top",
        "my_helper",
    }
    assert found["own.top"] == f"sha256 {sha256(b'x = 1').hexdigest()}"


def test_a_library_in_any_folder_of_pip_is_no_code_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `pip install --target`: Flower's own classes lie there, too."""
    (tmp_path / "their_library.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert digest_own_code(["their_library:X"])
    (tmp_path / "their_library-1.0.dist-info").mkdir()
    assert digest_own_code(["their_library:X"]) == {}


FILES = {"lund": csv_of(30, 1), "oslo": csv_of(30, 2)}


@pytest.fixture
def words(here: Path) -> tuple[str, ...]:
    Path("sites").mkdir()
    for name, text in FILES.items():
        Path("sites", f"{name}.csv").write_text(text)
    return ("--task", "csv", "--data-dir", "sites", "--rounds", "2", "--set", "device=cpu")


def test_a_run_is_not_continued_or_shown_with_other_data(
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    assert fairbloom("run", *words, "--out", "a") == 0
    for finished in (True, False):
        with subtests.test(finished=finished):
            if not finished:
                Path("a", "model.safetensors").unlink()
            Path("sites", "oslo.csv").write_text(csv_of(31, 3))
            assert "(oslo.csv)" in captured(capsys, "run", *words, "--out", "a", code=2).err
            Path("sites", "oslo.csv").write_text(FILES["oslo"])
            assert fairbloom("run", *words, "--out", "a") == 0


def test_methods_on_new_data_are_not_compared_with_those_on_old(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        fairbloom(
            "compare", *words, "--methods", "fedavg", "--seeds", "1", "--jobs", "1", "--out", "cmp"
        )
        == 0
    )
    Path("sites", "bern.csv").write_text(csv_of(30, 4))
    assert (
        "(bern.csv)"
        in captured(
            capsys,
            "compare",
            *words,
            "--methods",
            "fedavg,term",
            "--seeds",
            "1",
            "--jobs",
            "1",
            "--out",
            "cmp",
            code=2,
        ).err
    )
    assert not Path("cmp", "runs", "term-seed0").exists()


OWN_TASK = """
from dataclasses import replace
from pathlib import Path

from fairbloom.tasks import find_task


def task(setup):
    known = find_task("digits")
    setup_of_digits = setup.model_copy(update={"model": "logistic", "data_dir": ""})
    digits = known.load(setup_of_digits, known.check_parameters({}))
    shift = float(Path(setup.data_dir or "place", "shift.txt").read_text())
    def splits(name):
        return digits.splits(name).map(lambda part: replace(part, inputs=part.inputs + shift))
    return replace(digits, splits=splits)
"""


@pytest.mark.parametrize("place", ["", "place"])
def test_the_same_process_reads_changed_data_anew(
    place: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook runs once more after its data have changed, in the folder that data-dir names or
    elsewhere."""
    monkeypatch.syspath_prepend(here)
    module = f"shifted{len(place)}"
    Path(f"{module}.py").write_text(OWN_TASK)
    Path("place").mkdir()

    def losses(shift: str, out: str) -> list[float]:
        Path("place", "shift.txt").write_text(shift)
        package.run(
            f"{module}:task",
            data_dir=place or None,
            clients=3,
            rounds=1,
            device="cpu",
            out=out,
            progress=False,
        )
        return [float(row["test_loss_of_global_model"]) for row in table(Path(out, "clients.csv"))]

    before = losses("0.0", "a")
    assert losses("9.0", "b") != before
    assert losses("0.0", "c") == before


FAILING = "FedAvg (learning-rate=1e+30)"
FOLDER = "runs/fedavg-learning-rate=1e+30-seed"
DIVERGED = {f"{FOLDER}{seed}": "the run has learned nothing" for seed in range(2)}
ROW = f"{FAILING}: failed with 2 of 2 seeds"
FAILED = (
    "--seeds",
    2,
    "--clients",
    5,
    "--rounds",
    2,
    "--jobs",
    1,
    "--model",
    "mlp",
    "--set",
    "device=cpu",
)
WORDS = (
    "compare",
    "--methods",
    "fedavg(learning-rate=1e30),fedavg,fedfv",
    *FAILED,
    "--set",
    "unused-rounds=1",
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "cmp"
    assert fairbloom(*WORDS, "--baseline", "fedavg", "--out", out) == 0
    return out


@pytest.fixture
def out(compared: Path, tmp_path: Path) -> Path:
    """A copy of that comparison."""
    return shutil.copytree(compared, tmp_path / "cmp")


def test_a_failed_method_is_a_row_and_a_sentence_everywhere(
    compared: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    sentence = f"{FAILING} failed with 2 of 2 seeds, so it is not compared."
    printed = " ".join(captured(capsys, "show", compared).out.split())
    assert f"{FAILING} with seed 0: the run has learned nothing" in printed
    for shown in (printed, unescape((compared / REPORT).read_text(encoding="utf-8"))):
        with subtests.test(shown=shown):
            assert ROW in shown
            assert sentence in shown
    about = as_json(capsys, "show", compared)
    assert about["failed"] == {FAILING: "failed with 2 of 2 seeds"}
    assert sentence in about["verdict"]["sentences"]
    assert {row["method"] for row in about["methods"]} == {"FedAvg", "FedFV"}
    assert [*find_study(compared).failed] == [*DIVERGED]


def test_a_baseline_that_always_fails_is_an_error_with_a_remedy(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = captured(
        capsys, *WORDS, "--baseline", "fedavg(learning-rate=1e30)", "--out", out, code=2
    ).err
    assert f"{FAILING} with seed 0: the run has learned nothing" in message
    assert "--baseline" in message
    # as the command with another baseline does
    replace(find_study(out), baseline="FedFV").write(out)
    assert api.load(out).baseline == "FedFV"


def note_failures(folder: Path, failed: Mapping[str, str]) -> None:
    replace(find_study(folder), failed=failed).write(folder)


def test_runs_that_failed_are_tried_again(out: Path) -> None:
    """A run that failed, as with a full disk, is finished in the meantime."""
    before = times_in(out / "runs")
    note_failures(out, {**DIVERGED, "runs/fedfv-seed1": "No space left on device"})
    assert api.load(out).failed["FedFV"] == "failed with 1 of 2 seeds"
    assert fairbloom(*WORDS, "--baseline", "fedavg", "--out", out) == 0
    assert set(api.load(out).failed) == {FAILING}
    assert {
        path: time for path, time in before.items() if "1e+30" not in str(path)
    }.items() <= times_in(out / "runs").items()


def test_seeds_that_the_baseline_failed_with_are_left_out(out: Path) -> None:
    note_failures(out, {**DIVERGED, "runs/fedavg-seed0": "broken"})
    found = api.load(out)
    assert (found.seeds, found.methods) == ((1,), ("FedAvg", "FedFV"))
    assert (
        "FedAvg failed with 1 of 2 seeds, so these seeds are left out." in found.verdict.sentences
    )
    assert f"{FAILING} failed with 2 of 2 seeds, so it is not compared." in found.verdict.sentences


def test_a_method_that_lacks_a_client_is_left_out_by_name(out: Path) -> None:
    clients = out / "runs" / "fedfv-seed0" / "clients.csv"
    header, *rows = clients.read_text().splitlines()
    clients.write_text(
        "\n".join([header, *[row for row in rows if not row.startswith("2,client-3,")]]) + "\n"
    )
    found = api.load(out)
    assert found.methods == ("FedAvg",)
    assert found.failed["FedFV"] == "has no test accuracy of client-3 with seed 0"
    assert (
        "FedFV has no test accuracy of client-3 with seed 0, so it is not compared."
        in found.verdict.sentences
    )


def test_a_method_that_failed_with_one_seed_is_not_compared() -> None:
    arms = [Arm("FedAvg", "fedavg"), Arm("FedFV", "fedfv"), Arm("TERM", "term")]
    study = Study("compare", arms, [3, 4], "FedAvg")
    assert [
        arm.label for arm in replace(study, failed={"runs/fedfv-seed4": "broken"}).finished.arms
    ] == ["FedAvg", "TERM"]
    with_base = replace(study, failed={"runs/fedfv-seed4": "", "runs/fedavg-seed4": ""})
    assert (with_base.finished.seeds, len(with_base.finished.arms)) == ([3], 3)
    with pytest.raises(
        FairbloomError, match=r"FedAvg with seed 3: broken\. All runs of the baseline failed"
    ):
        _ = replace(study, failed={f"runs/fedavg-seed{seed}": "broken" for seed in (3, 4)}).finished
