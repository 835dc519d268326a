"""Clients from CSV files: how columns become inputs, and what the clients tell and agree on."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import ACCURACY
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tasks import Examples, Setup, check_data, describe_data, load_task
from fairbloom.tasks.files.columns import agree
from fairbloom.tasks.files.targets import sort_classes
from fairbloom.tasks.measures import AUC, BALANCED_ACCURACY, MAE, R2, RMSE
from fairbloom.tasks.partition import split

from .tables import Folder, agreed, config, csv_of, told_by


def everything(examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    return examples[0 : len(examples)]


# Clients ------------------------------------------------------------------------------------------------------------


def test_a_client_has_its_files_name_without_hidden_files(folder: Folder) -> None:
    there = folder(**{"site b": csv_of(20), "Site-A": csv_of(20), "._site": b"\x00\xff", "c.d": csv_of(20)})
    (there / "notes.md").write_text("nothing")
    assert load_task(config(there)).clients == ("Site-A", "c.d", "site b")


def test_one_file_with_a_client_column_equals_a_file_each(folder: Folder, tmp_path: Path) -> None:
    apart = {"a": csv_of(20, 1), "b": csv_of(30, 2)}
    rows = [(name, line) for name, text in apart.items() for line in text.splitlines()[1:]]
    mixed = [rows[k] for k in sorted(range(len(rows)), key=lambda k: (k * 7) % 50)]
    order = {name: [line for each, line in mixed if each == name] for name in apart}
    head = "age,dose,ward,target"
    single = tmp_path / "all.csv"
    single.write_text("\n".join([f"site,{head}", *(f"{name},{line}" for name, line in mixed)]))
    files = folder(**{name: "\n".join([head, *lines]) for name, lines in order.items()})
    (task, same), (other, as_files) = agreed(config(single, client="Site")), agreed(config(files))
    assert same == as_files
    assert task.clients == other.clients == ("a", "b")
    for name in task.clients:
        for ours, theirs in zip(task.splits(name), other.splits(name), strict=True):
            for mine, expected in zip(everything(ours), everything(theirs), strict=True):
                assert torch.equal(mine, expected)


def test_a_server_without_data_knows_the_agreed_model(folder: Folder) -> None:
    _, told = agreed(config(folder(a=csv_of(20), b=csv_of(20))))
    task = load_task({**config(""), "agreed": json.dumps(told)})
    assert task.clients == ()
    assert [tuple(each.shape) for each in task.model().parameters()] == [(2, 5), (2,)]
    assert list(task.scores) == [ACCURACY, BALANCED_ACCURACY, AUC]
    with pytest.raises(FairbloomError, match="have not agreed on their data yet"):
        load_task(config("")).model()


# Inputs -------------------------------------------------------------------------------------------------------------


def test_numbers_and_texts_are_prepared_by_training_rows_alone(folder: Folder) -> None:
    table = csv_of(40, seed=3)
    task, told = agreed(config(folder(a=table, b=csv_of(25, 4)), seed=5))
    assert [each["name"] for each in told["inputs"]] == ["age", "dose", "ward"]
    assert told["inputs"][2]["categories"] == ["north", "south", "west"]
    cells = [line.split(",") for line in table.splitlines()[1:]]
    train, test, _ = split(np.arange(40), Setup.of({"seed": 5}), "a")
    for rows, examples in zip((train, test), task.splits("a"), strict=True):
        inputs, targets = everything(examples)
        for place in (0, 1):
            values = np.array([float(row[place]) for row in cells])
            expected = (values[rows] - values[train].mean()) / values[train].std()
            np.testing.assert_allclose(inputs[:, place], expected, rtol=1e-5, atol=1e-6)
        assert targets.tolist() == [int(cells[row][3]) for row in rows]
        wards = [["north", "south", "west"].index(cells[row][2]) for row in rows]
        assert torch.equal(inputs[:, 2:], torch.eye(3)[wards])


def test_test_rows_change_no_input_of_training(folder: Folder) -> None:
    lines = csv_of(40, 3).splitlines()
    _, test, _ = split(np.arange(40), Setup.of({}), "a")
    other = [*lines]
    for row in test:
        other[row + 1] = f"9999,-77,unheard-of,{lines[row + 1][-1]}"
    first = agreed(config(folder(a="\n".join(lines), b=csv_of(30)), standardise="together"))
    later = agreed(config(folder(a="\n".join(other), b=csv_of(30)), standardise="together"))
    assert first[1] == later[1]
    assert torch.equal(everything(first[0].splits("a").train)[0], everything(later[0].splits("a").train)[0])
    inputs, _ = everything(later[0].splits("a").test)
    assert not inputs[:, 2:].any()  # a category that training rows lack is none
    assert inputs[:, 0].min() > 100


def test_a_column_constant_in_training_says_nothing(folder: Folder) -> None:
    lines = csv_of(20).splitlines()
    _, test, _ = split(np.arange(20), Setup.of({}), "a")
    flat = [lines[0], *(f"0.1,{line.partition(',')[2]}" for line in lines[1:])]
    flat[test[0] + 1] = flat[test[0] + 1].replace("0.1,", "1e9,", 1)
    task, _ = agreed(config(folder(a="\n".join(flat), b=csv_of(20))))
    for examples in task.splits("a"):
        assert not everything(examples)[0][:, 0].any()


def test_one_client_cannot_move_the_common_center_far(folder: Folder) -> None:
    there = folder(a=csv_of(300, 1), b=csv_of(300, 2, shift=5), c=csv_of(300, 3, shift=10))
    task, told = agreed(config(there, standardise="together"))
    center, scale = told["inputs"][0]["moments"]
    assert center == pytest.approx(55, abs=1.5)
    assert scale == pytest.approx(math.hypot(10, 5), abs=1.5)
    about = told_by(config(there, standardise="together"))
    about["a"]["moments"]["age"] = [1e99, 1e99]
    moved, reasons = agree(about)
    assert reasons == {}
    assert json.loads(moved)["inputs"][0]["moments"][0] < 65
    means = [everything(task.splits(name).train)[0][:, 0].mean().item() for name in task.clients]
    assert means == sorted(means)  # what is standardised by each client alone has the mean 0 everywhere
    assert means[2] - means[0] > 0.5


def test_own_standardisation_lets_nothing_but_names_leave(folder: Folder) -> None:
    about = told_by(config(folder(a=csv_of(20), b=csv_of(20))))["a"]
    assert about["moments"] == {}
    assert about["target"] == {"kind": "either", "classes": ["0", "1"], "moments": None}
    assert set(about) == {"examples", "columns", "kinds", "categories", "others", "moments", "together", "target"}
    assert about["examples"] == 16


def test_numbers_may_be_categories_however_they_are_written(folder: Folder) -> None:
    lines = ["code,x,target", *(f"{k % 3}.0,{k},{k % 2}" for k in range(15))]
    whole = ["code,x,target", *(f"{k % 4},{k},{k % 2}" for k in range(15))]
    task, told = agreed(config(folder(a="\n".join(lines), b="\n".join(whole)), categories="Code"))
    assert told["inputs"][0] == {"name": "code", "categories": ["0", "1", "2", "3"], "moments": None}
    assert everything(task.splits("a").train)[0][:, :4].sum(dim=1).unique().tolist() == [1.0]


def test_the_order_of_columns_does_not_matter(folder: Folder) -> None:
    task, _ = agreed(config(folder(a=csv_of(20, 1), b=csv_of(20, 1, "target,ward,dose,age"))))
    first, other = (everything(task.splits(name).train)[0] for name in "ab")
    assert first.mean(dim=0)[:2].abs().max() < 1e-6
    assert other.mean(dim=0)[:2].abs().max() < 1e-6
    assert torch.equal(other[:, 2:].sum(dim=1), torch.ones(16))


@pytest.mark.parametrize(
    ("separator", "mark"), [(";", b""), ("\t", b""), ("|", b"\xef\xbb\xbf"), (",", b"\xef\xbb\xbf")]
)
def test_other_separators_and_a_mark_of_utf_8_are_understood(folder: Folder, separator: str, mark: bytes) -> None:
    plain = csv_of(20).replace("north", '"nörth, inner"')
    cells = csv_of(20).replace("north", "nörth, inner" if separator != "," else '"nörth, inner"')
    text = cells if separator == "," else plain
    other = (
        mark
        + "\r\n".join(
            line
            if separator == ","
            else line.replace('"nörth, inner"', "§").replace(",", separator).replace("§", '"nörth, inner"')
            for line in text.splitlines()
        ).encode()
    )
    _, told = agreed(config(folder(a=plain, b=other)))
    assert told["inputs"][2]["categories"] == ["nörth, inner", "south", "west"]


# Missing values -----------------------------------------------------------------------------------------------------


def with_gaps() -> str:
    lines = csv_of(40).splitlines()
    for row, gap in zip((2, 5, 9), ("?", "NA", "n/a"), strict=True):
        lines[row] = f"{gap},{lines[row].partition(',')[2]}"
    lines[12] = lines[12].replace("west", "").replace("north", "").replace("south", "")
    return "\n".join(lines)


def test_rows_that_lack_a_value_are_dropped_where_that_is_said(folder: Folder) -> None:
    task, told = agreed(config(folder(a=with_gaps(), b=csv_of(20)), missing="drop"))
    assert sum(map(len, task.splits("a"))) == 36
    assert told["inputs"][2]["categories"] == ["north", "south", "west"]


def test_missing_values_may_become_the_mean_or_no_category(folder: Folder) -> None:
    task, _ = agreed(config(folder(a=with_gaps(), b=csv_of(20)), missing="fill"))
    train, test = task.splits("a")
    inputs = torch.cat([everything(train)[0], everything(test)[0]])
    assert len(inputs) == 40
    assert int((inputs[:, 0] == 0.0).sum()) == 3  # the mean, once standardised
    assert int((inputs[:, 2:].sum(dim=1) == 0.0).sum()) == 1


def test_a_column_empty_at_one_client_fits_either_kind(folder: Folder) -> None:
    lines = csv_of(20).splitlines()
    empty = [lines[0], *(",,,".join(["", line[-1]]) for line in lines[1:])]
    for name in ("aaa", "zzz"):  # before and after the others by name
        task, told = agreed(
            config(folder(**{name: "\n".join(empty), "b": csv_of(20), "c": csv_of(20)}), missing="fill")
        )
        assert [each["categories"] for each in told["inputs"]] == [None, None, ["north", "south", "west"]]
        assert not everything(task.splits(name).train)[0].any()


def test_a_row_without_a_target_is_left_out_by_fill_too(folder: Folder) -> None:
    lines = csv_of(20).splitlines()
    lines[3] = lines[3][:-1] + "?"
    task, _ = agreed(config(folder(a="\n".join(lines), b=csv_of(20)), missing="fill"))
    assert sum(map(len, task.splits("a"))) == 19


# Targets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        (["yes", "no"], "auto", ["no", "yes"]),
        (["10", "9", "100"], "auto", ["9", "10", "100"]),
        (["1.0", "0.0"], "auto", ["0", "1"]),
        (["0.5", "1"], "auto", None),
        ([str(k) for k in range(101)], "auto", None),
        ([str(k) for k in range(100)], "auto", [str(k) for k in range(100)]),
        (["1", "2"], "regression", None),
        (["0.5", "1"], "classification", ["0.5", "1"]),
    ],
)
def test_what_the_target_is_is_seen_from_its_values_or_said(
    folder: Folder, values: list[str], kind: str, classes: list[str] | None
) -> None:
    table = "\n".join(["x,y", *(f"{k},{values[k % len(values)]}" for k in range(4 * len(values) + 10))])
    task, told = agreed(config(folder(a=table, b=table), kind=kind))
    assert told["target"].get("classes") == classes
    assert task.score == (MAE if classes is None else ACCURACY)
    assert (AUC in task.scores) == (classes is not None and len(classes) == 2)


def test_a_quantity_is_learned_in_agreed_units(folder: Folder, tmp_path: Path) -> None:
    def table(seed: int) -> str:
        random = np.random.default_rng(seed)
        x = random.normal(size=60)
        return "\n".join(["x,label", *(f"{a!r},{200_000 + 50_000 * a!r}" for a in x.tolist())])

    settings = {"task": "csv", "data-dir": str(folder(a=table(1), b=table(2))), "num-rounds": 30, "fraction": 1.0}
    run = simulate(Settings.of({**settings, "device": "cpu", "out": str(tmp_path / "run")}))
    scores = json.loads((run / "scores.json").read_text())
    assert [each["name"] for each in scores] == ["mae", "r2", "rmse"]
    assert not scores[0]["higher_is_better"]
    rows = (run / "clients.csv").read_text().splitlines()
    first, last = (dict(zip(rows[0].split(","), row.split(","), strict=True)) for row in (rows[1], rows[-1]))
    assert float(first["test_mae_of_global_model"]) > 2 * float(last["test_mae_of_global_model"])
    assert float(first["test_mae_of_global_model"]) > 100.0  # of hundreds of thousands, not of units of scale
    task, told = agreed(config(tmp_path / "data"))
    assert told["target"]["center"] == pytest.approx(200_000, abs=20_000)
    _, targets = everything(task.splits("a").test)
    answers = targets[:, None] + 0.5
    assert float(torch.as_tensor(task.scores[MAE](answers, targets)).mean()) == pytest.approx(
        told["target"]["scale"] / 2, rel=1e-4
    )
    assert task.scores[RMSE](answers, targets) == pytest.approx(told["target"]["scale"] / 2, rel=1e-4)
    assert task.scores[R2](targets[:, None], targets) == pytest.approx(1.0)


def test_a_quantity_is_scored_whatever_its_unit(folder: Folder) -> None:
    """The squares of 1e-200 are 0: without care the scale would be 1 and every target 0."""
    found = []
    for unit in (1.0, 1e-200, 1e-305):
        random = np.random.default_rng(1)
        rows = {client: [f"{a!r},{unit * (5.0 + a)!r}" for a in random.normal(size=40).tolist()] for client in "ab"}
        task, told = agreed(config(folder(**{client: "\n".join(["x,label", *each]) for client, each in rows.items()})))
        assert told["target"]["scale"] == pytest.approx(unit, rel=0.5)
        _, targets = everything(task.splits("a").test)
        assert task.scores[R2](targets[:, None], targets) == pytest.approx(1.0)
        found.append(float(torch.as_tensor(task.scores[MAE](targets[:, None] + 0.5, targets)).mean()) / unit)
    assert found == pytest.approx([found[0]] * 3, rel=1e-3)


def test_stated_classes_let_a_client_lack_some(folder: Folder) -> None:
    lacking = csv_of(20).replace(",1\n", ",0\n")
    task, told = agreed(config(folder(a=lacking, b=csv_of(20)), classes="1,0"))
    assert told["target"]["classes"] == ["1", "0"]
    assert everything(task.splits("a").train)[1].unique().tolist() == [1]


# Agreement ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def four(folder: Folder) -> dict[str, dict[str, Any]]:
    there = folder(**{name: csv_of(20, seed) for seed, name in enumerate(("a", "b", "c", "d"))})
    return told_by(config(there, standardise="together"))


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"columns": 3}, "columns must be a list, got 3"),
    ({"columns": ["age", "age", "ward"]}, "twice"),
    ({"columns": [["age"], "dose", "ward"]}, "texts of at most 200"),
    ({"columns": ["age", "dose", "x" * 201]}, "texts of at most 200"),
    ({"columns": ["age", "dose", "\ud800"]}, "surrogates not allowed"),
    ({"columns": [f"c{k}" for k in range(10_001)]}, "10,000 are the most"),
    ({"kinds": ["numbers"] * 4}, "of each column whether"),
    ({"kinds": ["numbers", "numbers", "secrets"]}, "of each column whether"),
    ({"kinds": [["numbers"], "numbers", "categories"]}, "cannot be used"),
    ({"categories": {"ward": [f"w{k}" for k in range(1_001)]}}, "1,000 are the most"),
    ({"categories": {"ward": [1, 2]}}, "texts of at most"),
    ({"categories": []}, "categories must be an object"),
    ({"moments": {"age": [math.nan, 1]}}, "got nan"),
    ({"moments": {"age": [1e300, 1]}}, "got 1e+300"),
    ({"moments": {"age": [10**400, 1]}}, "mean or deviation of column 'age'"),
    ({"moments": {"age": [1, -1]}}, "below 0"),
    ({"moments": {"age": [1]}}, "mean and deviation of column 'age'"),
    ({"moments": {"age": [True, "1"]}}, "mean or deviation"),
    ({"examples": 0}, "number of examples is 0"),
    ({"examples": True}, "number of examples is True"),
    ({"examples": 1e9}, "number of examples"),
    ({"target": None}, "target must be an object, got None"),
    ({"target": {"kind": "either", "classes": []}}, "names no classes"),
    ({"target": {"kind": "everything", "classes": ["0"]}}, "kind of target is 'everything'"),
    ({"target": {"kind": ["classes"], "classes": ["0"]}}, "kind of target is ['classes']"),
    ({"target": {"kind": "quantity", "moments": [math.inf, 0], "classes": []}}, "mean or deviation of target"),
    ({"columns": ["dose", "ward"], "kinds": ["numbers", "categories"]}, "it lacks the columns age"),
    ({"columns": ["age", "dose", "ward", "x"], "kinds": ["numbers"] * 4}, "it has the columns x, which most others"),
    ({"kinds": ["categories", "numbers", "categories"]}, "column 'age' holds categories, and numbers with most"),
    ({"target": {"kind": "either", "classes": ["0", "1", "2"]}}, "csv.classes=0,1,2"),
    ({"target": {"kind": "quantity", "moments": [0, 1]}}, "its target holds numbers that are no classes"),
]


@pytest.mark.parametrize("who", ["a", "d"])
@pytest.mark.parametrize(("lie", "words"), HOSTILE, ids=[words for _, words in HOSTILE])
def test_nonsense_leaves_its_client_out_with_the_reason(
    four: dict[str, dict[str, Any]], lie: dict[str, Any], words: str, who: str
) -> None:
    honest = {name: about for name, about in four.items() if name != who}
    expected, _ = agree(honest)
    text, reasons = agree({**four, who: four[who] | lie})
    assert list(reasons) == [who]
    assert words in reasons[who]
    assert len(reasons[who]) < 1000
    assert text == expected


def test_a_reason_cannot_forge_a_line_of_the_log(four: dict[str, dict[str, Any]]) -> None:
    _, reasons = agree({**four, "a": four["a"] | {"target": {"kind": "either", "classes": ["0\nWARNING all is lost"]}}})
    assert "\n" not in reasons["a"]


def test_a_flood_of_categories_is_refused(four: dict[str, dict[str, Any]]) -> None:
    flood = {name: four[name] | {"categories": {"ward": [f"{name}{k}" for k in range(999)]}} for name in "ab"}
    text, reasons = agree({**four, **flood})
    assert set(reasons) == {"a", "b"}
    assert "csv.ignore=ward" in reasons["a"]
    assert json.loads(text)["inputs"][2]["categories"] == ["north", "south", "west"]


def test_of_two_equal_camps_the_first_name_is_right(four: dict[str, dict[str, Any]]) -> None:
    other = {"kind": "either", "classes": ["0", "2"]}
    for wrong in ("bc", "cd"):
        text, reasons = agree({**four, **{name: four[name] | {"target": other} for name in wrong}})
        assert sorted(reasons) == list(wrong)
        assert json.loads(text)["target"]["classes"] == ["0", "1"]


def test_categories_are_in_order_of_numbers_or_the_alphabet() -> None:
    for names in (["10", "9", "-1.5"], ["nan", "10", "9"], ["b", "10", "9"], ["1_0", "9"], ["inf", "2"]):
        assert sort_classes(names) == sort_classes(names[::-1])
    assert sort_classes(["10", "9", "-1.5"]) == ["-1.5", "9", "10"]
    assert sort_classes(["b", "10", "9"]) == ["10", "9", "b"]


def test_where_nobody_can_take_part_all_reasons_are_said() -> None:
    with pytest.raises(FairbloomError, match=r"a: its summary .*; b: its summary"):
        agree({"b": {}, "a": {}})


def test_two_clients_with_a_wrong_column_are_both_told(four: dict[str, dict[str, Any]]) -> None:
    first = four["a"] | {"kinds": ["numbers", "categories", "categories"]}
    second = four["b"] | {"kinds": ["categories", "numbers", "categories"]}
    with pytest.raises(FairbloomError, match=r"a: column 'dose' holds categories.*; b: column 'age' holds categories"):
        agree({"a": first, "b": second})


def test_the_agreement_does_not_depend_on_order(four: dict[str, dict[str, Any]]) -> None:
    assert agree(dict(reversed(four.items()))) == agree(four)


# What is shown ------------------------------------------------------------------------------------------------------


def test_what_the_files_hold_is_shown_with_what_is_wrong(folder: Folder) -> None:
    there = folder(a=csv_of(20), b=csv_of(30, shift=20), c=csv_of(20).replace("target", "goal"))
    shown = describe_data(config(there))
    assert shown["clients"][0] == {"client": "a", "train": 16, "test": 4, "target": "0: 10, 1: 10"}
    assert "csv.target" in str(shown["clients"][2]["problem"])
    columns = {row["column"]: row for row in shown["columns"]}
    assert columns["ward"] == {
        "column": "ward",
        "kind": "categories",
        "values": "north, south, west",
        "missing": 0,
        "clients": 2,
    }
    assert " to " in str(columns["age"]["values"])
    assert columns["target"]["kind"] == "target"


def test_what_each_client_has_is_one_log_line(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        told_by(config(folder(a=csv_of(20), b=csv_of(20))))
    (line, _) = caplog.messages
    assert "a.csv: 16 rows to train on, 4 to test on; numbers: age, dose; categories: ward; target: target" in line


def test_a_run_of_one_client_alone_is_refused_before_it_begins(folder: Folder) -> None:
    with pytest.raises(FairbloomError, match=r"the data of one client alone, a: give a file .* csv.client"):
        check_data(config(folder(a=csv_of(20))))
