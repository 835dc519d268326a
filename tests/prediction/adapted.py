"""A user's model with adapters of peft, inside a module of the user's own."""

from collections import OrderedDict

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn


class Adapted(nn.Module):
    """A layer with adapters that say something from the first, and a head that is trained as a
    whole."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        first = nn.Linear(inputs, 24)
        last = nn.Linear(24, outputs)
        layers = OrderedDict(
            {"flat": nn.Flatten(), "first": first, "bend": nn.Tanh(), "last": last}
        )
        config = LoraConfig(
            r=2, target_modules=["first"], modules_to_save=["last"], init_lora_weights=False
        )
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.net = get_peft_model(nn.Sequential(layers), config)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.scale * self.net(images)
        return outputs
