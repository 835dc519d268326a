"""A site that took no part in a run evaluates the run's model on its own data.

Predictions of runs whose clients keep a part of the model for themselves.

Clients keep the trained part of personal models, and predict with the whole model.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fairbloom
from fairbloom.client.guard.evaluated_model import keep_model
from fairbloom.client.states import PERSONAL, ClientStates
from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import load_predictor
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.run_folder.files import CONFIG, MODEL, SCHEMA
from fairbloom.system.versions import Versions
from fairbloom.tasks import load_task
from tests.experiments.helpers import as_json, captured, fairbloom as command
from tests.simulation.helpers import table
from tests.tables.helpers import refused_with

from .hospitals import COLUMNS, ROUNDS, run_hospitals
from .made import copy_to_device

# What is measured ---------------------------------------------------------------------------------


@pytest.mark.parametrize("added", ["", "center = 60.0\nscale = 10.0\n"])
def test_a_client_of_the_run_is_measured_as_in_the_run(
    there: Path, tmp_path: Path, added: str
) -> None:
    """Its own means and deviations come from its training rows, as in training."""
    schema = SCHEMA.read(there / "run").replace("[fields.age]\n", f"[fields.age]\n{added}")
    changes = {"schema": schema, "scores": "f1,brier", "score": "auc"}
    out = run_hospitals(there / "hospitals", tmp_path / "run", **changes)
    expected = fairbloom.load(out)
    for name in ("h1", "h3"):
        found = fairbloom.evaluate(out, data_dir=there / "hospitals", client=name)
        assert (found.site, found.test_examples) == (name, expected.test_examples()[name])
        assert found.scores[0].name == "auc"
        for score in expected.scores:
            assert found.values[score.name] == pytest.approx(expected.final(score)[name], rel=1e-9)
            assert found.clients[score.name] == expected.final(score)


def test_a_new_hospital_is_put_beside_the_runs_clients(there: Path) -> None:
    found = fairbloom.evaluate(there / "run", data_dir=there / "new")
    assert (found.site, found.train_examples, found.test_examples) == ("newtown", 120, 30)
    right = round(0.3 * found.values["accuracy"])
    n = 30
    z = 1.959964
    centre = (right + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * np.sqrt(right * (n - right) / n + z**2 / 4)
    assert found.interval == pytest.approx((100 * (centre - half), 100 * (centre + half)), rel=1e-4)
    values = fairbloom.load(there / "run").final().values()
    assert found.range_of(found.scores[0]) == (min(values), max(values))
    by_file = fairbloom.evaluate(there / "run", data_dir=there / "new" / "newtown.csv")
    assert by_file.values == found.values


def test_a_site_in_another_unit_is_named_with_its_line(
    there: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own means and deviations hide the unit from its scores, and not from the run's."""
    settings = {**CONFIG.read(there / "run").settings, "schema": SCHEMA.read(there / "run")}
    task = load_task({**settings, "data-dir": str(there / "hospitals")})
    of_device = tmp_path / "kept"
    arrays = MODEL.read(there / "run")
    keep_model(of_device, RunSettings.of(settings), task, "h1", arrays, ROUNDS, "global")
    header, *lines = (there / "new" / "newtown.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines]
    changed = [",".join([age, f"{float(bp) / 7.5006:.2f}", *rest]) for age, bp, *rest in cells]
    (tmp_path / "kpa").mkdir()
    (tmp_path / "kpa" / "kpa.csv").write_text("\n".join([header, *changed]) + "\n")
    for run in (there / "run", of_device):
        fairbloom.evaluate(run, data_dir=there / "new")
        assert "unit of training" not in caplog.text
        fairbloom.evaluate(run, data_dir=tmp_path / "kpa")
        (said,) = [each for each in caplog.messages if "unit of training" in each]
        assert "'bp'" in said
        assert 'fields.bp.factor = 7.501 under [files."kpa.csv"]' in said
        caplog.clear()


def test_a_client_not_in_training_is_measured_as_in_the_run(there: Path, tmp_path: Path) -> None:
    out = run_hospitals(there / "hospitals", tmp_path / "run", **{"held-out-clients": 0.5})
    held_out = fairbloom.load(out).held_out()
    assert len(held_out) == 2
    for name, score in held_out.items():
        for data in (there / "hospitals", there / "hospitals" / f"{name}.csv"):
            found = fairbloom.evaluate(out, data_dir=data, client=name)
            assert found.values["accuracy"] == pytest.approx(score)


def test_a_file_needs_no_column_that_names_the_site(there: Path, tmp_path: Path) -> None:
    files = sorted((there / "hospitals").iterdir())
    rows = [f"{file.stem},{row}" for file in files for row in file.read_text().splitlines()[1:]]
    (tmp_path / "all.csv").write_text("\n".join([f"site,{COLUMNS}", *rows]) + "\n")
    out = run_hospitals(tmp_path / "all.csv", tmp_path / "run", **{"csv.client": "site"})
    found = fairbloom.evaluate(out, data_dir=there / "new")
    assert (found.site, found.test_examples) == ("newtown", 30)
    again = fairbloom.evaluate(out, data_dir=tmp_path / "all.csv", client="h1")
    assert again.values["accuracy"] == pytest.approx(again.clients["accuracy"]["h1"])
    copy = shutil.copy(tmp_path / "all.csv", tmp_path / "copy.csv")
    predictor = fairbloom.load(out).predictor("h1")
    assert predictor.predict_file(copy, tmp_path / "out.csv", "test") == again.test_examples


def test_a_quantity_is_measured_too(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for name, slope in (("a", 2.0), ("b", 2.0), ("c", -2.0)):
        x = random.normal(0, 1, 80)
        lines = "\n".join(f"{x:.4f},{slope * x:.4f}" for x in x)
        file = tmp_path / ("new" if name == "c" else "old") / f"{name}.csv"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"x,target\n{lines}\n")
    found = fairbloom.evaluate(
        run_hospitals(tmp_path / "old", tmp_path / "run"), data_dir=tmp_path / "new"
    )
    worst_and_best = found.range_of(found.scores[0])
    assert found.interval is None
    assert worst_and_best is not None
    assert found.values["mae"] > worst_and_best[0] > worst_and_best[1]  # lower is better


def test_a_devices_folder_works_without_the_clients(there: Path, tmp_path: Path) -> None:
    settings = {**CONFIG.read(there / "run").settings, "schema": SCHEMA.read(there / "run")}
    task = load_task({**settings, "data-dir": str(there / "new")})
    given = RunSettings.of(settings)
    keep_model(
        tmp_path / "kept", given, task, "newtown", MODEL.read(there / "run"), ROUNDS, "global"
    )
    found = fairbloom.evaluate(tmp_path / "kept", data_dir=there / "new")
    assert found.values == fairbloom.evaluate(there / "run", data_dir=there / "new").values
    assert found.clients == {}
    assert "only a run folder with test examples, and without privacy accounts, does" in next(
        found.sentences()
    )


def test_a_balanced_accuracy_of_one_class_is_called_a_recall(there: Path, tmp_path: Path) -> None:
    header, *lines = (there / "new" / "newtown.csv").read_text().splitlines()
    healthy = [line for line in lines if not line.endswith(",sick")]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "one.csv").write_text("\n".join([header, *healthy]) + "\n")
    words = "the balanced accuracy is the recall of that class"
    found = fairbloom.evaluate(there / "run", data_dir=tmp_path / "one")
    assert found.only_class == healthy[0].rpartition(",")[2]
    assert found.values["balanced-accuracy"] == pytest.approx(found.values["accuracy"])
    said = [each for each in found.sentences() if words in each]
    assert said == [f"All test examples of one are of the class {found.only_class}: {words}."]
    both = fairbloom.evaluate(there / "run", data_dir=there / "new")
    assert both.only_class == ""
    assert words not in " ".join(both.sentences())


