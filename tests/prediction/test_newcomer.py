"""A new hospital evaluates a finished run's model on its own data, and makes a personal one of it."""

import json
import shutil
import stat
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import fairbloom
from fairbloom import Evaluation
from fairbloom.client.kept import About, keep_model
from fairbloom.client.work import batch_order
from fairbloom.errors import FairbloomError
from fairbloom.prediction.paired import Measure, interval_of, paired_p_value
from fairbloom.prediction.predictor import load_predictor
from fairbloom.protocol.names import AGREED as AGREEMENT
from fairbloom.protocol.scores import ACCURACY, LOSS_SCORE, Score
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.run_folder.files import AGREED, CONFIG, MODEL
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tasks import load_task
from fairbloom.tasks.measures import AUC, BALANCED_ACCURACY, auc, balanced_accuracy
from fairbloom.tasks.task import is_highest
from tests.experiments.helpers import fairbloom as command

from .hospitals import COLUMNS, write_hospital, write_hospitals

ROUNDS = 4


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four hospitals, a finished run of theirs, and a new one's file in a folder of its own."""
    folder = tmp_path_factory.mktemp("there")
    write_hospitals(folder / "hospitals")
    write_hospital(folder / "new" / "newtown.csv", 150, 9, 14.0)
    run(folder / "hospitals", folder / "run")
    return folder


def run(data: Path, out: Path, **changes: Any) -> Path:
    plain = {"task": "csv", "data-dir": str(data), "num-rounds": ROUNDS, "fraction": 1.0, "device": "cpu"}
    return simulate(Settings.of({**plain, **changes, "out": str(out)}))


def data_of(folder: Path, data: Path) -> tuple[Any, RunSettings]:
    """Return the task of a run with a site's data in place of the clients'."""
    config = {**CONFIG.read(folder).settings, "data-dir": str(data), "state-dir": "", AGREEMENT: AGREED.read(folder)}
    return load_task(config), RunSettings.of(config)


# What is measured ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("standardise", ["client", "together"])
def test_a_client_of_the_run_is_measured_as_it_was_in_the_run(there: Path, tmp_path: Path, standardise: str) -> None:
    """Its own means and deviations come from its training rows, as in training."""
    out = run(there / "hospitals", tmp_path / "run", **{"csv.standardise": standardise, "scores": "f1,brier"})
    for name in ("h1", "h3"):
        (tmp_path / name).mkdir()
        shutil.copy(there / "hospitals" / f"{name}.csv", tmp_path / name)
        found = fairbloom.evaluate(out, data_dir=tmp_path / name)
        expected = fairbloom.load(out)
        assert found.client == name
        assert found.test_examples == expected.test_examples()[name]
        for score in expected.scores:
            assert found.before[score.name] == pytest.approx(expected.final(score)[name], rel=1e-9)
            assert found.others[score.name] == expected.final(score)


def test_a_new_hospital_is_put_beside_the_clients_of_the_run(there: Path) -> None:
    found = fairbloom.evaluate(there / "run", data_dir=there / "new")
    clients = fairbloom.load(there / "run").final()
    worse = {name for name, value in clients.items() if value < found.before["accuracy"]}
    assert set(found.served_worse) == worse
    assert found.would_be_worst is None  # 30 test rows do not decide it
    assert (found.client, found.train_examples, found.test_examples) == ("newtown", 120, 30)
    assert found.interval is not None
    assert found.interval[0] < found.before["accuracy"] < found.interval[1]
    assert found.after == {}
    assert found.kept is None


def test_a_hospital_with_other_patients_would_be_worst_served(there: Path, tmp_path: Path) -> None:
    write_hospital(tmp_path / "inverted" / "far.csv", 150, 5, inverted=True)
    found = fairbloom.evaluate(there / "run", data_dir=tmp_path / "inverted")
    assert found.would_be_worst is True
    assert any("far would be the worst served of 5" in each for each in found.sentences())


def test_a_single_file_will_do(there: Path) -> None:
    by_file = fairbloom.evaluate(there / "run", data_dir=there / "new" / "newtown.csv")
    assert by_file.before == fairbloom.evaluate(there / "run", data_dir=there / "new").before


