"""The data that seeds share, by task, as read from the settings of runs.

What seeds do to the data of a user's own task, and how many examples they test.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fairbloom as api
from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.caveats import SharedData, caveats_of_data
from fairbloom.experiments.results.run import Run
from fairbloom.protocol.scores import ACCURACY
from fairbloom.server.run_folder.files import EXAMPLES
from fairbloom.tasks import TASKS, Examples, Setup, Splits, Task
from fairbloom.tasks.datasets.heart_disease import TRAINED

DEALT = SharedData(clients_differ=True)
FIXED = SharedData(same_test_examples=True)


class RecordedSettings(Run):
    """A run of which the settings are known, and who was tested."""

    clients: Sequence[str] = ("a", "b")

    def test_examples(self) -> dict[str, int]:
        return dict.fromkeys(self.clients, 10)


def recorded(settings: dict[str, Any], clients: Sequence[str] = ("a", "b")) -> Run:
    run = RecordedSettings(Path(), settings, (ACCURACY,))
    object.__setattr__(run, "clients", clients)
    return run


SHARES: Sequence[tuple[dict[str, Any], SharedData]] = (
    ({"task": "digits"}, DEALT),
    ({"task": "mnist", "mnist.test": "official"}, DEALT),
    ({"task": "mnist", "partition": "class"}, SharedData(test_share=0.25)),
    ({"task": "mnist", "partition": "class", "mnist.test": "official"}, FIXED),
    ({"task": "adult", "partition": "phd"}, FIXED),
    ({"task": "adult", "partition": "iid"}, DEALT),
    ({"task": "shakespeare"}, FIXED),
    ({"task": "synthetic"}, DEALT),
    ({"task": "heart-disease"}, SharedData(test_share=0.34 / 0.66)),
    ({"task": "heart-disease", "clients": 4}, SharedData(test_share=0.34 / 0.66)),
    ({"task": "heart-disease", "heart-disease.split": 43}, FIXED),
    (
        {"task": "heart-disease", "validation-share": 0.25},
        SharedData(test_share=0.34 / (0.66 * 0.75)),
    ),
    ({"task": "csv"}, SharedData(test_share=0.25)),
    ({"task": "csv", "test-share": 0.3, "validation-share": 0.1}, SharedData(test_share=0.5)),
    ({"task": "image-folder"}, SharedData(test_share=0.25)),
    *(
        (each, SharedData(test_share=0.25))
        for each in ({"task": "my_module:task"}, {"task": "of-another-version"}, {})
    ),
)


@pytest.mark.parametrize(("settings", "expected"), SHARES)
def test_what_seeds_share_by_task_and_settings(
    settings: dict[str, Any], expected: SharedData
) -> None:
    found = SharedData.of([recorded(settings), recorded(settings)])
    assert found.clients_differ == expected.clients_differ, settings
    assert found.same_test_examples == expected.same_test_examples, settings
    assert found.test_share == pytest.approx(expected.test_share), settings
    assert TASKS["heart-disease"].held_out == pytest.approx(1.0 - TRAINED)


def test_what_is_assumed_of_a_task_is_said_to_be_so() -> None:
    runs = [recorded({"task": "my_module:task"}), recorded({"task": "my_module:task"})]
    assert SharedData.of(runs).unknown
    assert not SharedData.of([recorded({"task": "csv"})]).unknown
    assert any(
        "It is unknown whether seeds share examples" in each for each in caveats_of_data(runs)
    )
    assert not caveats_of_data(runs[:1])


def test_clients_drawn_from_many_are_others_with_each_seed() -> None:
    settings = {"task": "femnist", "clients": 2}
    assert SharedData.of([recorded(settings, "ab"), recorded(settings, "cd")]) == DEALT
    all_of_them = {"task": "femnist", "clients": 0}
    assert SharedData.of(
        [recorded(all_of_them), recorded(all_of_them)]
    ).test_share == pytest.approx(0.25)


def split_in_two(setup: Setup, *, seeds: str = "split") -> Task:
    """Split 100 examples of each client by the seed: 70 to train on, and 30 for tests."""

    def splits(client: str) -> Splits:
        inputs = torch.arange(100.0)[:, None] / 100
        order = torch.randperm(100, generator=torch.Generator().manual_seed(setup.seed))
        targets = (inputs[:, 0] > 0.5).long()
        return Splits(*[Examples(inputs, targets, rows) for rows in (order[:70], order[70:])])

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(1, 2)

    return Task(
        clients=("a", "b"),
        model=model,
        loss=lambda outputs, targets: nn.functional.cross_entropy(
            outputs, targets, reduction="none"
        ),
        splits=splits,
        seeds=seeds,
    )


def run(out: Path, seeds: str, seed: int = 0) -> Any:
    return api.run(
        f"{__name__}:split_in_two",
        rounds=1,
        seed=seed,
        out=out,
        device="cpu",
        progress=False,
        settings={"split_in_two.seeds": seeds},
    )


@pytest.mark.parametrize(
    ("seeds", "shared"),
    [
        ("split", SharedData(test_share=30 / 70)),
        ("draw", SharedData(clients_differ=True)),
        ("", SharedData(test_share=30 / 70, unknown=True)),
    ],
)
def test_a_task_says_what_seeds_do_and_its_counts_are_known(
    seeds: str, shared: SharedData, tmp_path: Path
) -> None:
    runs = [run(tmp_path / f"{seed}", seeds, seed) for seed in range(2)]
    assert EXAMPLES.read(tmp_path / "0") == {
        "seeds": seeds,
        "trained": {"a": 70, "b": 70},
    }
    assert SharedData.of(runs) == shared
    sentences = caveats_of_data(runs)
    assert any("seeds='draw' or 'split'" in each for each in sentences) == (seeds == "")
    assert bool(sentences) == (seeds != "draw")


def test_other_words_on_seeds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match="seeds = 'fresh': it is 'split' or 'draw'"):
        run(tmp_path / "run", "fresh")


def test_a_known_task_has_no_file_of_examples(tmp_path: Path) -> None:
    api.run("digits", clients=2, rounds=1, out=tmp_path / "run", progress=False)
    assert not EXAMPLES.exists_in(tmp_path / "run")