def test_a_number_of_one_row_means_nothing(there: Path, tmp_path: Path) -> None:
    header, *lines = (there / "new" / "newtown.csv").read_text().splitlines()
    sick = [line for line in lines if line.endswith(",sick")]
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "tiny.csv").write_text("\n".join([header, *sick[:5]]) + "\n")
    found = fairbloom.evaluate(there / "run", data_dir=tmp_path / "tiny")
    assert (found.train_examples, found.test_examples) == (4, 1)
    assert "So few test examples mean little" in " ".join(found.sentences())
    assert "auc" not in found.values


def test_the_command_prints_a_table_or_json(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("evaluate", there / "run", "--data-dir", there / "new")
    printed = captured(capsys, *arguments).out
    assert [
        words
        for words in ("newtown", "worst of the run's clients", "best of the run's clients")
        if words not in printed
    ] == []
    assert set(as_json(capsys, *arguments)["clients"]["accuracy"]) == {"h0", "h1", "h2", "h3"}


# What does not fit --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("age,bp,sex,target", "age,pressure,sex,target", "no column 'bp'"),
        ("age,bp,sex,target", "age,bp,sex,outcome", "target"),
        (",sick\n", ",ill\n", "'ill'"),
        (",m,", ",unknown,", "'unknown'"),
        (".1,", ".1 years,", "years"),
    ],
)
def test_data_that_do_not_fit_are_refused_by_name(
    there: Path, tmp_path: Path, old: str, new: str, words: str
) -> None:
    text = (there / "new" / "newtown.csv").read_text()
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "newtown.csv").write_text(text.replace(old, new))
    with refused_with("the data of newtown do not fit the run in ", words):
        fairbloom.evaluate(there / "run", data_dir=tmp_path / "wrong")