def test_a_file_needs_no_column_that_names_the_site(there: Path, tmp_path: Path) -> None:
    files = sorted((there / "hospitals").iterdir())
    rows = [f"{file.stem},{row}" for file in files for row in file.read_text().splitlines()[1:]]
    (tmp_path / "all.csv").write_text("\n".join([f"site,{COLUMNS}", *rows]) + "\n")
    out = run(tmp_path / "all.csv", tmp_path / "run", **{"csv.client": "site"})
    found = fairbloom.evaluate(out, data_dir=there / "new", personalise=True, epochs=1)
    assert (found.client, found.test_examples) == ("newtown", 30)
    assert set(found.others["accuracy"]) == {"h0", "h1", "h2", "h3"}
    again = fairbloom.evaluate(out, data_dir=tmp_path / "all.csv", client="h1")
    assert again.before["accuracy"] == pytest.approx(again.others["accuracy"]["h1"])


def test_one_of_several_clients_is_named(there: Path) -> None:
    found = fairbloom.evaluate(there / "run", data_dir=there / "hospitals", client="h2")
    assert found.before["accuracy"] == pytest.approx(fairbloom.load(there / "run").final()["h2"])
    with pytest.raises(FairbloomError, match=r"data of 4 clients: say which one by --client: .*h0.* h3"):
        fairbloom.evaluate(there / "run", data_dir=there / "hospitals")
    with pytest.raises(FairbloomError, match=r"client = 'h9': .*no data of a client .* there are .*h0"):
        fairbloom.evaluate(there / "run", data_dir=there / "hospitals", client="h9")


def test_a_quantity_is_measured_too(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for name, slope in (("a", 2.0), ("b", 2.0), ("c", -2.0)):
        x = random.normal(0, 1, 80)
        lines = "\n".join(f"{x:.4f},{slope * x:.4f}" for x in x)
        file = tmp_path / ("new" if name == "c" else "old") / f"{name}.csv"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"x,target\n{lines}\n")
    found = fairbloom.evaluate(run(tmp_path / "old", tmp_path / "run"), data_dir=tmp_path / "new")
    assert found.interval is not None
    assert found.interval[0] < found.before["mae"] < found.interval[1]
    assert found.test_classes is None
    assert found.would_be_worst is True


def test_a_devices_folder_works_without_the_others_scores(there: Path, tmp_path: Path) -> None:
    settings, about = CONFIG.read(there / "run").settings, About("a run", ROUNDS, "checksum")
    keep_model(tmp_path / "kept", settings, AGREED.read(there / "run"), MODEL.read(there / "run"), about)
    found = fairbloom.evaluate(tmp_path / "kept", data_dir=there / "new")
    assert found.before == fairbloom.evaluate(there / "run", data_dir=there / "new").before
    assert found.would_be_worst is None
    assert any("take the run folder to compare" in each for each in found.sentences())


# What the test rows decide --------------------------------------------------------------------------------------------


def test_two_patients_of_forty_do_not_decide() -> None:
    """75 % and 80 % right, of the same forty."""
    targets = torch.ones(40, dtype=torch.int64)
    before, after = (as_outputs(torch.arange(40) < right) for right in (30, 32))
    assert paired_p_value(ACCURACY, is_highest, before, after, targets) == 0.5
    found = evaluated({"accuracy": 75.0}, {"accuracy": 80.0}, 40, {"accuracy": 0.5}, (60.0, 86.0))
    said = " ".join(found.sentences())
    assert "is better or worse by accuracy cannot be decided by 40 test examples: 75.0 % before, 80.0 % after" in said
    assert "Whether site would be the worst served of 3 cannot be decided: its accuracy is 75.0 %" in said
    assert "is better by" not in said
    assert found.would_be_worst is None


def as_outputs(positive: torch.Tensor) -> torch.Tensor:
    return torch.stack([~positive, positive], dim=1).float()


def evaluated(
    before: dict[str, float],
    after: dict[str, float],
    examples: int,
    p_values: dict[str, float],
    interval: tuple[float, float],
    worst: float = 70.0,
    scores: tuple[Score, ...] = (ACCURACY, AUC),
) -> Evaluation:
    others = {scores[0].name: {"a": worst, "b": 95.0 if scores[0].percent else 0.95}}
    return Evaluation(
        Path("run"), "site", "last", 10, examples, 2, scores, before, after, others, interval, p_values, 10, 1.0
    )


