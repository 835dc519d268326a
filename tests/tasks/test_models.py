"""The models and their seeded initialisation."""

import pytest
import torch

from fairbloom.tasks.models import MODELS, seeded

every_model = pytest.mark.parametrize("name", MODELS)


@every_model
@pytest.mark.parametrize(("side", "classes"), [(8, 10), (28, 62), (12, 2)])
def test_a_model_maps_images_to_one_number_a_class(name: str, side: int, classes: int) -> None:
    assert MODELS[name](side, classes)(torch.zeros(3, 1, side, side)).shape == (3, classes)


@every_model
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(name: str) -> None:
    once, again, other = (seeded(name, 8, 10, seed).state_dict() for seed in (5, 5, 6))
    for key, weights in once.items():
        assert torch.equal(weights, again[key])
        assert not torch.equal(weights, other[key])


@every_model
def test_the_weights_do_not_depend_on_what_was_drawn_before(name: str) -> None:
    before = seeded(name, 8, 10, 0).state_dict()
    torch.rand(17)
    after = seeded(name, 8, 10, 0).state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@every_model
def test_initialisation_leaves_the_global_generator_untouched(name: str) -> None:
    before = torch.get_rng_state()
    seeded(name, 8, 10, 99)
    assert torch.equal(torch.get_rng_state(), before)
