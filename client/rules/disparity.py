"""FCFL's and FairFed's client halves: the disparity between two groups of training examples.

The groups are those of the task's first grouping; an example without a value belongs to
neither. If a group has too few examples to be reported, the disparity is 0, and so are its gradient
and all counts.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairbloom.errors import ReportableError
from fairbloom.protocol import names as wire
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import DEMOGRAPHIC_PARITY, DISPARITY_STEP, EQUAL_OPPORTUNITY, Terms
from fairbloom.tables.groups import find_two_groups
from fairbloom.tasks import Task
from fairbloom.tasks.task import AnyExamples

from ..local import LocalClient
from ..states import StateDict
from ..training import evaluation_batches, outputs_of, seeded
from ..work import LocalWork, descend
from .base import Rule, Scores


class DisparityStep(Rule):
    """Replies the disparity, and the received model after one step down the disparity.

    Source: Cui et al., NeurIPS 2021 (FCFL).
    """

    reads = DISPARITY_STEP
    reports = (wire.DISPARITY, wire.DISPARITY_HARD)
    replies = wire.ARRAYS_DISPARITY

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._stepped: StateDict = {}
        if not terms.disparity:
            asked = next(name for name in terms.measure if name in self.reports)
            raise ReportableError(
                f"measure = {asked}: the terms do not say which disparity: set one in the method's"
                " terms, as in replace(super().terms(server_round),"
                f" disparity={DEMOGRAPHIC_PARITY!r})"
            )

    def check(self, settings: RunSettings) -> None:
        """Raise FairbloomError if steps have weight decay, which the disparity's step has not."""
        if settings.weight_decay:
            raise ReportableError(
                f"{self} goes with the gradient of the plain loss: leave out weight-decay ="
                f" {settings.weight_decay!r}"
            )

    def make_second_model(
        self, client: LocalClient, received: StateDict, learning_rate: float
    ) -> Scores:
        """Take the step from the received model; return the disparity."""
        disparity = measure_disparity(
            client.model, client.task, client.splits.train, self.terms, client.smallest_group
        )
        if disparity.gradient:
            client.gate.check_carried(disparity.factors)
        self._stepped = step_down(client.model, received, disparity.gradient, learning_rate)
        client.model.load_state_dict(received)
        return disparity.metrics

    def second_model(self) -> StateDict:
        """Return the model after the step."""
        return self._stepped


class GroupCounts(Rule):
    """Reports each group's positive examples, and how many of them the received model finds.

    Source: Ezzeldin et al., AAAI 2023 (FairFed).
    """

    reports = (*wire.POSITIVES, *wire.HITS)

    def report(self, client: LocalClient) -> Scores:
        """Return the counts."""
        return count_hits(client.model, client.task, client.splits.train, client.smallest_group)


class Disparity(NamedTuple):
    """A disparity between two groups.

    `smooth` is Δ, the mean of σ(sharpness · z) in the second group minus the mean in the first, z
    the logit of the positive class; `hard` is the same for the decisions, 1 if z ≥ 0. `gradient` is
    the gradient of |Δ| by each trainable parameter, None if the loss does not touch it; [] if Δ is
    0. `factors` has each example's factor of its logit's gradient, up to the sharpness.
    """

    smooth: float
    hard: float
    gradient: list[Tensor | None]
    factors: Tensor

    @property
    def metrics(self) -> dict[str, float]:
        """The two numbers by their names on the wire."""
        return {wire.DISPARITY: self.smooth, wire.DISPARITY_HARD: self.hard}