def test_a_clear_difference_is_said_with_its_score() -> None:
    found = evaluated({"accuracy": 50.0}, {"accuracy": 90.0}, 40, {"accuracy": 0.001}, (35.0, 65.0))
    said = " ".join(found.sentences())
    assert "is better by accuracy: 50.0 % before, 90.0 % after (p = 0.001)" in said
    assert "site would be the worst served of 3" in said
    assert found.would_be_worst is True


def test_another_score_that_falls_has_its_say() -> None:
    before, after = {"accuracy": 50.0, "auc": 0.68}, {"accuracy": 90.0, "auc": 0.55}
    found = evaluated(before, after, 40, {"accuracy": 0.001, "auc": 0.04}, (35.0, 65.0))
    assert "By auc it is the other way: 0.68 before, 0.55 after (p = 0.04)." in list(found.sentences())


def test_two_test_rows_decide_nothing() -> None:
    found = evaluated({"accuracy": 0.0}, {"accuracy": 100.0}, 2, {"accuracy": 0.001}, (0.0, 20.0))
    said = " ".join(found.sentences())
    assert found.would_be_worst is None
    assert said.count("cannot be decided") == 2


@pytest.mark.parametrize(("interval", "worst"), [((0.3, 0.5), True), ((0.5, 0.9), None), ((0.8, 0.9), False)])
def test_where_lower_is_better_the_worst_is_the_largest(interval: tuple[float, float], worst: bool | None) -> None:
    found = evaluated({"loss": 0.7}, {}, 40, {}, interval, worst=0.6, scores=(LOSS_SCORE,))
    found = replace(found, others={"loss": {"a": 0.6, "b": 0.2}})
    assert found.would_be_worst is (None if worst is None else not worst)


@pytest.mark.parametrize("score", [AUC, BALANCED_ACCURACY, LOSS_SCORE], ids=lambda score: score.name)
def test_paired_tests_hold_their_level(score: Score) -> None:
    measures: dict[Score, Measure] = {
        AUC: auc,
        BALANCED_ACCURACY: balanced_accuracy,
        LOSS_SCORE: partial(cross_entropy, reduction="none"),
    }
    random = torch.Generator().manual_seed(1)
    targets = (torch.arange(40) % 3 == 0).long()
    signal = as_outputs(targets == 1) * 2.0
    below = 0
    for _ in range(10):
        pair = [signal + torch.randn(40, 2, generator=random) for _ in range(2)]
        below += paired_p_value(score, measures[score], *pair, targets) < 0.05
    assert below <= 3  # more have a probability of 0.1 %
    noise = torch.randn(40, 2, generator=random)
    assert paired_p_value(score, measures[score], noise, 3 * signal + noise, targets) < 0.01
    interval = interval_of(score, measures[score], signal + noise, targets)
    assert interval is not None
    value = torch.as_tensor(measures[score](signal + noise, targets)).double().mean().item()
    assert interval[0] < value < interval[1]


def test_evaluate_goes_by_the_score_of_the_run(there: Path, tmp_path: Path) -> None:
    out = run(there / "hospitals", tmp_path / "run", score="auc")
    found = fairbloom.evaluate(out, data_dir=there / "new", personalise=True, epochs=1)
    assert found.score.name == "auc"
    assert found.interval is not None
    assert found.interval[0] <= found.before["auc"] <= found.interval[1]
    assert found.p_values.keys() == found.after.keys()
    assert all(0.0 < p <= 1.0 for p in found.p_values.values())


# Small ones ---------------------------------------------------------------------------------------------------------


def test_a_number_of_five_rows_of_one_class_means_nothing(there: Path, tmp_path: Path) -> None:
    header, *lines = (there / "new" / "newtown.csv").read_text().splitlines()
    sick = [line for line in lines if line.endswith(",sick")]
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "tiny.csv").write_text("\n".join([header, *sick[:5]]) + "\n")
    found = fairbloom.evaluate(there / "run", data_dir=tmp_path / "tiny")
    assert (found.train_examples, found.test_examples, found.test_classes) == (4, 1, 1)
    said = " ".join(found.sentences())
    assert "There is 1 test example: the numbers mean nothing" in said
    assert "All test examples are of one class" in said
    assert "auc" not in found.before


