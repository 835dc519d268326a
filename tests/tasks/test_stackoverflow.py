"""Stack Overflow by its users, from a generated file in TensorFlow Federated's columns."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairbloom.errors import FairbloomError
from fairbloom.tasks.datasets import hub
from fairbloom.tasks.datasets.stackoverflow import (
    BEGIN,
    END,
    LENGTH,
    PADDING,
    UNKNOWN,
    count_examples,
    read_texts,
)
from tests.checkout import ROOT
from tests.simulation.helpers import run, table

from . import made
from .made import everything, load

TEXTS = {
    "u1": ["how do i sort a list", "i sort a list", "list", "how do i", "sort a list please"],
    "u2": ["a b c"] * 6,
    "u3": ["x"] * 4,
}

NUMBERS = {"a": 4, "b": 5, "c": 6, "list": 7, "i": 8, "sort": 9}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return made.stackoverflow(tmp_path, TEXTS)


def test_users_with_five_sentences_are_clients(small: Path) -> None:
    assert load("stackoverflow", small).clients == ("u1", "u2")


@pytest.mark.parametrize(("smallest", "clients"), [(23, ("u1", "u2")), (24, ("u2",))])
def test_users_with_fewer_examples_are_left_out(
    small: Path, smallest: int, clients: tuple[str, ...]
) -> None:
    """An example is a word, or the end of a sentence."""
    assert load("stackoverflow", small, **{"stackoverflow.smallest": smallest}).clients == clients


def test_too_few_users_are_counted(small: Path) -> None:
    with pytest.raises(FairbloomError, match=r"clients = 2: of 3 users 1 have enough examples"):
        load("stackoverflow", small, clients=2, **{"stackoverflow.smallest": 24})


def test_an_example_is_the_last_words_and_the_next_one(small: Path) -> None:
    """Words are numbered by how often the clients write them, then by the alphabet."""
    train, test = load("stackoverflow", small).splits("u2")
    assert len(train) + len(test) == 6 * 4
    inputs, targets = everything(test)
    assert targets[:4].tolist() == [NUMBERS["a"], NUMBERS["b"], NUMBERS["c"], END]
    padding = [PADDING] * (LENGTH - 3)
    assert inputs[0].tolist() == [*padding, PADDING, PADDING, BEGIN]
    assert inputs[2].tolist() == [*padding, BEGIN, NUMBERS["a"], NUMBERS["b"]]


def test_rare_words_are_unknown(small: Path) -> None:
    task = load("stackoverflow", small, **{"stackoverflow.words": 3})
    train, test = task.splits("u1")
    targets = torch.cat([everything(train)[1], everything(test)[1]])
    assert set(targets.tolist()) == {4, END, UNKNOWN}  # a; neither b nor c is u1's
    assert task.classes == 7


def test_words_of_clients_held_out_are_unknown(small: Path) -> None:
    task = load("stackoverflow", small, **{"held-out-clients": 0.5})
    (held_out,) = task.held_out
    own = {"u1": {"how", "do", "i", "sort", "list", "please"}, "u2": {"b", "c"}}[held_out]
    train, test = task.splits(held_out)
    targets = torch.cat([everything(train)[1], everything(test)[1]])
    unknown = sum(word in own for text in TEXTS[held_out] for word in text.split())
    assert int((targets == UNKNOWN).sum()) == unknown


def test_long_sentences_are_cut_to_the_last_words(tmp_path: Path) -> None:
    words = [f"w{number:02}" for number in range(30)]
    made.stackoverflow(tmp_path, {"u": [" ".join(words)] * 5})
    _, test = load("stackoverflow", tmp_path).splits("u")
    inputs, targets = everything(test)
    numbers = {word: 4 + place for place, word in enumerate(words)}
    assert inputs[25].tolist() == [numbers[word] for word in words[5:25]]
    assert targets[25] == numbers["w25"]


def test_sentences_of_test_and_training_are_apart(tmp_path: Path) -> None:
    made.stackoverflow(tmp_path, {"u": [f"s{number} s{number}" for number in range(10)]})
    train, test = load("stackoverflow", tmp_path, **{"test-share": 0.5}).splits("u")
    trained, tested = ({*everything(part)[1].tolist()} - {END} for part in (train, test))
    assert len(trained) == len(tested) == 5
    assert not trained & tested


def test_all_sentences_train_without_a_test_share(small: Path) -> None:
    train, test = load("stackoverflow", small, **{"test-share": 0.0}).splits("u2")
    assert (len(train), len(test)) == (6 * 4, 0)


def test_a_users_sentences_may_lie_in_several_batches(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = small.rglob("*.parquet")
    whole = count_examples(path)
    assert whole == {"u1": 23, "u2": 24, "u3": 0}
    read = hub.parquet.ParquetFile.iter_batches
    monkeypatch.setattr(
        hub.parquet.ParquetFile, "iter_batches", lambda file, **named: read(file, 2, **named)
    )
    assert count_examples(path) == whole
    assert read_texts(path, ["u1", "u3"]) == {"u1": TEXTS["u1"], "u3": TEXTS["u3"]}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"u": [1, 2, 3]}, "column tokens must have texts only, got int64 with 0 missing"),
        ({"u": ["a", None]}, "column tokens must have texts only, got string with 1 missing"),
        ({7: ["a"]}, "column client_id must have texts only, got int64"),
    ],
)
def test_another_table_is_refused_by_its_path(tmp_path: Path, texts: Any, words: str) -> None:
    made.stackoverflow(tmp_path, texts)
    with pytest.raises(FairbloomError, match=rf"\.parquet: {words}.*: put the original"):
        load("stackoverflow", tmp_path)


def test_a_file_without_the_columns_or_none_is_refused(small: Path) -> None:
    (path,) = small.rglob("*.parquet")
    made.hub_parquet(path, made.pictures(made.balanced(2, 2), (1, 4, 4)))
    with pytest.raises(FairbloomError, match=r"cannot be read .*put the original in its place"):
        load("stackoverflow", small)
    path.write_text("no table")
    with pytest.raises(FairbloomError, match=r"cannot be read .*put the original in its place"):
        load("stackoverflow", small)


def test_a_missing_file_is_asked_for_by_its_path(tmp_path: Path) -> None:
    words = (
        r"no server offers it in this format\): put the files there \(stackoverflow/stackoverflow_"
    )
    with pytest.raises(FairbloomError, match=words):
        load("stackoverflow", tmp_path)


@pytest.mark.parametrize("rows_at_once", [1, 5, 100])
def test_the_originals_hdf5_is_written_as_the_parquet(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    """Of groups and datasets, which behave as mappings and sequences of bytes."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "apps")
    app = importlib.import_module("stackoverflow")
    path = tmp_path / "written.parquet"
    users = {user: {"tokens": [text.encode() for text in TEXTS[user]]} for user in TEXTS}
    app.convert(users, path, rows_at_once)
    assert read_texts(path, TEXTS) == TEXTS