def measure_disparity(
    model: nn.Module, task: Task, examples: AnyExamples, terms: Terms, smallest: int
) -> Disparity:
    """Return the disparity that the terms ask for, of a model in eval mode.

    Δ is summed batch by batch. Each group must have at least `smallest` examples; with equal
    opportunity, positive examples.
    """
    members = find_members(task, examples)
    if terms.disparity == EQUAL_OPPORTUNITY:
        members &= find_positive(task, examples)
    elif terms.disparity != DEMOGRAPHIC_PARITY:
        raise ReportableError(
            f"disparity = {terms.disparity!r}: this client knows {DEMOGRAPHIC_PARITY} and"
            f" {EQUAL_OPPORTUNITY}"
        )
    sharpness = 10.0 if terms.disparity_sharpness is None else terms.disparity_sharpness
    if not 0.0 < sharpness < math.inf:
        raise ReportableError(f"disparity-sharpness = {sharpness}: it must be finite and above 0")
    counts = members.sum(dim=1)
    if min(map(examples.count_units, members)) < smallest:
        return Disparity(0.0, 0.0, [], torch.zeros(0))
    membership = members.double()
    first, second = membership / counts[:, None]
    weights = second - first
    sums = torch.zeros(2, 2, dtype=torch.float64)
    factors = torch.zeros(len(weights), dtype=torch.float64)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.zero_grad()
    # Seeded, because a model may draw random numbers in evaluation, too.
    with seeded(0, examples.device):
        for place, logits in _logits_of(model, task, examples):
            decisions = torch.sigmoid(sharpness * logits)
            if decisions.requires_grad:
                torch.autograd.backward((weights[place].to(decisions) * decisions).sum())
            factors[place] = (
                weights[place] * (decisions * (1.0 - decisions)).detach().cpu().double()
            )
            both = torch.stack([decisions.detach(), (logits >= 0.0).to(decisions)], dim=1)
            sums += membership[:, place] @ both.cpu().double()
    # Divided only here: a sum of rounded shares may exceed 1, a mean does not.
    of_first, of_second = sums / counts[:, None]
    smooth, hard = (of_second - of_first).tolist()
    gradient = [parameter.grad for parameter in parameters]
    model.zero_grad()
    if smooth < 0.0:
        gradient = [None if each is None else -each for each in gradient]
    return Disparity(smooth, hard, gradient if smooth else [], factors)


@torch.no_grad()
def step_down(
    model: nn.Module, received: StateDict, gradient: Sequence[Tensor | None], learning_rate: float
) -> StateDict:
    """Take one plain gradient step in place; return a copy of the model with the received buffers.

    An empty gradient leaves the model unchanged.
    """
    if gradient:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        work = LocalWork(epochs=1, batch_size=0, learning_rate=learning_rate)
        descend(parameters, gradient, [], [], work)
    return {
        name: tensor.detach().clone() if tensor.requires_grad else received[name]
        for name, tensor in model.state_dict(keep_vars=True).items()
    }


@torch.no_grad()
def count_hits(
    model: nn.Module, task: Task, examples: AnyExamples, smallest: int
) -> dict[str, int]:
    """Return each group's number of positive examples, and of those predicted as positive.

    The model predicts in eval mode.
    """
    members = find_members(task, examples) & find_positive(task, examples)
    if min(map(examples.count_units, members)) < smallest:
        members = torch.zeros_like(members)
    with seeded(0, examples.device):
        found = torch.cat(
            [(logits >= 0.0).cpu() for _, logits in _logits_of(model, task, examples)]
        )
    return {
        **{name: int(group.sum()) for name, group in zip(wire.POSITIVES, members, strict=True)},
        **{
            name: int((group & found).sum()) for name, group in zip(wire.HITS, members, strict=True)
        },
    }


def find_members(task: Task, examples: AnyExamples) -> Tensor:
    """Return which examples belong to each of the two groups, shape (2, n), on the CPU."""
    two = find_two_groups(task.groupings, task.classes)
    places = examples.group_places()
    if places is None:
        raise ReportableError(
            "the task has groupings, and its training examples have no groups: give Examples groups"
        )
    column = places[:, 0].cpu()
    return torch.stack([column == place for place in two])


def find_positive(task: Task, examples: AnyExamples) -> Tensor:
    """Return which examples belong to the positive class, shape (n,), on the CPU."""
    targets = examples.all_targets
    if targets.numel() != len(examples):
        raise _no_two_classes(f"it has targets of shape {tuple(targets.shape)}")
    return targets.reshape(-1).cpu() == task.positive_place


def _logits_of(
    model: nn.Module, task: Task, examples: AnyExamples
) -> Iterator[tuple[slice, Tensor]]:
    """Return the slice of each batch of examples, and its logits of the positive class."""
    return (
        (place, logits_of(outputs_of(model, inputs, task.output), task.positive_place))
        for place, (inputs, _) in evaluation_batches(model, examples)
    )


def logits_of(outputs: Tensor, positive: int) -> Tensor:
    """Return the logit of the positive class, shape (n,): z₁ − z₀, or the only output."""
    if outputs.dim() == 2 and outputs.shape[1] == 2:
        return outputs[:, positive] - outputs[:, 1 - positive]
    if outputs.numel() != len(outputs):
        raise _no_two_classes(f"its model has outputs of shape {tuple(outputs.shape)}")
    logits = outputs.reshape(-1)
    return logits if positive == 1 else -logits


def _no_two_classes(instead: str) -> ReportableError:
    return ReportableError(
        f"fairness between groups needs a task of two classes, and {instead}: choose a method that"
        " does not compare groups, or a task of two classes"
    )
