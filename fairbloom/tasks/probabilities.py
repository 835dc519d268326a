"""Whether a model's outputs are probabilities, which is known by its loss or its graph.

It is not known by their range: logits of a new model may all lie between 0 and 1.
"""

import re
from collections.abc import Callable

import torch
from torch import Tensor

# Steps of autograd's graph that only rearrange numbers.
REARRANGING = re.compile(
    r"(Alias|Clone|Permute|ReshapeAlias|Select|Slice|Squeeze|T|ToCopy|Transpose|UnsafeView|"
    r"Unsqueeze|View)Backward\d+"
)

# Steps that make probabilities.
MAKING = re.compile(r"(Sigmoid|Softmax)Backward\d+")

Loss = Callable[[Tensor, Tensor], Tensor]


def are_probabilities(outputs: Tensor) -> bool:
    """Return whether outputs are those of a sigmoid or a softmax, by autograd's graph."""
    step = outputs.grad_fn
    while step is not None and REARRANGING.fullmatch(step.name()):
        step = step.next_functions[0][0]
    return step is not None and MAKING.fullmatch(step.name()) is not None


def takes_probabilities(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Return whether a loss has values for outputs of 0.5, and not for ones beyond 0 and 1.

    Of `outputs`, one for each example, only the shape and the dtype matter.
    """
    beyond = torch.full_like(outputs, 2.0)
    beyond[1::2] = -1.0
    return _is_finite(loss, torch.full_like(outputs, 0.5), targets) and not _is_finite(
        loss, beyond, targets
    )


def _is_finite(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    try:
        return bool(loss(outputs.detach(), targets).isfinite().all())
    except Exception:  # a user's loss may raise anything
        return False


def ignores_shift(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Return whether a loss is that of logits: adding 3 to each output of a row changes nothing."""
    return _is_finite(loss, outputs + 3.0, targets) and torch.allclose(
        loss(outputs, targets), loss(outputs + 3.0, targets), atol=1e-4
    )
