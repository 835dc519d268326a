"""The positive one of two classes: how it is chosen, recorded, kept and named."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import fairbloom
from fairbloom.tables.positive import choose_positive
from fairbloom.tables.schema import parse_image_schema, parse_schema
from fairbloom.tasks import Examples, Setup, Splits, Task, columns
from fairbloom.tasks.measures import group_scores_of_classes
from fairbloom.tasks.score import log_positive
from fairbloom.tasks.targets import POSITIVE_WORDS
from tests.tables.helpers import SCHEMA, Folder, csv_of, inferred, load, schema_with

STATED = schema_with(('target = "target"', 'target = "target"\npositive = 1'))


def patients(ill: int, well: int, names: Sequence[str] = ("ill", "well")) -> str:
    """Return a table of patients by sex, in which age says a little about the target."""
    rows = [(k % 7, "FM"[k % 2], names[0]) for k in range(ill)]
    rows += [((k + 3) % 7, "FM"[k % 2], names[1]) for k in range(well)]
    return "age,sex,target\n" + "".join(f"{age},{sex},{target}\n" for age, sex, target in rows)


# The choice ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "counts", "chosen", "reason"),
    [
        (("ill", "well"), (90, 10), "ill", "by its name"),
        (("no", "yes"), (10, 90), "yes", "by its name"),
        (("negative", "Positive"), (10, 90), "Positive", "by its name"),
        (("alive", "DEAD"), (10, 90), "DEAD", "by its name"),
        (("none", "relapse"), (10, 90), "relapse", "by its name"),
        (("0", "1"), (10, 90), "1", "by its name"),
        (("-1", "1"), (10, 90), "1", "by its name"),
        (("False", "True"), (10, 90), "True", "by its name"),
        (("1", "2"), (90, 10), "2", "the rarer one"),
        (("dead", "ill"), (10, 90), "dead", "the rarer one"),
        (("left", "right"), (10, 90), "left", "the rarer one"),
        (("left", "right"), (50, 50), "right", "the second one"),
    ],
)
def test_a_class_is_positive_by_its_name_or_rarity(
    classes: Sequence[str], counts: Sequence[int], chosen: str, reason: str
) -> None:
    assert choose_positive(classes, counts, POSITIVE_WORDS) == (chosen, reason)


@pytest.mark.parametrize("counts", [(10, 90), (90, 10), (50, 50)])
@pytest.mark.parametrize(
    ("absent", "present"),
    [
        ("no diabetes", "diabetes"),
        ("Non-diabetic", "diabetic"),
        ("nonsmoker", "smoker"),
        ("notckd", "ckd"),
        ("No dementia (normal)", "dementia"),
        ("HIV (-)", "HIV (+)"),
        ("not frail", "frail"),
        ("normal", "arrhythmia"),
        ("Healthy controls", "schizophrenia"),
        ("none", "mild"),
        ("HIV−", "HIV+"),
        ("HIV_negative", "HIV_reactive"),
        ("disease-free", "recurrent"),
        ("without sepsis", "sepsis"),
        ("unaffected", "carrier"),
        ("asymptomatic", "symptomatic"),
        ("kein Sturz", "Sturz"),
        ("sans diabète", "diabète"),
        ("0", "2"),
        ("no evidence", "not survived"),
        ("normal", "unstable"),
        ("control", "uncontrolled"),
        ("healthy", "non-responder"),
    ],
)
def test_an_absence_is_never_chosen(absent: str, present: str, counts: tuple[int, int]) -> None:
    assert choose_positive((absent, present), counts, POSITIVE_WORDS)[0] == present
    assert choose_positive((present, absent), counts, POSITIVE_WORDS)[0] == present


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("not survived", "survived"),
        ("uncontrolled", "controlled"),
        ("non-responder", "responder"),
        ("unstable", "stable"),
        ("normal", "no diabetes"),
        ("north", "nodule"),
        ("unit", "union"),
        ("information", "controllable"),
    ],
)
def test_others_are_positive_by_rarity(first: str, second: str) -> None:
    assert choose_positive((first, second), (10, 90), POSITIVE_WORDS)[0] == first
    assert choose_positive((first, second), (90, 10), POSITIVE_WORDS)[0] == second


def test_a_draft_states_the_positive_class_and_asks(folder: Folder) -> None:
    there = folder(a=patients(30, 20), b=patients(30, 10))
    text = inferred(there)
    assert 'positive = "ill"  # by its name: is it the class to find?' in text
    assert parse_schema(text).positive == "ill"
    assert load(there).positive_name == "ill"
    assert "positive" not in inferred(
        folder(a=patients(30, 20), b=patients(30, 10), c=patients(9, 9, ("ill", "dead")))
    )


def test_folders_of_images_have_a_positive_class_too(tmp_path: Path) -> None:
    for client in "ab":
        for name, count in (("sick", 4), ("healthy", 3)):
            (tmp_path / client / name).mkdir(parents=True)
            for k in range(count):
                Image.new("L", (4, 4)).save(tmp_path / client / name / f"{k}.png")
    settings = {"task": "image-folder", "data-dir": str(tmp_path)}
    task = fairbloom.tasks.load_task({**settings, "scores": "f1"})
    assert parse_image_schema(task.schema).positive == "sick"
    assert [each.title for each in task.scores][-1] == "f1 (sick)"
    three = task.schema.replace('"healthy"', '"healthy", "unknown"')
    with pytest.raises(fairbloom.FairbloomError, match="positive = 'sick': it must be one of two"):
        parse_image_schema(three)


# In a run -----------------------------------------------------------------------------------------


def run(there: Path, out: str, **more: Any) -> fairbloom.Run:
    given = {"device": "cpu", "progress": False, "out": there.parent / out, **more}
    given["settings"] = {"smallest-group": 1, **given.get("settings", {})}
    return fairbloom.run("csv", data_dir=there, **given)


def grouped(text: str) -> str:
    """Return a schema with groups by sex."""
    return text.replace('target = "target"', 'target = "target"\ngroups = ["sex"]', 1)


def test_heads_of_tables_name_the_positive_class(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    there = folder(a=patients(60, 40), b=patients(40, 60))
    settings = {"scores": "sensitivity,specificity,f1"}
    found = run(there, "run", rounds=5, schema=grouped(inferred(there)), settings=settings)
    titles = {score.name: score.title for score in found.scores}
    assert titles["sensitivity"] == "sensitivity (ill), %"
    assert titles["specificity"] == "specificity (ill), %"
    assert titles["f1"] == "f1 (ill)"
    found.show()
    shown = capsys.readouterr().out
    for title in (*titles.values(), "selection rate (ill), %", "true positive rate (ill), %"):
        assert title in shown
    other = grouped(inferred(there)).replace('positive = "ill"', 'positive = "well"')
    turned = run(there, "turned", rounds=5, schema=other, settings=settings)
    shares = [{score.name: each.final(score) for score in each.scores} for each in (found, turned)]
    run(there, "by", rounds=1, settings={**settings, "score": "sensitivity"}).show()
    assert "with a mean test sensitivity (ill) of" in " ".join(capsys.readouterr().out.split())
    assert shares[0]["sensitivity"] == shares[1]["specificity"] != shares[1]["sensitivity"]
    assert shares[0]["accuracy"] == shares[1]["accuracy"]


def test_a_continued_run_keeps_its_positive_class(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another version would choose the other class."""
    lines = patients(60, 40), patients(40, 60)
    there = folder(a=lines[0], b=lines[1])
    settings = {"scores": "sensitivity"}
    with monkeypatch.context() as other:
        other.setattr(columns, "POSITIVE_WORDS", frozenset({"well"}))
        expected = run(there, "whole", rounds=2, settings=settings)
        run(there, "parts", rounds=1, settings=settings)
    fairbloom.tasks.forget_tasks()
    continued = run(there, "parts", rounds=2, settings=settings)
    assert [score.of for score in continued.scores][-1] == "well"
    name = continued.scores[-1]
    assert continued.final(name) == expected.final(name)
    assert run(there, "new", rounds=2, settings=settings).scores[-1].of == "ill"


