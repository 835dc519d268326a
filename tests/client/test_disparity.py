"""What a client says of two groups of its training examples: disparities, the step down them, and
FairFed's counts."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import Update, train_client
from fairbloom.client.rules.disparity import count_hits, logits_of, measure_disparity, step_down
from fairbloom.errors import ReportableError
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import DEMOGRAPHIC_PARITY, EQUAL_OPPORTUNITY, Terms
from fairbloom.rounds.arrays import FloatArray
from fairbloom.server.settings import Settings
from fairbloom.tasks import Examples, Setup, Splits, Task

KINDS = (DEMOGRAPHIC_PARITY, EQUAL_OPPORTUNITY)
GROUPS = ("a", "b", None)
INPUTS = 3
EXAMPLES = 60
RATE = 0.3
COUNTS = ("positives-0", "positives-1", "hits-0", "hits-1")
MEASURE = (
    "loss-before",
    "disparity",
    "disparity-hard",
    "learning-rate",
    "accuracy-before",
    *COUNTS,
)


def drawn(seed: int = 0, count: int = EXAMPLES, groups: int = 3) -> Examples:
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, INPUTS))
    targets = random.integers(0, 2, count)
    places = random.integers(0, groups, (count, 1))
    return Examples(
        torch.from_numpy(inputs), torch.from_numpy(targets), groups=torch.from_numpy(places)
    )


def linear(outputs: int = 2, seed: int = 1) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(INPUTS, outputs).double()


def arrays_of(model: nn.Module) -> list[np.ndarray]:
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def task_of(**changes: Any) -> Task:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def splits(client: str) -> Splits:
        return Splits(drawn(), drawn(1))

    plain: dict[str, Any] = {"model": linear, "groupings": {"side": GROUPS}, "classes": 2}
    return Task(("one",), loss=loss, splits=splits, **plain | changes)


def load(setup: Setup) -> Task:
    """Return a task that a run config names."""
    return task_of()


def normed(setup: Setup) -> Task:
    """Return a task; its model has BatchNorm, dropout and a frozen layer."""

    def model() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            layers = nn.Sequential(
                nn.Linear(INPUTS, 4),
                nn.BatchNorm1d(4),
                nn.Dropout(0.5),
                nn.Linear(4, 4),
                nn.ReLU(),
                nn.Linear(4, 2),
            ).double()
        layers[3].requires_grad_(False)
        return layers

    return task_of(model=model)


def settings_of(**changes: Any) -> Settings:
    plain = {
        "task": f"{__name__}:load",
        "device": "cpu",
        "learning-rate": RATE,
        "smallest-group": 1,
    }
    return Settings.of(plain | {key.replace("_", "-"): value for key, value in changes.items()})


def terms_of(kind: str = DEMOGRAPHIC_PARITY, **changes: Any) -> Terms:
    return Terms(
        **{
            "server_round": 1,
            "disparity": kind,
            "full_batch_step": True,
            "measure": MEASURE,
            **changes,
        }
    )


def trained(terms: Terms, **settings: Any) -> tuple[LocalClient, Update]:
    local = LocalClient.of(RunSettings.of(settings_of(**settings)), 0)
    update = train_client(local, dict(local.task.model().state_dict()), terms)
    # of a model that clients share
    return local, replace(
        update, arrays={name: tensor.clone() for name, tensor in update.arrays.items()}
    )


def bits(state: Mapping[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.detach().numpy().tobytes() for name, tensor in state.items()}


# Closed forms -------------------------------------------------------------------------------------


class ByHand:
    """Disparity and gradients of a linear model with two outputs, written out in NumPy from their
    definitions."""

    def __init__(
        self, examples: Examples, kind: str, positive: int = 1, sharpness: float = 10.0
    ) -> None:
        assert examples.groups is not None
        self.x = np.asarray(examples.inputs)
        self.y = np.asarray(examples.targets)
        self.kind = kind
        self.positive = positive
        self.sharpness = sharpness
        self.groups = np.asarray(examples.groups)[:, 0]

    def members(self, group: int) -> FloatArray:
        there: Any = self.groups == group
        return there & (self.y == self.positive) if self.kind == EQUAL_OPPORTUNITY else there

    def disparity(self, weight: FloatArray, bias: FloatArray, *, hard: bool = False) -> float:
        z = (self.x @ weight.T + bias) @ (
            np.array([-1.0, 1.0]) if self.positive == 1 else np.array([1.0, -1.0])
        )
        decisions = (z >= 0.0).astype(float) if hard else 1.0 / (1.0 + np.exp(-self.sharpness * z))
        return float(decisions[self.members(1)].mean() - decisions[self.members(0)].mean())

    def gradient(self, weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of |Δ|, by central differences: no formula that the code could share a slip with."""
        found = []
        for array in (weight, bias):
            slopes = np.zeros_like(array)
            for place in np.ndindex(array.shape):
                ends = []
                for way in (1.0, -1.0):
                    array[place] += way * 1e-6
                    ends.append(abs(self.disparity(weight, bias)))
                    array[place] -= way * 1e-6
                slopes[place] = (ends[0] - ends[1]) / 2e-6
            found.append(slopes)
        return found[0], found[1]


