"""Chains of linear layers and activations: models that are computed row by row."""

from torch import nn

# Activations that map each number by itself, without parameters and without random draws.
ELEMENTWISE: tuple[type[nn.Module], ...] = (
    nn.Identity,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
    nn.Softsign,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Tanh,
    nn.Tanhshrink,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Hardsigmoid,
)


def chain_layers(model: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a chain of linear layers and activations, None for other models."""
    if type(model) is nn.Sequential:
        layers: list[nn.Module] = []
        for child in model:
            part = chain_layers(child)
            if part is None:
                return None
            layers += part
        return layers
    flat = type(model) is nn.Flatten and model.start_dim == 1 and model.end_dim == -1
    # The exact type, as a subclass may compute something else; and hooks may change the outputs.
    plain = type(model) in (nn.Linear, *ELEMENTWISE) and not (
        model._forward_hooks or model._forward_pre_hooks
    )
    return [model] if flat or plain else None