def test_what_cannot_be_evaluated_names_the_remedy(
    there: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    alone = run_hospitals(there / "hospitals", tmp_path / "alone", method="local")
    unfinished = shutil.copytree(there / "run", tmp_path / "unfinished")
    (unfinished / "model.safetensors").unlink()
    site = {"data_dir": there / "new"}
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (tmp_path, site, "holds no run: name a run folder"),
        (there / "run", {}, "reads its data from a folder: name it by --data-dir, or on a"),
        (there / "run", {"data_dir": there / "nowhere"}, "no such folder or file"),
        (there / "run", {**site, "model": "lst"}, r"model = 'lst': did you mean last\?"),
        (
            there / "run",
            {"data_dir": there / "hospitals"},
            "data of 4 clients: say which one by --client: h0, h1, h2 and 1 more",
        ),
        (
            there / "run",
            {**site, "client": "h9"},
            "client = 'h9': .*no data of a client .* there are newtown",
        ),
        (alone, site, "trains no global model.* a run of another method"),
        (unfinished, site, "is not finished: evaluate it when it is over"),
    ]
    for folder, arguments, words in cases:
        with subtests.test(folder=folder, arguments=arguments):
            with pytest.raises(FairbloomError, match=words):
                fairbloom.evaluate(folder, **arguments)


CLIENT = "client-1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """Three clients of digits, each with its own last layer."""
    out = tmp_path_factory.mktemp("heads") / "run"
    settings = {"model": "mlp", "partition": "shards", "personal-parameters": "head"}
    return fairbloom.run(
        "digits", clients=3, rounds=3, device="cpu", progress=False, out=out, settings=settings
    )


@pytest.fixture
def images(run: fairbloom.Run, tmp_path: Path) -> Path:
    """The test images of a client, in a file."""
    inputs, _ = load_task(run.settings).splits(CLIENT).test[:]
    np.savez(tmp_path / "new.npz", x=inputs.numpy())
    return tmp_path / "new.npz"


def share_of_right(run: fairbloom.Run, predicted: Sequence[str]) -> float:
    """Return how many percent of the client's test images are right."""
    task = load_task(run.settings)
    _, targets = task.splits(CLIENT).test[:]
    assert task.preprocessing is not None
    names = task.preprocessing("").classes
    pairs = zip(predicted, targets.tolist(), strict=True)
    return 100.0 * float(np.mean([name == names[target] for name, target in pairs]))


def predict(folder: Path, images: Path, *options: str) -> list[str]:
    out = images.with_name("out.csv")
    assert command("predict", folder, images, *options, "--out", out) == 0
    predicted = [row["predicted_class"] for row in table(out)]
    out.unlink()
    return predicted


def test_a_named_client_predicts_with_its_own_head(run: fairbloom.Run, images: Path) -> None:
    assert share_of_right(run, predict(run.folder, images, "--client", CLIENT)) == pytest.approx(
        run.final(model="personal")[CLIENT], abs=1e-4
    )


def test_without_a_name_the_model_lacks_heads(
    run: fairbloom.Run, images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    predicted = predict(run.folder, images)
    assert "the initial values of the parameters that each client keeps" in caplog.text
    assert "personal-parameters = 'head': take a client's by --client" in caplog.text
    assert share_of_right(run, predicted) == pytest.approx(
        run.final(model="global")[CLIENT], abs=1e-4
    )
    initial = load_task(run.settings).model().state_dict()
    common = run.model().state_dict()
    assert torch.equal(common["5.weight"], initial["5.weight"])
    assert not torch.equal(common["1.weight"], initial["1.weight"])


def test_a_device_predicts_with_its_own_head(
    run: fairbloom.Run, images: Path, tmp_path: Path
) -> None:
    assert predict(copy_to_device(run, CLIENT, tmp_path / "state") / "model", images) == predict(
        run.folder, images, "--client", CLIENT
    )


@pytest.fixture(scope="module")
def frozen_run(tmp_path_factory: pytest.TempPathFactory) -> fairbloom.Run:
    """Three clients with personal models and a frozen first layer."""
    settings = {"model": "tests.client.nets:Frozen", "engine": "stacked", "personal-lambda": 0.1}
    out = tmp_path_factory.mktemp("frozen") / "run"
    return fairbloom.run(
        "digits", clients=3, rounds=2, device="cpu", progress=False, out=out, settings=settings
    )


def test_the_whole_model_predicts_as_it_was_measured(frozen_run: fairbloom.Run) -> None:
    (states,) = (frozen_run.folder / "clients").iterdir()
    kept = ClientStates(Versions(states), CLIENT).find(PERSONAL, before=3)
    model = frozen_run.model(CLIENT, "personal").state_dict()
    assert kept is not None
    assert model.keys() - kept.state.keys() == {name for name in model if name.startswith("first")}
    shared = frozen_run.model().state_dict()
    assert {name: torch.equal(tensor, shared[name]) for name, tensor in model.items()} == {
        name: name.startswith("first") for name in model
    }


def test_a_devices_frozen_parameters_are_the_final_models(
    frozen_run: fairbloom.Run, tmp_path: Path
) -> None:
    copy_to_device(frozen_run, CLIENT, tmp_path / "state")
    found = load_predictor(tmp_path / "state", model="personal").module.state_dict()
    final = frozen_run.model(CLIENT, "personal").state_dict()
    torch.testing.assert_close(found, final, rtol=0, atol=0)
