"""A user's model with adapters of peft, and one inside another module."""

from collections import OrderedDict

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn


def lora(inputs: int, outputs: int) -> nn.Module:
    """A layer with adapters that say something from the first, and a head that is trained as a whole."""
    layers = {"flat": nn.Flatten(), "first": nn.Linear(inputs, 24), "bend": nn.Tanh(), "last": nn.Linear(24, outputs)}
    config = LoraConfig(r=2, target_modules=["first"], modules_to_save=["last"], init_lora_weights=False)
    model: nn.Module = get_peft_model(nn.Sequential(OrderedDict(layers)), config)  # type: ignore[arg-type]
    return model


class Inside(nn.Module):
    """The same inside a module of the user's own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.scale, self.net = nn.Parameter(torch.tensor(2.0)), lora(inputs, outputs)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.scale * self.net(images)
        return outputs
