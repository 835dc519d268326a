"""A device sends no number of few rows, and no two numbers that differ by few rows."""

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fairbloom.client.app import app
from fairbloom.client.ledger import LEDGER, Ledger
from fairbloom.client.settings import accepted_settings
from fairbloom.errors import FairbloomError
from fairbloom.server.app import app as server
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.tasks import load_task
from tests.simulation.helpers import table
from tests.tasks.tables import csv_of

from .hospital import PATIENTS, Device, write_hospital

FILL = {"csv.missing": "fill"}
BOTH = {**FILL, "csv.standardise": "together"}


@pytest.fixture
def device(tmp_path: Path) -> Device:
    write_hospital(tmp_path / "data")
    return Device(tmp_path)


# Floors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.99, 0.995])
def test_no_mean_of_a_few_training_rows_leaves(device: Device, share: float) -> None:
    with pytest.raises(FairbloomError, match=r"at least 20 training rows.* csv\.standardise=client") as refusal:
        device.about(**BOTH, **{"test-share": share})
    assert "limits.rows" in str(refusal.value)
    assert device.about(**FILL, **{"test-share": share})["moments"] == {}  # the remedy
    assert len(device.about(**BOTH)["moments"]) == 4


def test_the_owner_alone_lowers_the_floor(tmp_path: Path) -> None:
    write_hospital(tmp_path / "data")
    asked = {**BOTH, "test-share": 0.97, "csv.smallest-category": 1, "smallest-group": 1}
    with pytest.raises(FairbloomError, match="at least 20 training rows"):
        Device(tmp_path).about(**asked)
    assert Device(tmp_path, limit_rows=3).about(**asked)["moments"]
    with pytest.raises(FairbloomError, match="at least 30 training rows"):
        Device(tmp_path, limit_rows=30).about(**BOTH, **{"test-share": 0.9})


def test_rare_values_of_a_column_are_no_names_of_classes(device: Device) -> None:
    with pytest.raises(FairbloomError, match=r"a class of fewer than 20 rows.*csv\.classes"):
        device.about(**FILL, **{"csv.target": "age", "csv.ignore": "target"})
    with pytest.raises(FairbloomError, match="a class of fewer than 20 rows"):
        device.about(**FILL, **{"csv.target": "ward", "csv.ignore": "target"})
    stated = {"csv.target": "ward", "csv.ignore": "target", "csv.classes": "north,south,hospice"}
    assert device.about(**FILL, **stated)["target"]["classes"] == ["north", "south", "hospice"]


def test_a_refused_class_does_not_say_whose_it_is(device: Device) -> None:
    asked = {**FILL, "csv.target": "ward", "csv.ignore": "target", "csv.classes": "north,south"}
    with pytest.raises(FairbloomError, match="holds a value that is none of the stated classes") as refusal:
        device.about(**asked)
    assert "line" not in str(refusal.value)


def test_no_model_of_a_few_rows_leaves(device: Device) -> None:
    with pytest.raises(FairbloomError, match="at least 5 training rows"):
        device.train(**FILL, **{"test-share": 0.995})


def test_scores_need_five_rows_and_five_of_each_class(device: Device) -> None:
    assert device.evaluate(**FILL, **{"test-share": 4 / PATIENTS}) == {"num-examples": 4}
    few = device.evaluate(**FILL, **{"test-share": 6 / PATIENTS, "seed": 1})
    assert few.keys() == {"num-examples", "loss", "accuracy"}
    assert {"loss", "accuracy", "balanced-accuracy", "auc"} < device.evaluate(**FILL, seed=2).keys()


