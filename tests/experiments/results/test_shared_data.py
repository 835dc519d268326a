"""The data that seeds share, by task, as read from the settings of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairbloom.experiments.results.caveats import SharedData, caveats_of_data
from fairbloom.experiments.results.run import Run
from fairbloom.protocol.scores import ACCURACY
from fairbloom.tasks import TASKS
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


def test_what_seeds_share_by_task_and_settings(subtests: pytest.Subtests) -> None:
    for settings, expected in SHARES:
        with subtests.test(settings=settings, expected=expected):
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
