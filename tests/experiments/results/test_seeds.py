"""What seeds do to the data of a user's own task, and how many examples they test."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.caveats import SharedData, caveats_of_data
from fairbloom.server.run_folder.files import EXAMPLES
from fairbloom.tasks import Examples, Setup, Splits, Task


def split_in_two(setup: Setup, *, seeds: str = "split") -> Task:
    """Split 100 examples of each client by the seed: 70 to train on, and 30 for tests."""

    def splits(client: str) -> Splits:
        inputs = torch.arange(100.0)[:, None] / 100
        order = torch.randperm(100, generator=torch.Generator().manual_seed(setup.seed))
        targets = (inputs[:, 0] > 0.5).long()
        parts = [Examples(inputs, targets, rows) for rows in (order[:70], order[70:])]
        return Splits(*parts)

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
    task = f"{__name__}:split_in_two"
    settings = {"split_in_two.seeds": seeds}
    given: dict[str, Any] = {"device": "cpu", "progress": False, "settings": settings}
    return fairbloom.run(task, rounds=1, seed=seed, out=out, **given)


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
    fairbloom.run("digits", clients=2, rounds=1, out=tmp_path / "run", progress=False)
    assert not EXAMPLES.exists_in(tmp_path / "run")
