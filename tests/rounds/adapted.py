"""A network of the user's whose layers are frozen but for small adapters beside them, and one that breaks that."""

import torch
from torch import Tensor, nn


class Adapted(nn.Module):
    """Two frozen layers with trained adapters of rank 2, a frozen BatchNorm, whose statistics change, and a head."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, 96).requires_grad_(False), nn.Linear(96, 96).requires_grad_(False)
        self.norm = nn.BatchNorm1d(96).requires_grad_(False)
        self.down, self.up = nn.Linear(96, 2, bias=False), nn.Linear(2, 96, bias=False)
        self.head = nn.Linear(96, outputs)
        nn.init.zeros_(self.up.weight)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.first(images.flatten(1))))
        outputs: Tensor = self.head(torch.tanh(self.second(hidden) + self.up(self.down(hidden))))
        return outputs


class Plain(Adapted):
    """The same without BatchNorm, so that clients can be stacked."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.norm = nn.Identity()  # type: ignore[assignment]


class Following(Plain):
    """One whose frozen layer follows another one as it is trained."""

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.second.bias.mul_(0.9)
        return super().forward(images)
