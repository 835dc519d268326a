"""Shakespeare's plays by their speakers."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from fairbloom.errors import FairbloomError
from fairbloom.tasks import load_task
from fairbloom.tasks.datasets.shakespeare import (
    CHARACTERS,
    CODES,
    LENGTH,
    make_lines,
    read_speeches,
    split_in_time,
)
from fairbloom.tasks.task import Examples, Setup
from tests.originals import needs

from . import made
from .made import load

ORIGINAL = needs("shakespeare/input.txt")


def text(length: int, seed: int = 0) -> str:
    """Return characters without meaning; none of them begins or ends a speech."""
    letters = [each for each in CHARACTERS if each not in "\n:"]
    return "".join(np.random.default_rng(seed).choice(letters, length))


PLAY = {"ROMEO": text(700, 1), "First Citizen": text(900, 2), "NURSE": text(300, 3)}


def read(examples: Examples) -> list[tuple[str, str]]:
    """Return each example in characters."""
    inputs, targets = examples[0 : len(examples)]
    return [
        ("".join(CHARACTERS[code] for code in line), CHARACTERS[target])
        for line, target in zip(inputs.tolist(), targets.tolist(), strict=True)
    ]


def setup_of(test: float = 0.2, validation: float = 0.0) -> Setup:
    return Setup.of(
        {
            "model": "lstm",
            "partition": "speaker",
            "test-share": test,
            "validation-share": validation,
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a play."""
    made.shakespeare(tmp_path, list(PLAY.items()))
    return tmp_path


# What is learned ----------------------------------------------------------------------------------


def test_there_are_80_characters_and_others_become_the_last() -> None:
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 80
    assert [*CODES] == [
        CHARACTERS.index(letter) if letter in CHARACTERS else 79 for letter in map(chr, range(256))
    ]


def test_an_example_is_80_characters_and_the_speakers_next(
    folder: Path, subtests: pytest.Subtests
) -> None:
    task = load("shakespeare", folder)
    # the nurse has too little text to be tested on
    assert task.clients == ("First Citizen", "ROMEO")
    inputs, targets = task.splits("ROMEO").train[0:4]
    assert task.loss(task.model()(inputs), targets).shape == (4,)
    for name in task.clients:
        with subtests.test(name=name):
            spoken = PLAY[name]
            windows = [(spoken[i : i + 80], spoken[i + 80]) for i in range(len(spoken) - 80)]
            count = int(0.8 * len(windows))
            splits = task.splits(name)
            assert read(splits.train) == windows[:count]
            assert read(splits.test) == windows[count + 79 :]


# Who speaks ---------------------------------------------------------------------------------------


def test_a_speakers_speeches_are_put_together(tmp_path: Path) -> None:
    speeches = [
        ("ROMEO", "Ay me:\nsad hours"),
        ("BENVOLIO", "What?"),
        ("ROMEO", "Not having that"),
        ("TITUS", ""),
    ]
    made.shakespeare(tmp_path, speeches)
    assert read_speeches(tmp_path / "shakespeare" / "input.txt") == {
        "ROMEO": "Ay me:\nsad hours\nNot having that",
        "BENVOLIO": "What?",
        "TITUS": "",
    }


def test_a_text_without_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    path.write_text("ROMEO:\nAy me\n\nsad hours seem long\n")
    with pytest.raises(FairbloomError, match=r"speech 2 begins with 'sad hours seem long'"):
        read_speeches(path)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=6))
def test_no_example_has_characters_of_two_speakers(lengths: list[int]) -> None:
    texts = {str(k): chr(ord("a") + k) * length for k, length in enumerate(lengths)}
    lines = make_lines(texts)
    assert lines.inputs.shape[1:] == (LENGTH,)
    for name, spoken in texts.items():
        rows = torch.from_numpy(lines.rows[name])
        assert len(rows) == max(len(spoken) - 80, 0)
        assert set(torch.cat([lines.inputs[rows].flatten(), lines.targets[rows]]).tolist()) <= {
            CHARACTERS.find(letter) for letter in set(spoken)
        }


# In time ------------------------------------------------------------------------------------------


def test_without_a_test_share_a_speaker_trains_on_all(tmp_path: Path) -> None:
    made.shakespeare(tmp_path, [("ROMEO", "ab " * 400), ("BENVOLIO", "What")])
    task = load("shakespeare", tmp_path, shakespeare__smallest=10, test_share=0.0)
    assert [*map(len, task.splits("ROMEO"))] == [1200 - LENGTH, 0]


@given(st.integers(1, 3000), st.sampled_from([0.1, 0.2, 0.5]), st.sampled_from([0.0, 0.1, 0.3]))
def test_parts_are_in_the_texts_order_and_share_nothing(
    count: int, test: float, validation: float
) -> None:
    parts = split_in_time(np.arange(count), setup_of(test, validation))
    assert bool(len(parts.validation)) <= bool(validation)
    for before, after in pairwise(
        [part for part in (parts.train, parts.validation, parts.test) if len(part)]
    ):
        # the character that follows the former is the first of the latter
        assert after[0] - before[-1] >= LENGTH
        assert after[0] - before[-1] == LENGTH or (validation and not len(parts.validation))
    assert len(parts.train) == int(round((1 - test - validation) * 10) * count / 10)


def test_a_speaker_without_validation_may_be_left_out(folder: Path) -> None:
    assert load("shakespeare", folder, validation_share=0.12).clients == ("First Citizen",)
    with pytest.raises(FairbloomError, match="0 have enough examples"):
        load("shakespeare", folder, validation_share=0.05)


@ORIGINAL
def test_the_real_text_has_183_speakers_with_enough_of_it() -> None:
    task = load_task({"task": "shakespeare"})
    assert len(task.clients) == 183
    assert {"GLOUCESTER", "ROMEO", "First Citizen"} < set(task.clients)
    assert max(task.clients, key=lambda name: len(task.splits(name).train)) == "GLOUCESTER"
    assert sum(len(task.splits(name).train) for name in task.clients) == 793_917


def test_speakers_with_fewer_examples_are_left_out(folder: Path) -> None:
    assert load("shakespeare", folder, **{"shakespeare.smallest": 700}).clients == (
        "First Citizen",
    )  # ROMEO has 620 examples


@ORIGINAL
def test_34_speakers_have_ten_thousand_examples() -> None:
    task = load("shakespeare", **{"shakespeare.smallest": 10_000, "test-share": 0.5})
    assert len(task.clients) == 34
