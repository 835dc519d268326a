"""Stack Overflow by its users, from a generated file in TensorFlow Federated's layout."""

import subprocess
import sys
from pathlib import Path

import pandas
import pytest
import torch

from fairbloom.errors import FairbloomError
from fairbloom.tasks.datasets.stackoverflow import (
    BEGIN,
    END,
    LENGTH,
    PADDING,
    UNKNOWN,
    read_sentences,
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
    assert load("stackoverflow", small, **{"stackoverflow.smallest": 24}).clients == ("u2",)


def test_an_example_is_the_last_words_and_the_next_one(small: Path) -> None:
    """Words are numbered by how often the clients write them, then by the alphabet."""
    train, test = load("stackoverflow", small).splits("u2")
    assert len(train) + len(test) == 6 * 4
    inputs, targets = everything(test)
    assert targets[:4].tolist() == [NUMBERS["a"], NUMBERS["b"], NUMBERS["c"], END]
    padding = [PADDING] * (LENGTH - 3)
    assert inputs[0].tolist() == [*padding, PADDING, PADDING, BEGIN]
    assert inputs[2].tolist() == [*padding, BEGIN, NUMBERS["a"], NUMBERS["b"]]
    whole = load("stackoverflow", small, test_share=0.0).splits("u2")
    assert [*map(len, whole)] == [6 * 4, 0]


def test_rare_words_are_unknown(small: Path) -> None:
    task = load("stackoverflow", small, **{"stackoverflow.words": 3})
    train, test = task.splits("u1")
    targets = torch.cat([everything(train)[1], everything(test)[1]])
    assert set(targets.tolist()) == {4, END, UNKNOWN}  # a; neither b nor c is u1's
    assert task.classes == 7


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


def test_another_table_is_refused_by_its_path(tmp_path: Path) -> None:
    made.stackoverflow(tmp_path, {"u": [1, 2, 3]})  # type: ignore[list-item]
    with pytest.raises(FairbloomError, match="tokens must be texts: put the original in its place"):
        load("stackoverflow", tmp_path)


def test_a_missing_file_is_asked_for_by_its_path(tmp_path: Path) -> None:
    words = (
        r"no server offers it in this format\): put the files there \(stackoverflow/stackoverflow_"
    )
    with pytest.raises(FairbloomError, match=words):
        load("stackoverflow", tmp_path)


def test_the_originals_hdf5_is_written_as_the_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of groups and datasets, which behave as mappings and sequences of bytes, in batches."""
    stackoverflow = pytest.importorskip("benchmarks.stackoverflow")
    monkeypatch.setattr(stackoverflow, "BATCH", 5)
    made.stackoverflow(tmp_path, {})
    (path,) = tmp_path.rglob("*.parquet")
    stackoverflow.convert(
        {u: {"tokens": [text.encode() for text in texts]} for u, texts in TEXTS.items()}, path
    )
    written = pandas.concat(read_sentences(path)).groupby("client_id")["tokens"].agg(list)
    assert written.to_dict() == TEXTS
    assert load("stackoverflow", tmp_path).clients == ("u1", "u2")


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
def test_memory_is_bounded_by_the_users_drawn(tmp_path: Path) -> None:
    """600,000 sentences of 13 words take 300 MB at most; all of them kept would take 400."""
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
    assert large - small <= 300


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
