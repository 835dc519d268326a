"""Unusual tasks and models of users: they are learned right, or refused by name before the first
round."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import fairbloom
from fairbloom.errors import FairbloomError
from fairbloom.strategies import FedAvg
from fairbloom.tasks import Examples, load_task
from fairbloom.tasks.pooled import join

from .helpers import run, small, without_seconds
from .several import of_lines

ODD = "tests.simulation.odd"


def test_a_single_logit_is_thresholded_at_0(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, engine in (("one_logit", "loop"), ("column", "stacked")):
        with subtests.test(name=name, engine=engine):
            folder = run(
                tmp_path / name,
                task=f"{ODD}:{name}",
                num_rounds=25,
                learning_rate=0.5,
                engine=engine,
            )
            assert np.mean([*fairbloom.load(folder).final().values()]) > 90.0


def test_shapes_that_are_not_of_classes_are_refused(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, shapes in {"quantity": ("(10, 1)", "(10,)"), "wide": ("(10, 3)", "(10, 1)")}.items():
        with subtests.test(name=name, shapes=shapes):
            with pytest.raises(FairbloomError, match="trial step") as refused:
                run(tmp_path / name, task=f"{ODD}:{name}", num_rounds=1)
            for words in (*shapes, "scores="):
                assert words in str(refused.value)
            assert not (tmp_path / name / "checkpoint" / "1.safetensors").exists()


def test_places_that_are_left_out_and_soft_labels_are_learned(tmp_path: Path) -> None:
    """The same loss takes autograd in each engine, and gives the same model."""
    models = {}
    for name in ("ignored", "soft", "soft_partial"):
        for engine in ("loop", "stacked"):
            folder = run(
                tmp_path / name / engine, task=f"{ODD}:{name}", num_rounds=2, engine=engine
            )
            models[name, engine] = fairbloom.load(folder).arrays()["weight"]
        np.testing.assert_allclose(models[name, "loop"], models[name, "stacked"], atol=1e-5)
    np.testing.assert_allclose(models["soft", "loop"], models["soft_partial", "loop"], atol=1e-6)


def test_a_loss_that_is_nan_at_all_clients_is_named(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    with pytest.raises(FairbloomError, match=r"in round 3, .* 'loss-before' .* got nan") as refused:
        run(tmp_path / "run", task=f"{ODD}:nan_loss", method="fedfv", num_rounds=3)
    for words in ("fair(", "learning-rate"):
        with subtests.test(words=words):
            assert words not in str(refused.value)


def test_constants_that_are_not_finite_are_carried(tmp_path: Path) -> None:
    arrays = fairbloom.load(
        run(tmp_path / "run", model=f"{ODD}:CausalMask", clients=3, num_rounds=2)
    ).arrays()
    assert (arrays["mask"] == -np.inf).sum() == 6
    assert np.isfinite(arrays["last.weight"]).all()


def test_models_that_cannot_be_used_are_refused_by_name(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, words in {
        "BatchAlone": ("BatchAlone", "more than 1 value per channel", "its BatchNorm (2)"),
        "Expanded": ("'weights'", ".clone()"),
    }.items():
        with subtests.test(name=name, words=words):
            with pytest.raises(FairbloomError) as refused:
                run(tmp_path / name, model=f"{ODD}:{name}", clients=3, num_rounds=1)
            for each in words:
                assert each in str(refused.value)


def in_unit(place: Path, unit: float) -> dict[str, Any]:
    """Write a table of each of two clients; return the settings of a run on them."""
    place.mkdir()
    for seed, name in enumerate(("a", "b")):
        ages = np.random.default_rng(seed).uniform(20.0, 80.0, 40).round(1)
        rows = [f"{age},{float((2.0 * age + 1.0) * unit)!r}" for age in ages]
        (place / f"{name}.csv").write_text("\n".join(["age,target", *rows]))
    return {"task": "csv", "data_dir": str(place), "num_rounds": 2, "csv.kind": "regression"}


def test_a_quantity_of_any_unit_is_scored_or_refused_by_name(tmp_path: Path) -> None:
    """The error is in the target's unit, beyond the range of float32 as well."""
    errors = []
    for number, unit in enumerate((1.0, 1e61, 1e-59)):
        folder = run(tmp_path / f"run{number}", **in_unit(tmp_path / str(number), unit))
        errors.append(np.mean([*fairbloom.load(folder).final().values()]) / unit)
    np.testing.assert_allclose(errors, errors[0], rtol=1e-4)
    with pytest.raises(FairbloomError, match="'target'"):
        run(tmp_path / "run", **in_unit(tmp_path / "large", 1e200))


class ByBrier(FedAvg):
    """Asks for a score that digits does not have by itself."""

    needs = frozenset({"brier-after"})


def test_a_method_that_needs_a_missing_score_is_refused(tmp_path: Path) -> None:
    words = r"'fedfa': it weighs clients by accuracy-after, and task csv has no accuracy here, but"
    with pytest.raises(FairbloomError, match=words):
        run(tmp_path / "run", **in_unit(tmp_path / "data", 1.0), method="fedfa")
    asking = {"method": f"{__name__}:ByBrier", "num_rounds": 1}
    with pytest.raises(FairbloomError, match=r"has no brier here.*: choose another method"):
        run(tmp_path / "run", **{**in_unit(tmp_path / "same", 1.0), **asking})
    with pytest.raises(FairbloomError, match=r"has no brier here.*set scores = 'brier'"):
        run(tmp_path / "run", **asking)
    assert not (tmp_path / "run").exists()
    run(tmp_path / "run", **asking, scores="brier")


def changes_of(task: str) -> dict[str, Any]:
    return {
        **{
            "task": f"tests.simulation.several:{task}",
            "clients": 4,
            "num_rounds": 2,
            "method": "ditto",
        },
        **{"batch_size": 3, "local_epochs": 2, "learning_rate": 0.3, "fraction": 1.0},
    }


def test_a_dataset_and_a_models_loss_give_the_numbers_of_tensors(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Batches that are filled up to their own longest sequence, and losses that the model takes
    itself."""
    names = ("masked", "collated", "of_itself")
    expected, *others = (run(tmp_path / name, engine="loop", **changes_of(name)) for name in names)
    for ours, name in product(others, ("rounds.csv", "clients.csv")):
        with subtests.test(ours=ours, name=name):
            for row, due in zip(
                without_seconds(ours / name), without_seconds(expected / name), strict=True
            ):
                assert row.keys() == due.keys()
                assert all(
                    row[key] == due[key] or float(row[key]) == pytest.approx(float(due[key]), 1e-12)
                    for key in due
                )


def test_tensors_and_a_dataset_are_not_pooled() -> None:
    task = load_task(small("", **changes_of("masked")).run_config())
    part = task.splits("client-0").train
    assert isinstance(part, Examples)
    with pytest.raises(
        FairbloomError, match="some clients' examples are tensors, and others' are of a Dataset"
    ):
        join([part, of_lines(part)])


def test_weights_in_bfloat16_are_averaged_in_float32(tmp_path: Path) -> None:
    model = load_file(
        run(tmp_path / "run", model="tests.client.nets:BFloat", engine="loop", num_rounds=2)
        / "model.safetensors"
    )
    assert {array.dtype for array in model.values()} == {np.dtype(np.float32)}
    rounded = {
        name: torch.from_numpy(array).bfloat16().float().numpy() for name, array in model.items()
    }
    assert any((rounded[name] != array).any() for name, array in model.items())
