"""A run records its data: with changed files it is not continued or compared with new runs."""

from pathlib import Path

import pytest

import fairbloom as package
from tests.simulation.helpers import table
from tests.tasks.tables import csv_of

from ..helpers import captured, fairbloom

FILES = {"lund": csv_of(30, 1), "oslo": csv_of(30, 2)}


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
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
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook runs once more after its data have changed, in the folder that data-dir names or
    elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
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
