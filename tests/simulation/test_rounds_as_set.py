"""The settings of rounds besides the method: averaged models, training clients, reports, pooling."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fairbloom.client.training import measure
from fairbloom.errors import FairbloomError
from fairbloom.server.checkpoint import load_model
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tasks import Examples, load_task
from fairbloom.tasks.pooled import join

from .helpers import run, small, table

SCORE = "accuracy_of_global_model"


def test_the_mean_is_measured_by_each_client_on_its_own_examples(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """The best model is chosen among means too."""
    changes = {"average_models": True, "validation_share": 0.2}
    folder = run(tmp_path / "run", **changes)
    task = load_task(small(folder, **changes).run_config())
    module = task.model()
    module.load_state_dict(load_file(folder / "model.safetensors"))
    for row in table(folder / "clients.csv")[-5:]:
        with subtests.test(row=row):
            own = task.splits(row["client"])
            assert own.validation is not None
            for split, examples in (("test", own.test), ("validation", own.validation)):
                found = measure(module, task, examples)
                assert float(row[f"{split}_{SCORE}"]) == pytest.approx(
                    100.0 * found["accuracy"], abs=1e-4
                )
                assert float(row[f"{split}_loss_of_global_model"]) == pytest.approx(
                    found["loss"], abs=1e-4
                )
    best = load_model(folder / "model-best.safetensors")[1][f"validation_{SCORE}_mean"]
    assert best == max(
        float(row[f"validation_{SCORE}_mean"]) for row in table(folder / "rounds.csv")
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"training_clients": "client-1, client-7"},
        {"attackers": "client-1, client-7", "attack": "scale"},
        {"enrolled_sizes": "client-1=500 client-7=500"},
    ],
)
def test_an_unknown_client_is_refused_at_once(tmp_path: Path, changes: dict[str, str]) -> None:
    key = next(iter(changes)).replace("_", "-")
    with pytest.raises(
        FairbloomError,
        match=rf"{key} names 'client-7'.* there are client-0, client-1, client-2 and 2 more$",
    ):
        run(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_the_best_model_is_chosen_by_validation_examples(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    settings: dict[str, Any] = {"method": "fedavg", "num_rounds": 12, "fraction": 0.2, "seed": 9}
    folder = run(tmp_path / "run", validation_share=0.3, **settings)
    rows = table(folder / "rounds.csv")
    clients = table(folder / "clients.csv")
    means = {}
    for row in rows:
        with subtests.test(row=row):
            own = [float(c[f"validation_{SCORE}"]) for c in clients if c["round"] == row["round"]]
            means[int(row["round"])] = float(row[f"validation_{SCORE}_mean"])
            assert means[int(row["round"])] == pytest.approx(np.mean(own), rel=1e-12)
    best = max(means, key=lambda number: means[number])
    by_test = max(rows, key=lambda row: float(row[f"test_{SCORE}_mean"]))
    assert best != int(by_test["round"]), "this run cannot tell by what the best model is chosen"
    about = load_model(folder / "model-best.safetensors")[1]
    assert {k: v for k, v in about.items() if k != "sha256"} == {
        "round": best,
        f"validation_{SCORE}_mean": means[best],
    }


def test_pooled_clients_share_training_and_keep_their_tests(subtests: pytest.Subtests) -> None:
    settings = small("", pooled=True).run_config()
    task = load_task(settings)
    apart = load_task({**settings, "pooled": False})
    assert load_task(settings) is task
    first, second = (task.splits(client) for client in task.clients[:2])
    assert first.train is second.train
    for client in task.clients:
        with subtests.test(client=client):
            for mine, own in zip(
                task.splits(client).test[:], apart.splits(client).test[:], strict=True
            ):
                assert torch.equal(mine, own)
    inputs, targets = (
        torch.cat(part)
        for part in zip(*(apart.splits(c).train[:] for c in apart.clients), strict=True)
    )
    assert torch.equal(first.train[:][0], inputs)
    assert torch.equal(first.train[:][1], targets)


def test_shared_tensors_are_joined_by_rows_and_others_copied() -> None:
    inputs = torch.arange(12.0).view(6, 2)
    targets = torch.arange(6)
    parts = [Examples(inputs, targets, torch.tensor(rows)) for rows in ([4, 0], [5])]
    shared = join(parts)
    whole = Examples(inputs + 100, targets + 100)
    assert shared.inputs is inputs
    assert shared.targets is targets
    copied = join([*parts, whole])
    assert copied.rows is None
    assert copied.targets.tolist() == [4, 0, 5, 100, 101, 102, 103, 104, 105]
    assert copied[:][0][:3].tolist() == shared[:][0].tolist()


def begin(out: Path, **changes: Any) -> tuple[list[str], float]:
    """Run one round by default; return the number of clients that trained in each round, and the
    recorded fraction."""
    plain = {"num-rounds": 1, "device": "cpu", "evaluate-every": 0, "out": str(out)}
    folder = simulate(
        Settings.of(plain | {key.replace("_", "-"): value for key, value in changes.items()})
    )
    recorded = tomllib.loads((folder / "config.toml").read_text())
    return [row["participants"] for row in table(folder / "rounds.csv")], float(
        recorded["fraction"]
    )


def test_all_of_up_to_nine_clients_train_and_half_of_more(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Clients that only evaluate are not counted, and pooled data train one."""
    for clients, trained, fraction in (
        (2, "2", 1.0),
        (9, "9", 1.0),
        (10, "5", 0.5),
        (11, "6", 0.5),
    ):
        with subtests.test(clients=clients, trained=trained):
            assert begin(tmp_path / str(clients), clients=clients) == ([trained], fraction)
    some, _ = begin(tmp_path / "some", clients=12, training_clients="client-01,client-02,client-03")
    pooled, _ = begin(tmp_path / "pooled", clients=4, pooled=True, num_rounds=2)
    assert (some, pooled) == (["3"], ["1", "1"])


def test_a_run_goes_on_with_the_fraction_that_it_was_begun_with(tmp_path: Path) -> None:
    """A folder of before has 0.5, which was the default then."""
    begin(tmp_path / "a", clients=4, fraction=0.5)
    assert begin(tmp_path / "a", clients=4, num_rounds=3) == (["2"] * 3, 0.5)
    with pytest.raises(RunFolderError, match=r"fraction = 0\.5 there and 1\.0 here"):
        begin(tmp_path / "a", clients=4, num_rounds=4, fraction=1.0)