@pytest.mark.parametrize(("kind", "positive", "sharpness"), [*product(KINDS, (0, 1), (None, 2.0))])
def test_disparity_and_its_gradient_are_those_of_the_definition(
    kind: str, positive: int, sharpness: float | None
) -> None:
    model = linear()
    examples = drawn()
    weight, bias = arrays_of(model)
    by_hand = ByHand(examples, kind, positive, sharpness or 10.0)
    terms = terms_of(kind, disparity_sharpness=sharpness)
    found = measure_disparity(model, task_of(positive=positive), examples, terms, 1)
    assert found.smooth == pytest.approx(by_hand.disparity(weight, bias), rel=1e-12)
    assert found.hard == pytest.approx(by_hand.disparity(weight, bias, hard=True), rel=1e-12)
    for ours, expected in zip(found.gradient, by_hand.gradient(weight, bias), strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-6, atol=1e-8)


def test_a_client_replies_a_step_down_loss_and_down_disparity(subtests: pytest.Subtests) -> None:
    """Its momentum would be refused; its batch size and epochs count for nothing."""
    local, update = trained(terms_of(), batch_size=7, local_epochs=3)
    first = linear()
    weight, bias = arrays_of(first)
    examples = drawn()
    losses = nn.functional.cross_entropy(first(examples.inputs), examples.targets)
    losses.backward()  # type: ignore[no-untyped-call]
    by_hand = ByHand(examples, DEMOGRAPHIC_PARITY)
    down = dict(zip(("weight", "bias"), by_hand.gradient(weight, bias), strict=True))
    for name, parameter in first.named_parameters():
        with subtests.test(name=name, parameter=parameter):
            assert parameter.grad is not None
            expected = parameter.detach() - RATE * parameter.grad
            np.testing.assert_allclose(update.arrays[name].numpy(), expected.numpy(), rtol=1e-12)
            second = parameter.detach().numpy() - RATE * down[name]
            np.testing.assert_allclose(update.second[name].numpy(), second, atol=1e-8)
    assert update.metrics["loss-before"] == pytest.approx(losses.item(), rel=1e-12)
    assert update.metrics["disparity"] == pytest.approx(by_hand.disparity(weight, bias), rel=1e-12)
    assert update.metrics["disparity-hard"] == pytest.approx(
        by_hand.disparity(weight, bias, hard=True), rel=1e-12
    )
    assert update.metrics["learning-rate"] == RATE
    assert update.metrics["num-examples"] == EXAMPLES == len(local.splits.train)


def test_the_logit_is_two_outputs_difference_or_the_one_output(subtests: pytest.Subtests) -> None:
    two = torch.tensor([[1.0, 4.0], [2.0, -1.0]])
    assert logits_of(two, 1).tolist() == [3.0, -3.0]
    assert logits_of(two, 0).tolist() == [-3.0, 3.0]
    for one in (two[:, :1], two[:, 0]):
        with subtests.test(one=one):
            assert logits_of(one, 1).tolist() == [1.0, 2.0]
            assert logits_of(one, 0).tolist() == [-1.0, -2.0]


# Groups that are not there, or too small ----------------------------------------------------------


def with_groups(places: list[int], targets: list[int] | None = None) -> Examples:
    examples = drawn(count=len(places))
    chosen = examples.targets if targets is None else torch.tensor(targets)
    return replace(examples, targets=chosen, groups=torch.tensor(places)[:, None])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("places", "targets"),
    [
        ([0] * 12, [0, 1] * 6),
        ([1] * 12, [0, 1] * 6),
        ([2] * 12, [0, 1] * 6),
        ([0] * 9 + [1] * 3, [1] * 12),
        ([0] * 3 + [1] * 9, [1] * 12),
    ],
)
def test_with_a_small_group_there_is_no_disparity_and_no_step(
    kind: str, places: list[int], targets: list[int]
) -> None:
    examples = with_groups(places, targets)
    model = linear()
    found = measure_disparity(model, task_of(), examples, terms_of(kind), 4)
    assert found.metrics == {"disparity": 0.0, "disparity-hard": 0.0}
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert bits(step_down(model, received, found.gradient, 0.5)) == bits(received)
    assert count_hits(model, task_of(), examples, 4) == dict.fromkeys(COUNTS, 0)


def test_a_disparity_of_zero_has_no_gradient() -> None:
    """Two groups of the same people: Δ is 0, where |Δ| has no slope, and 0 is taken."""
    half = drawn(count=20, groups=1)
    twice = Examples(
        torch.cat([half.inputs] * 2),  # type: ignore[list-item]
        torch.cat([half.targets] * 2),
        groups=torch.tensor([[0]] * 20 + [[1]] * 20),
    )
    assert abs(measure_disparity(linear(), task_of(), twice, terms_of(), 1).smooth) < 1e-15
    zero = nn.Linear(INPUTS, 2).double()
    with torch.no_grad():
        for parameter in zero.parameters():
            parameter.zero_()
    at_zero = measure_disparity(zero, task_of(), with_groups([0] * 8 + [1] * 8), terms_of(), 1)
    assert (at_zero.smooth, at_zero.gradient) == (0.0, [])