# What does not fit --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("age,bp,sex,target", "age,pressure,sex,target", "it lacks the columns bp and it has the columns pressure"),
        ("age,bp,sex,target", "age,bp,sex,outcome", "target"),
        (",sick\n", ",ill\n", "'ill'"),
        (".1,", ".1 years,", "years"),
    ],
    ids=["a column", "the target", "a class", "texts"],
)
def test_data_that_do_not_fit_are_refused_with_the_reason(
    there: Path, tmp_path: Path, old: str, new: str, words: str
) -> None:
    text = (there / "new" / "newtown.csv").read_text()
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "newtown.csv").write_text(text.replace(old, new))
    with pytest.raises(FairbloomError, match=r"the data of newtown do not fit the run in .*") as refused:
        fairbloom.evaluate(there / "run", data_dir=tmp_path / "wrong")
    assert words in str(refused.value)


def test_a_category_that_no_client_had_counts_as_none_of_them(there: Path, tmp_path: Path) -> None:
    text = (there / "new" / "newtown.csv").read_text()
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "newtown.csv").write_text(text.replace(",m,", ",unknown,"))
    task, _ = data_of(there / "run", tmp_path / "others")
    inputs, _ = task.splits("newtown").test[:]
    assert set(map(tuple, inputs[:, 2:].tolist())) == {(1.0, 0.0), (0.0, 0.0)}  # f, m
    assert fairbloom.evaluate(there / "run", data_dir=tmp_path / "others").test_examples == len(inputs)


def test_what_cannot_be_evaluated_is_refused_with_a_remedy(there: Path, tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match="holds no run: name a run folder"):
        fairbloom.evaluate(tmp_path, data_dir=there / "new")
    with pytest.raises(FairbloomError, match="reads its data from a folder: name it by --data-dir"):
        fairbloom.evaluate(there / "run")
    with pytest.raises(FairbloomError, match="there is no such folder or file"):
        fairbloom.evaluate(there / "run", data_dir=there / "nowhere")
    with pytest.raises(FairbloomError, match=r"model = 'lst': did you mean last\?"):
        fairbloom.evaluate(there / "run", data_dir=there / "new", model="lst")
    with pytest.raises(FairbloomError, match=r"epochs says how .*--personalise"):
        fairbloom.evaluate(there / "run", data_dir=there / "new", epochs=3)
    with pytest.raises(FairbloomError, match=r"lambda = nan: .*at least 0"):
        fairbloom.evaluate(there / "run", data_dir=there / "new", personalise=True, strength=float("nan"))
    with pytest.raises(FairbloomError, match="is there already: name another folder by --out"):
        fairbloom.evaluate(there / "run", data_dir=there / "new", out=there / "new")
    alone = run(there / "hospitals", tmp_path / "alone", method="local")
    with pytest.raises(FairbloomError, match=r"trains no global model.*: evaluate a run of another method, ditto say"):
        fairbloom.evaluate(alone, data_dir=there / "new")
    unfinished = shutil.copytree(there / "run", tmp_path / "unfinished")
    (unfinished / "model.safetensors").unlink()
    with pytest.raises(FairbloomError, match="is not finished: evaluate it when it is over"):
        fairbloom.evaluate(unfinished, data_dir=there / "new")


# A personal model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [0.0, 2.0])
def test_the_personal_model_is_that_of_one_epoch_of_ditto(there: Path, tmp_path: Path, strength: float) -> None:
    """x - rate * (gradient + lambda * (x - w)), batch by batch, in the order of the round after the last."""
    fairbloom.evaluate(
        there / "run", data_dir=there / "new", personalise=True, epochs=1, strength=strength, out=tmp_path / "site"
    )
    task, settings = data_of(there / "run", there / "new")
    model, examples = task.model(), task.splits("newtown").train
    received = {name: torch.from_numpy(array) for name, array in MODEL.read(there / "run").items()}
    model.load_state_dict(received)
    order = batch_order(settings, ROUNDS + 1, "newtown", personal=True).permutation(len(examples))
    for batch in np.split(order, range(settings.batch_size, len(order), settings.batch_size)):
        inputs, targets = examples[torch.from_numpy(batch)]
        model.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        with torch.no_grad():
            for name, each in model.named_parameters():
                each -= settings.learning_rate * (each.grad + strength * (each - received[name]))
    found = load_predictor(tmp_path / "site", model="personal").module.state_dict()
    for name, array in model.state_dict().items():
        torch.testing.assert_close(found[name], array, rtol=1e-5, atol=1e-6)


