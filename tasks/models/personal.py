"""Which arrays of a model each client keeps for itself."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fairbloom.errors import ReportableError

from .registry import frozen_parameters, shared_parameters

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@lru_cache(maxsize=8)  # a model of a process, which all its clients share
def personal_arrays(model: nn.Module, patterns: str) -> tuple[str, ...]:
    """Return the names of the arrays that clients keep for themselves, in the model's order.

    Parameters
    ----------
    patterns
        Words with spaces or commas between them: `head` for the last layer that is trained, `body`
        for all other trained parameters and their buffers, `norm` for the parameters and
        statistics of normalization layers, or a pattern of names such as `fc2.*`. "": no array.

    Raises
    ------
    ReportableError
        If a word names no array that is trained, or a parameter under one of its two names.
    """
    frozen = {*frozen_parameters(model)}
    names = [name for name in model.state_dict() if name not in frozen]
    chosen = set[str]()
    for word in split_words(patterns):
        found = PARTS[word](model) if word in PARTS else set(match_names(names, word))
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


def split_words(patterns: str) -> list[str]:
    """Return the words of a text that names arrays."""
    return patterns.replace(",", " ").split()


def match_names(names: Iterable[str], pattern: str) -> Iterator[str]:
    """Yield the names that match a pattern."""
    return (name for name in names if fnmatchcase(name, pattern))


def _head(model: nn.Module) -> set[str]:
    """Return the arrays of the last module that has trained parameters of its own."""
    head: Iterator[str] = iter(())
    for path, module in model.named_modules():
        if any(each.requires_grad for each in module.parameters(recurse=False)):
            head = _arrays_in(path, module)
    return set(head)


def _body(model: nn.Module) -> set[str]:
    return set(model.state_dict()) - _head(model)


def _norm(model: nn.Module) -> set[str]:
    """Return the arrays of all normalization layers."""
    return {
        name
        for path, module in model.named_modules()
        if isinstance(module, NORMS)
        for name in _arrays_in(path, module)
    }


def _arrays_in(path: str, module: nn.Module) -> Iterator[str]:
    prefix = f"{path}." if path else ""
    return (prefix + name for name in module.state_dict())


PARTS: Mapping[str, Callable[[nn.Module], set[str]]] = {
    "head": _head,
    "body": _body,
    "norm": _norm,
}