def test_an_unstated_positive_class_is_one_warning(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    there = folder(a=csv_of(30), b=csv_of(30, 1))
    settings = {"scores": "f1,sensitivity"}
    for seed in range(2):
        run(there, f"stated{seed}", rounds=1, schema=STATED, settings=settings, seed=seed)
    assert "positive class" not in caplog.text
    plain = SCHEMA
    for seed in range(2):
        run(there, f"unstated{seed}", rounds=1, schema=plain, settings=settings, seed=seed)
    assert [each.getMessage() for each in caplog.records if "positive" in each.getMessage()] == [
        "f1, sensitivity are of class '1', the second one, because no positive class is stated:"
        " say it by positive in the schema"
    ]


def test_the_log_names_the_positive_class_in_one_line(
    folder: Folder, said: pytest.LogCaptureFixture
) -> None:
    there = folder(a=patients(30, 40, ("septic", "free")), b=patients(20, 40, ("septic", "free")))
    for seed in range(2):
        run(there, f"chosen{seed}", rounds=1, seed=seed)
    for _ in range(2):
        log_positive(load(there), schema=inferred(there))
    assert [each for each in dict.fromkeys(said.messages) if "positive" in each] == [
        "the positive class is 'septic', as the data suggest: another one is positive in a schema",
        "the positive class is 'septic'",
    ]


def test_a_task_of_ones_own_states_its_positive_class(caplog: pytest.LogCaptureFixture) -> None:
    examples = Examples(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]))
    task = Task(
        clients=("a", "b"),
        model=lambda: torch.nn.Linear(1, 2),
        loss=lambda outputs, targets: outputs[:, 0],
        splits=lambda client: Splits(examples, examples),
        classes=2,
        groupings={"sex": ("F", "M")},
        group_scores=group_scores_of_classes(2),
    )
    log_positive(replace(task, positive=1), ["fairfed"])
    assert not caplog.records
    log_positive(task, ["fairfed"])
    assert "selection rate, true positive rate, fairfed are of class '1'" in caplog.text
    assert "Task(…, positive=0), or 1," in caplog.text


def test_known_tasks_state_their_positive_class() -> None:
    found = fairbloom.tasks.TASKS["adult"].load(Setup.of({"clients": 2, "partition": "iid"}), {})
    assert (found.positive, found.positive_name) == (1, ">50K")