def test_a_device_with_few_rows_is_listed_without_scores(tmp_path: Path) -> None:
    asked = Settings.of({"task": "csv", "device": "cpu", "clients": 2, "num-rounds": 2, "out": str(tmp_path / "run")})
    grid = InProcessGrid(app, accepted_settings(asked.run_config()), 2)
    for context, (name, rows) in zip(grid.contexts.values(), {"lund": 60, "oslo": 20}.items(), strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.csv").write_text(csv_of(rows, rows))
        context.node_config = {"partition-id": 0, "name": name, "data-dir": str(tmp_path / name)}
    server(grid, Context(1, 1, {}, RecordDict(), asked.run_config()))
    rows = {row["client"]: row for row in table(tmp_path / "run" / "clients.csv")}
    assert float(rows["lund"]["test_accuracy_of_global_model"]) > 0.0
    assert (rows["oslo"]["test_accuracy_of_global_model"], rows["oslo"]["test_loss_of_global_model"]) == ("", "")


def test_a_loss_of_few_training_rows_is_refused_by_name(device: Device) -> None:
    asked = {**FILL, "test-share": 0.2}
    assert "loss-before" in device.train("loss-before", **asked)
    with pytest.raises(FairbloomError, match="the rows behind 'its loss' differ by fewer than 20"):
        device.train("loss-before", **FILL, **{"test-share": 0.21})


def test_in_process_no_floor_applies(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("age,target\n" + "".join(f"{30 + k},{k % 2}\n" for k in range(5)))
    run = Settings.of({"task": "csv", "data-dir": str(tmp_path), "csv.standardise": "together"}).run_config()
    task = load_task(run)
    assert task.about is not None
    assert all(task.about(name)["moments"]["age"] for name in ("a", "b"))


# The ledger -----------------------------------------------------------------------------------------------------------


def test_thresholds_that_differ_by_one_patient_are_counted_once(device: Device) -> None:
    first = device.evaluate(**FILL, **{"csv.group": "chol>=237", "test-share": 0.5})
    second = device.evaluate(**FILL, **{"csv.group": "chol>=238", "test-share": 0.5})
    again = device.evaluate(**FILL, **{"csv.group": "chol>=237", "test-share": 0.5})
    apart = device.evaluate(**FILL, **{"csv.group": "chol>=260", "test-share": 0.5})
    assert {"count[chol>=237:>=237]", "positives[chol>=237:>=237]"} < first.keys()
    assert not any("[" in name for name in second)
    assert first == again  # a run that is continued, or repeated, gets what it got
    assert "count[chol>=260:>=260]" in apart


CHANGES = {"ignore": "age", "categories": "age", "decimal": ",", "standardise": "together", "encoding": "latin-1"}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_are_the_same_whatever_a_run_makes_of_them(device: Device, change: str) -> None:
    asked = {**FILL, "test-share": 0.5}
    assert "count[chol>=237:>=237]" in device.evaluate(**asked, **{"csv.group": "chol>=237"})
    assert not any(
        "[" in name for name in device.evaluate(**asked, **{"csv.group": "chol>=238", f"csv.{change}": CHANGES[change]})
    )


@pytest.mark.parametrize("restarted", [False, True])
def test_a_file_without_one_patient_gives_no_second_mean(tmp_path: Path, restarted: bool) -> None:
    write_hospital(tmp_path / "data")
    asked = {**BOTH, "test-share": 1 / PATIENTS}
    Device(tmp_path).about(**asked)
    write_hospital(tmp_path / "data", skip=1)
    if restarted:
        from fairbloom.client import gate

        gate.open_ledger.cache_clear()
    with pytest.raises(FairbloomError, match="differ by fewer than 20"):
        Device(tmp_path).about(**asked)


def test_the_ledger_holds_neither_rows_nor_anothers_key(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_hospital(tmp_path / name / "data")
        Device(tmp_path / name).about(**BOTH)
    books = [np.load(tmp_path / name / "state" / LEDGER) for name in ("a", "b")]
    assert not np.intersect1d(books[0]["rows"], books[1]["rows"]).size
    assert (tmp_path / "a" / "state" / LEDGER).stat().st_mode & 0o077 == 0


def test_a_damaged_ledger_lets_no_number_out(device: Device) -> None:
    device.about(**BOTH)
    (device.state / LEDGER).write_bytes(b"torn")
    with pytest.raises(FairbloomError, match="its ledger of the numbers that have left it cannot be read"):
        device.about(**BOTH)
    (device.state / LEDGER).unlink()  # the remedy
    assert device.about(**BOTH)["moments"]


def test_two_parts_do_not_show_together_what_one_would(device: Device) -> None:
    assert "loss" in device.evaluate(**FILL, **{"test-share": 52 / PATIENTS})
    parts = device.evaluate(**FILL, **{"test-share": 26 / PATIENTS, "validation-share": 27 / PATIENTS})
    assert "loss" in parts
    assert "loss-validation" not in parts  # with the 26 it would be the loss of 53, of which 52 are known


def test_a_small_site_sends_the_scores_of_each_of_its_parts(tmp_path: Path) -> None:
    write_hospital(tmp_path / "data", skip=PATIENTS - 60)
    asked = {**FILL, "validation-share": 0.1, "test-share": 0.2}
    device = Device(tmp_path)
    first = device.evaluate("", "train-loss", **asked)
    assert {"loss", "loss-validation", "train-loss"} < first.keys()
    assert device.evaluate("", "train-loss", **asked) == first


def test_groups_do_not_show_together_what_the_whole_would(device: Device) -> None:
    assert "loss" in device.evaluate(**FILL, **{"test-share": 0.5})
    near = device.evaluate(**FILL, **{"test-share": 0.505, "csv.group": "age>=55"})
    assert near.keys() == {"num-examples"}


def test_a_loss_of_training_rows_is_left_out_of_an_evaluation(device: Device) -> None:
    asked = {**FILL, "test-share": 0.2}
    assert "train-loss" in device.evaluate("", "train-loss", **asked)
    near = device.evaluate("", "train-loss", **FILL, **{"test-share": 0.21})
    assert near.keys() == {"num-examples"}


def test_disjoint_rows_and_other_numbers_are_not_compared(tmp_path: Path) -> None:
    ledger, rows = Ledger(tmp_path), np.arange(30, dtype=np.uint64)
    assert ledger.admit([("a", rows[:25])], 20)
    assert ledger.admit([("a", rows[25:]), ("b", rows[:24])], 20)
    assert not ledger.admit([("c", rows[:20]), ("a", rows[:24])], 20)
    assert ledger.admit([("c", rows[:19])], 20)  # none of a refused question is remembered
    assert Ledger(tmp_path).admit([("a", rows[:25])], 20)
    assert not Ledger(tmp_path).admit([("a", rows[:26])], 20)
    (tmp_path / LEDGER).unlink()  # whoever deletes it begins anew, in a process that goes on as well
    assert not ledger.holds("a", rows[:25])
    assert ledger.admit([("a", rows[:26])], 20)


# A hundred hostile settings -------------------------------------------------------------------------------------------


def hostile() -> Iterator[dict[str, Any]]:
    """Yield settings by which a run may try to see single rows."""
    for share in (0.004, 0.02, 0.1, 0.2, 0.203, 0.21, 0.22, 0.5, 0.505, 0.9, 0.98, 0.985, 0.99, 0.995):
        yield {**BOTH, "test-share": share}
        yield {**FILL, "test-share": share, "validation-share": 0.004, "scores": "f1,sensitivity,specificity"}
    for seed in range(12):
        yield {**BOTH, "seed": seed}
    for share in (0.004, 0.05, 0.055, 0.1, 0.3):
        yield {**FILL, "validation-share": share, "scores": "f1"}
    for number in (*range(230, 250), 180, 181, 298, 299):
        yield {**FILL, "csv.group": f"chol>={number}", "test-share": 0.5, "smallest-group": 1}
    for group in ("ward", "ca", "age", "sex", "sex>=1", "age>30", "age<80", "ca>=1", "ca>=2", "sex,ward", "chol<=237"):
        yield {**FILL, "csv.group": group, "test-share": 0.5, "smallest-group": 1, "csv.smallest-category": 1}
    for ignored in ("age", "sex", "chol", "ca", "ward", "age,sex", "ca,ward"):
        yield {"csv.missing": "drop", "csv.ignore": ignored, "csv.standardise": "together"}
        yield {"csv.missing": "fill", "csv.ignore": ignored, "csv.group": "sex", "csv.positive": "0"}
    for target in ("age", "sex", "chol", "ca", "ward"):
        yield {**BOTH, "csv.target": target}
        yield {**FILL, "csv.target": target, "csv.kind": "regression"}
        yield {**FILL, "csv.target": target, "csv.kind": "classification"}
    for categories in ("age", "chol", "ca", "sex", "ward", "age,chol,ca,sex"):
        yield {**FILL, "csv.categories": categories, "csv.smallest-category": 1}
    for client in ("ward", "sex", "ca", "chol"):
        yield {**FILL, "csv.client": client}


def test_a_hundred_hostile_settings_show_no_few_rows(device: Device) -> None:
    asked = list(hostile())
    assert len(asked) >= 100
    behind: dict[str, set[frozenset[int]]] = {}
    answered = 0
    for settings in asked:
        try:
            about = device.about(**settings)
        except FairbloomError:
            continue
        for name, rows in sent_by(device, settings, about):
            answered += 1
            assert len(rows) >= (5 if name == "scores" else 20), (settings, name)
            if ": " in name:  # a name, which shows no difference of numbers
                continue
            kind = "rows" if name in ("scores", "group") else name
            behind.setdefault(kind, set()).add(frozenset(rows))
    assert answered > 100
    for kind, sets in behind.items():
        for one, other in combinations(sets, 2):
            assert not one & other or len(one ^ other) >= 20, kind


def sent_by(device: Device, settings: dict[str, Any], about: dict[str, Any]) -> Iterator[tuple[str, set[int]]]:
    """Yield what each number is that a device sends, and the rows behind it, worked out in process from the file."""
    rows = [line.split(",") for line in (device.data / "lund.csv").read_text().splitlines()]
    columns = {name: [row[place] for row in rows[1:]] for place, name in enumerate(rows[0])}
    agreed = device.agree(about)
    run = Settings.of({"task": "csv", "data-dir": str(device.data), **settings}).run_config()
    splits = load_task({**run, "agreed": agreed}).splits("lund")
    ignored = settings.get("csv.ignore", "").split(",")
    usable = [
        place
        for place in range(len(rows) - 1)
        if columns[settings.get("csv.target", "target")][place]
        and (settings["csv.missing"] == "fill" or all(columns[name][place] for name in columns if name not in ignored))
    ]
    train, test = ([usable[place] for place in part.rows.tolist()] for part in splits)  # type: ignore[union-attr]
    for column in about["moments"]:
        yield f"mean of {column}", {row for row in train if columns[column][row]}
    if about["target"]["moments"]:
        yield f"mean of {settings.get('csv.target')}", set(train)
    for column, categories in about["categories"].items():
        for category in set(categories) - {"other"}:
            yield f"{column}: {category}", {row for row in train if columns[column][row] == category}
    try:
        metrics = device.evaluate(agreed, **settings)
    except FairbloomError:
        return
    if "loss" in metrics:
        yield "scores", set(test)
    task = load_task({**run, "agreed": agreed})
    places = splits.test.group_places()
    for number, (grouping, groups) in enumerate(task.groupings.items()):
        assert places is not None
        for place, group in enumerate(groups):
            members = {row for row, of in zip(test, places[:, number].tolist(), strict=True) if of == place}
            if f"count[{grouping}:{group}]" in metrics:
                assert metrics[f"count[{grouping}:{group}]"] == len(members)
                yield "group", members
            if f"positives[{grouping}:{group}]" in metrics:
                targets = dict(zip(test, splits.test.all_targets.tolist(), strict=True))
                positive = {row for row in members if targets[row] == task.positive}
                assert metrics[f"positives[{grouping}:{group}]"] == len(positive)
                yield "group", positive


def test_counts_of_fairfed_and_fcfl_are_of_enough_rows_too(device: Device) -> None:
    names = ("positives-0", "positives-1", "hits-0", "hits-1")
    asked = {**FILL, "csv.group": "sex>=1", "smallest-group": 1}
    few = device.train(*names, **asked, **{"test-share": 0.8})
    enough = device.train(*names, **asked, **{"test-share": 0.1})
    near = device.train(*names, **asked, **{"test-share": 0.11})
    assert [few[name] for name in names] == [near[name] for name in names] == [0, 0, 0, 0]
    assert min(enough["positives-0"], enough["positives-1"]) >= 20


# What the owner reads -------------------------------------------------------------------------------------------------


def test_the_log_says_what_was_asked_sent_and_held_back(device: Device) -> None:
    device.evaluate(**FILL, **{"test-share": 6 / PATIENTS, "seed": 1})
    with pytest.raises(FairbloomError):
        device.about(**BOTH, **{"test-share": 0.99})
    entries = [json.loads(line) for line in (device.state / "log.jsonl").read_text().splitlines()]
    assert [each["asked"] for each in entries] == ["about", "evaluate", "about"]
    assert entries[0]["settings"]["task"] == "csv"
    assert entries[1]["sent"]["metrics"]["num-examples"] == 6
    assert "a class has fewer than 5" in entries[1]["held-back"][0]
    assert "at least 20 training rows" in entries[2]["refused"]