def test_before_and_after_are_those_of_the_kept_models(there: Path, tmp_path: Path) -> None:
    data = write_hospital(tmp_path / "far.csv", 150, 5, inverted=True)
    found = fairbloom.evaluate(there / "run", data_dir=data, personalise=True, out=tmp_path / "site")
    task, _ = data_of(there / "run", data)
    inputs, targets = task.splits("far").test[:]
    for model, said in (("last", found.before), ("personal", found.after)):
        outputs = load_predictor(tmp_path / "site", model=model).outputs(inputs)
        right = (outputs.argmax(dim=1) == targets).double().mean().item()
        assert said["accuracy"] == pytest.approx(100.0 * right)
    assert found.before != found.after
    assert (found.epochs, found.strength, found.kept) == (10, 1.0, tmp_path / "site")


def test_personalising_helps_a_hospital_with_other_patients(there: Path, tmp_path: Path) -> None:
    write_hospital(tmp_path / "inverted" / "far.csv", 150, 5, inverted=True)
    found = fairbloom.evaluate(
        there / "run", data_dir=tmp_path / "inverted", personalise=True, epochs=20, strength=0.01
    )
    assert found.after["accuracy"] > found.before["accuracy"] + 30.0
    assert any("is better" in each for each in found.sentences())


@pytest.mark.parametrize(
    ("settings", "strength"),
    [({"method": "ditto", "ditto.lam": 0.25}, 0.25), ({"personal-lambda": 0.5}, 0.5), ({}, 1.0)],
)
def test_the_pull_is_by_default_that_of_the_run(
    there: Path, tmp_path: Path, settings: dict[str, Any], strength: float
) -> None:
    out = run(there / "hospitals", tmp_path / "run", **settings)
    assert fairbloom.evaluate(out, data_dir=there / "new", personalise=True, epochs=1).strength == strength


def test_the_kept_folder_predicts_and_is_for_its_owner_alone(there: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    told = ("--data-dir", there / "new", "--personalise", "--epochs", "2", "--out", out)
    assert command("evaluate", there / "run", *told) == 0
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o600}
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    for model in ("last", "personal"):
        file = tmp_path / f"{model}.csv"
        assert command("predict", out, there / "new" / "newtown.csv", "--out", file, "--model", model) == 0
        header, *rows = file.read_text().splitlines()
        assert header == "age,bp,sex,target,predicted_target,probability_sick,probability_well"
        assert len(rows) == 150


def test_before_and_after_are_one_table(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ("evaluate", there / "run", "--data-dir", there / "new", "--personalise", "--epochs", "2")
    assert command(*told) == 0
    printed = capsys.readouterr().out
    table = printed[: printed.index("newtown would")]
    for words in ("newtown, the run's model", "newtown, its personal model", "worst of the run's 4 clients"):
        assert words in table
    assert command(*told, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["clients"]["accuracy"]) == {"h0", "h1", "h2", "h3"}
    assert (found["epochs"], found["lambda"]) == (2, 1.0)
    assert found["before"].keys() == found["after"].keys()


# A device's folder that is damaged ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 100, None], ids=["empty", "cut", "a flipped bit"])
def test_a_damaged_kept_model_is_refused_with_its_remedy(there: Path, tmp_path: Path, cut: int | None) -> None:
    fairbloom.evaluate(there / "run", data_dir=there / "new", out=tmp_path / "site")
    file = tmp_path / "site" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content if cut is None else content[:cut])
    with pytest.raises(FairbloomError, match=r"is damaged: .*delete it; .* submitted once more"):
        load_predictor(tmp_path / "site")
    file.unlink()
    with pytest.raises(FairbloomError, match=r"has no model\.safetensors .* submitted once more"):
        load_predictor(tmp_path / "site")
    with pytest.raises(FairbloomError, match="take model last or personal"):
        load_predictor(tmp_path / "site", model="best")
