"""Which of the tensors that a model returns its loss and scores get."""

from collections.abc import Mapping

from torch import Tensor, nn

from fairbloom.errors import ReportableError

LOGITS = "logits"
"""What the outputs of a model are called that returns several tensors by name, where its task names no other."""


def choose_output(model: nn.Module, outputs: object, output: str) -> Tensor:
    """Return the tensor that a task means of what a model returns; `output`, `logits`, or the only one."""
    if isinstance(outputs, Tensor):
        return outputs
    when = "in training" if model.training else "in evaluation"
    if not isinstance(outputs, Mapping):
        raise ReportableError(
            f"the model, {type(model).__name__}, returns a {type(outputs).__name__} {when}: it must return one tensor, "
            "with a row for each example, or tensors by name; an auxiliary output or a hidden state must be left out"
        )
    tensors = {str(name): each for name, each in outputs.items() if isinstance(each, Tensor)}
    name = output or (LOGITS if LOGITS in tensors or len(tensors) != 1 else next(iter(tensors)))
    if name not in tensors:
        there = ", ".join(tensors) or "no tensor"
        said = f"the task asks for {name!r}" if output else "the task does not say which of them are its outputs"
        raise ReportableError(
            f"the model, {type(model).__name__}, returns {there} {when}, and {said}: name one by Task(output=...)"
        )
    return tensors[name]
