"""Adapters beside the layers of a model, as peft makes them: an export holds layers into which they are merged."""

import copy

from torch import nn

MERGE = "merge_and_unload"
"""The method by which peft's models merge their adapters."""


def merged(module: nn.Module) -> nn.Module:
    """Return a copy of a model with its adapters merged into their layers, or the model itself if it has none."""
    has_adapters = any(hasattr(each, MERGE) for each in module.modules())
    return _merged(copy.deepcopy(module)) if has_adapters else module


def _merged(module: nn.Module) -> nn.Module:
    """Merge the adapters of a module, or of those inside it, in place; return what takes its place."""
    if hasattr(module, MERGE):
        plain: nn.Module = getattr(module, MERGE)()
        return plain
    for name, child in list(module.named_children()):
        setattr(module, name, _merged(child))
    return module
