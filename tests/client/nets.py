"""Models as users bring them, for images of the digits; each is a corner of PyTorch."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear


class Net(nn.Module):
    """A layer, something in between, and a layer."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(64, 24)
        self.last = nn.Linear(24, outputs)

    def between(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.between(torch.relu(self.first(images.flatten(1)))))  # type: ignore[no-any-return]


class Dropping(Net):
    """Dropout as a module, as a function, and always, in evaluation too."""

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs)
        self.dropout = nn.Dropout(0.2)

    def between(self, hidden: Tensor) -> Tensor:
        return dropout(dropout(self.dropout(hidden), 0.1, self.training), 0.05)


class Normed(nn.Module):
    """BatchNorm of images and of vectors."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 4, 3, stride=2),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(36, 12),
            nn.BatchNorm1d(12, momentum=None),
            nn.Linear(12, outputs),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)  # type: ignore[no-any-return]


class Frozen(Net):
    """A first layer that is not trained."""

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs)
        self.first.requires_grad_(False)


class Untouched(Net):
    """A layer that the loss never touches, and one that it touches in batches of even size
    alone."""

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs)
        self.idle = nn.Linear(3, 2)
        self.sometimes = nn.Linear(24, 24)

    def between(self, hidden: Tensor) -> Tensor:
        return self.sometimes(hidden) if len(hidden) % 2 == 0 else hidden


class Tied(Net):
    """One weight under two names, as in an autoencoder or a language model."""

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs)
        self.back = nn.Linear(64, 24)
        self.back.weight = self.first.weight

    def between(self, hidden: Tensor) -> Tensor:
        return self.back(linear(hidden, self.first.weight.t()))  # type: ignore[no-any-return]


class Repeated(nn.Module):
    """A layer with BatchNorm that comes twice, so that buffers have two names, too."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.layers = nn.Sequential(nn.Flatten(), block, block, nn.Linear(64, outputs))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)  # type: ignore[no-any-return]


class Summed(Net):
    """Parameters that share one gradient tensor in autograd, and one with an expanded gradient."""

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs)
        self.base = nn.Parameter(torch.randn(24, 24) / 5)
        self.change = nn.Parameter(torch.zeros(24, 24))
        self.shift = nn.Parameter(torch.zeros(7))

    def between(self, hidden: Tensor) -> Tensor:
        return hidden @ (self.base + self.change) + self.shift.sum()


class Moded(Net):
    """Another forward in training than in evaluation."""

    def between(self, hidden: Tensor) -> Tensor:
        return 2.0 * hidden if self.training else hidden


class Masked(Net):
    """A buffer that is not in the state, and an integer one that is."""

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs)
        self.register_buffer("mask", (torch.arange(24) % 3 > 0).float(), persistent=False)
        self.register_buffer("steps", torch.tensor(0))

    def between(self, hidden: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return hidden * self.mask  # type: ignore[operator, no-any-return]


class Double(Net):
    """Weights in float64."""

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs)
        self.double()

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.double())


class Autocast(Net):
    """Weights in float32, arithmetic in bfloat16."""

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16):
            return super().forward(images).float()


class Half(Net):
    """Weights in float16, outputs in float32."""

    kind = torch.float16

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs)
        self.to(self.kind)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.to(self.kind)).float()


class BFloat(Half):
    """Weights in bfloat16, outputs in float32."""

    kind = torch.bfloat16


class FrozenBFloat(BFloat):
    """Weights in bfloat16, of which those of the first layer are frozen."""

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs)
        self.first.requires_grad_(False)


class Auxiliary(Net):
    """A second output in training, as GoogLeNet has."""

    def forward(self, images: Tensor) -> Tensor:
        outputs = super().forward(images)
        return (outputs, images) if self.training else outputs  # type: ignore[return-value]


# Those that a run can train.
USABLE = (
    Dropping,
    Normed,
    Frozen,
    Untouched,
    Tied,
    Repeated,
    Summed,
    Moded,
    Masked,
    Double,
    Half,
    Autocast,
    BFloat,
    FrozenBFloat,
)
