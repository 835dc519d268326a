"""Networks that only benchmarks use, built for the shape of an example and a number of outputs."""

import torch
from torch import Tensor, nn

WIDTH = 384
HEADS = 6
LAYERS = 6


def pfl_cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the CNN of pfl-research's benchmark of CIFAR10: 1,626,442 parameters, with dropout."""
    channels, height, width = shape
    features = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    network = nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(features, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, outputs),
    )
    for module in network:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return network


def normed_cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a CNN with BatchNorm for small images: 6,218 parameters for digits."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), outputs),
    )


class Transformer(nn.Module):
    """A transformer that predicts the character after a line: 10,739,792 parameters.

    It has six layers of width 384, as small models of characters often have, and no dropout.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(outputs, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(shape[0], WIDTH))
        # Not nn.TransformerEncoder, which would copy one layer and its initial weights.
        self.layers = nn.Sequential(*(self._make_layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.next = nn.Linear(WIDTH, outputs)

    def forward(self, lines: Tensor) -> Tensor:
        """Return the logits of the character after the last one, shape (n, characters)."""
        read = self.layers(self.characters(lines) + self.places)
        following: Tensor = self.next(self.norm(read[:, -1]))
        return following

    @staticmethod
    def _make_layer() -> nn.Module:
        return nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
