"""Synthetic(α, β): what the devices draw from, and what comes of α and β."""

import numpy as np
import pytest
import torch

from fairbloom.tasks.datasets.synthetic import DEVIATIONS, draw_device, draw_examples

from .made import load


def test_an_examples_class_is_that_of_its_devices_model() -> None:
    device = draw_device(3, 7, 1.0, 1.0)
    inputs, classes = draw_examples(3, 7, 1.0, 1.0)
    logits = inputs @ device.W + device.b
    assert classes.tolist() == torch.from_numpy(logits).softmax(dim=1).argmax(dim=1).tolist()
    assert set(classes.tolist()) <= set(range(10))


def test_inputs_vary_the_less_the_later_they_stand() -> None:
    inputs = np.concatenate(
        [
            draw_examples(0, place, 0.0, 0.0)[0] - draw_device(0, place, 0.0, 0.0).mean
            for place in range(100)
        ]
    )
    assert len(inputs) > 10_000
    np.testing.assert_allclose(inputs.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.1)
    assert DEVIATIONS[0] == 1.0


@pytest.mark.parametrize("alpha", [0.0, 0.5, 3.0])
def test_alpha_is_how_much_models_differ(alpha: float) -> None:
    """Each W has 600 numbers about u_k; the standard deviation of u_k is alpha."""
    devices = [draw_device(0, place, alpha, 1.0) for place in range(1000)]
    centers, biases = np.array([[each.W.mean(), each.b.mean()] for each in devices]).T
    assert centers.std() == pytest.approx(np.hypot(alpha, 1 / np.sqrt(600)), rel=0.1)
    # they share u_k
    assert np.cov(centers, biases)[0, 1] == pytest.approx(alpha**2, abs=0.02 + 0.15 * alpha**2)


@pytest.mark.parametrize("beta", [0.0, 0.5, 3.0])
def test_beta_is_how_much_inputs_differ(beta: float) -> None:
    assert np.array(
        [draw_device(0, place, 1.0, beta).mean.mean() for place in range(1000)]
    ).std() == pytest.approx(np.hypot(beta, 1 / np.sqrt(60)), rel=0.1)


def test_sizes_are_log_normal_from_50() -> None:
    sizes = np.array([len(draw_examples(1, place, 1.0, 1.0)[1]) for place in range(300)]) - 50
    assert sizes.min() >= 0
    logs = np.log(sizes + 0.5)
    assert logs.mean() == pytest.approx(4.0, abs=0.4)
    assert logs.std() == pytest.approx(2.0, abs=0.3)


def test_a_device_draws_alike_for_any_number_of_devices() -> None:
    few, many, other = (
        load("synthetic", **own)
        for own in ({"clients": 3}, {"clients": 9}, {"clients": 3, "seed": 1})
    )
    mine = [task.splits("device-2").train[0:5][0] for task in (few, many, other)]
    assert torch.equal(mine[0], mine[1])
    assert not torch.equal(mine[0], mine[2])
    assert not torch.equal(mine[0], few.splits("device-1").train[0:5][0])
    assert len(load("synthetic").clients) == 30
    assert load("synthetic", clients=100).clients[7] == "device-07"