# Prints by how many MB the peak grows from a small file, whose folder is first, to a large one.
GROWTH = """
import resource, sys
from pathlib import Path
from tests.tasks.made import load
for folder in map(Path, sys.argv[1:]):
    task = load("stackoverflow", folder, clients=2)
    task.splits(task.clients[0])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak has another unit")
def test_memory_is_bounded_by_the_users_drawn(tmp_path: Path) -> None:
    """600,000 sentences of 13 words take 200 MB at most; all of them kept would take 400."""
    folders = [tmp_path / "small", tmp_path / "large"]
    sentence = " ".join(f"{{}}-{place}" for place in range(13))
    for folder, users in zip(folders, (2, 30_000), strict=True):
        texts = {
            f"u{u}": [sentence.replace("{}", f"{u}-{k}") for k in range(20)] for u in range(users)
        }
        made.stackoverflow(folder, texts)
    command = [sys.executable, "-c", GROWTH, *map(str, folders)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    small, large = map(float, done.stdout.split())
    assert large - small <= 200, (small, large)


def test_a_run_trains_its_network_on_the_words(small: Path, tmp_path: Path) -> None:
    folder = run(
        tmp_path / "run",
        task="stackoverflow",
        clients=0,
        data_dir=str(small),
        num_rounds=1,
        fraction=1.0,
        **{"stackoverflow.words": 10},
    )
    assert [row["client"] for row in table(folder / "clients.csv")] == ["u1", "u2"]
