"""Which arrays of a model each client keeps for itself."""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase

from fairbloom.errors import ReportableError
from fairbloom.protocol.patterns import match_names, split_words
from fairbloom.text import text_if

from .registry import frozen_parameters, shared_parameters

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@lru_cache(maxsize=1)  # a model of a process, which all its clients share: it stays in memory
def personal_arrays(model: nn.Module, patterns: str, output: str = "") -> tuple[str, ...]:
    """Return the names of the arrays that clients keep for themselves, in the model's order.

    Parameters
    ----------
    patterns
        Words with spaces or commas between them: `head` for the last layer that is trained, `body`
        for all other trained parameters and their buffers, `norm` for the parameters and
        statistics of normalization layers, or a pattern of names such as `fc2.*`. "": no array.
    output
        The task's: the name of the outputs that the head makes, if there are several.

    Raises
    ------
    ReportableError
        If a word names no array that is trained, or a parameter under one of its two names.
    """
    frozen = {*frozen_parameters(model)}
    names = [name for name in model.state_dict() if name not in frozen]
    chosen = set[str]()
    for word in split_words(patterns):
        found = PARTS[word](model, output) if word in PARTS else set(match_names(names, word))
        if not found.intersection(names):
            raise ReportableError(
                f"personal-parameters = {patterns!r}: {word!r} names no array that the model,"
                f" {type(model).__name__}, trains: it has {', '.join(names)}"
            )
        chosen |= found
    for name, first in shared_parameters(model).items():
        if (name in chosen) != (first in chosen):
            raise ReportableError(
                f"personal-parameters = {patterns!r}: {name} and {first} are the same parameter of"
                " the model: name both or neither"
            )
    return tuple(name for name in names if name in chosen)


def _head(model: nn.Module, output: str) -> set[str]:
    """Return the arrays of the layer that makes the outputs, or of the last trained one before.

    It is found in a symbolic forward pass, which needs no example: a server has none. Raise
    ReportableError if a model has no such pass, or more than one way to its outputs.
    """
    try:
        # A copy, because a forward pass may write into its modules.
        graph = fx.Tracer().trace(copy.deepcopy(model))
    except Exception as error:  # a user's model may raise anything
        raise _no_head(model, f"as its forward pass depends on values ({error})") from error
    (last,) = graph.find_nodes(op="output")
    outputs = last.args[0]
    if isinstance(outputs, Mapping) and len(outputs) > 1:
        outputs = outputs.get(output or "logits")
    ways = [*outputs.values()] if isinstance(outputs, Mapping) else [outputs]
    while len(ways) == 1:
        (node,) = ways
        if isinstance(node, fx.Node) and node.op == "call_module":
            path = str(node.target)
            layer = model.get_submodule(path)
            if any(parameter.requires_grad for parameter in layer.parameters()):
                return set(_arrays_in(path, layer))
        ways = node.all_input_nodes if isinstance(node, fx.Node) else []
    raise _no_head(model, "as no single layer makes its outputs")


def _no_head(model: nn.Module, why: str) -> ReportableError:
    return ReportableError(
        f"personal-parameters: 'head' has no meaning for {type(model).__name__}, {why}: name"
        f" arrays, such as fc.*: it has {', '.join(model.state_dict())}"
    )


def _arrays_in(path: str, module: nn.Module) -> Iterator[str]:
    return (f"{text_if(path, f'{path}.')}{name}" for name in module.state_dict())


def _norms(model: nn.Module) -> set[str]:
    """Return the arrays of the layers that normalise."""
    found: set[str] = set()
    for path, module in model.named_modules():
        if isinstance(module, NORMS):
            found.update(_arrays_in(path, module))
    return found


PARTS: Mapping[str, Callable[[nn.Module, str], set[str]]] = {
    "head": _head,
    "body": lambda model, output: set(model.state_dict()) - _head(model, output),
    "norm": lambda model, output: _norms(model),
}