def test_wholly_apart_groups_have_a_disparity_of_one(subtests: pytest.Subtests) -> None:
    """A server refuses one beyond 1, however little: the mean of n ones is 1, whatever n is."""
    model = linear(1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1e6, 0.0, 0.0]]))  # type: ignore[operator,union-attr]
        model.bias.zero_()  # type: ignore[operator,union-attr]
    for count in range(1, 100):
        with subtests.test(count=count):
            signs = torch.tensor([-1.0] * 7 + [1.0] * count).double()
            inputs = torch.stack([signs, torch.zeros_like(signs), torch.zeros_like(signs)], dim=1)
            for groups in ((signs > 0).long(), (signs < 0).long()):
                examples = Examples(
                    inputs, torch.ones(len(signs), dtype=torch.int64), groups=groups[:, None]
                )
                for kind in KINDS:
                    found = measure_disparity(model, task_of(), examples, terms_of(kind), 1)
                    assert abs(found.smooth) == abs(found.hard) == 1.0


# Batches, buffers, modes --------------------------------------------------------------------------


def test_the_second_model_keeps_buffers_and_leaves_the_training() -> None:
    """BatchNorm and dropout are as in evaluation: Δ is measured, and its gradient taken, of one and
    the same model."""
    named = f"{__name__}:normed"
    _, plain = trained(terms_of("", measure=()), task=named)
    local, update = trained(terms_of(), task=named)
    received = normed(Setup).model().state_dict()  # type: ignore[arg-type]
    assert update.second.keys() == received.keys()
    changed = {name for name in received if not torch.equal(update.second[name], received[name])}
    assert changed == {
        name for name, each in local.model.named_parameters() if each.requires_grad
    } - {"0.bias"} | ({"0.bias"} & changed)
    assert {"0.weight", "1.weight", "5.weight"} <= changed
    assert bits(update.arrays) == bits(plain.arrays)
    assert not torch.equal(update.arrays["1.running_mean"], received["1.running_mean"])


def test_counts_are_measured_where_asked_and_change_nothing() -> None:
    _, plain = trained(Terms(server_round=1, measure=("accuracy-before",)))
    _, asked = trained(Terms(server_round=1, measure=("hits-1", "accuracy-before", "positives-0")))
    assert list(asked.metrics) == ["num-examples", "hits-1", "accuracy-before", "positives-0"]
    assert asked.metrics["accuracy-before"] == plain.metrics["accuracy-before"]
    assert bits(asked.arrays) == bits(plain.arrays)
    assert asked.second == {} == plain.second


# Errors and their remedies ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"groupings": {"race": ("w", "x", "y", None)}}, ["3 groups by 'race'", "w, x, y"]),
        ({"groupings": {"race": ("w", None)}}, ["1 groups by 'race'", "(w)"]),
        ({"groupings": {}}, ["groups of examples", 'groups = ["sex"]']),
        ({"classes": 3}, ["one of 3", "a task of two classes"]),
        ({"classes": 0}, ["a quantity", "a task of two classes"]),
    ],
)
def test_a_task_without_two_groups_is_an_error_with_a_remedy(
    changes: dict[str, Any], words: list[str]
) -> None:
    for measured in (
        lambda task: measure_disparity(linear(), task, drawn(), terms_of(), 1),
        lambda task: count_hits(linear(), task, drawn(), 1),
    ):
        with pytest.raises(ReportableError) as caught:
            measured(task_of(**changes))
        assert all(word in str(caught.value) for word in words)
    with pytest.raises(
        ReportableError, match=r"outputs of shape \(60, 3\).* a task of two classes"
    ):
        measure_disparity(linear(3), task_of(classes=None), drawn(), terms_of(), 1)
    targets = torch.zeros(EXAMPLES, 2, dtype=torch.float64)
    with pytest.raises(ReportableError, match=r"targets of shape \(60, 2\)"):
        count_hits(linear(), task_of(), replace(drawn(), targets=targets), 1)


@pytest.mark.parametrize(
    ("terms", "settings", "words"),
    [
        (
            {"kind": "equalised-odds"},
            {},
            "'equalised-odds'.* demographic-parity and equal-opportunity",
        ),
        ({"disparity_sharpness": 0.0}, {}, "disparity-sharpness = 0.0"),
        ({"kind": ""}, {}, "measure = disparity: .* disparity='demographic-parity'"),
        ({}, {"weight_decay": 0.1}, "leave out weight-decay = 0.1"),
        ({}, {"momentum": 0.9}, "full-batch-step = True .*leave out momentum = 0.9"),
        ({"snapshot_step": 1}, {}, "snapshot-step = 1 and disparity = 'demographic-parity'"),
    ],
)
def test_terms_that_a_client_cannot_act_on_are_refused_by_name(
    terms: dict[str, Any], settings: dict[str, float], words: str
) -> None:
    with pytest.raises(ReportableError, match=words):
        trained(terms_of(**terms), **settings)
