"""The model, the data, and the functions that train and test: all that you replace by yours."""

from collections.abc import Iterable

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

CLIENTS = 8
"""The number of clients that the digits are dealt to."""

SIDEWAYS = (1, 5)
"""The clients with a camera mounted sideways: the few that FedAvg serves badly."""

Batches = Iterable[tuple[Tensor, Tensor]]


class Net(nn.Module):
    """A small network for images of 8×8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for each of the ten digits."""
        scores: Tensor = self.layers(images)
        return scores


def load_data(partition_id: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """Return a client's training and test data.

    A deployed client reads what lies on its machine.
    """
    images, labels = load_digits(return_X_y=True)
    mine = np.random.default_rng(seed=0).permutation(len(labels))[partition_id::CLIENTS]
    squares = images[mine].reshape(-1, 8, 8) / 16
    if partition_id in SIDEWAYS:
        squares = np.rot90(squares, axes=(1, 2)).copy()
    data = TensorDataset(torch.tensor(squares, dtype=torch.float32), torch.tensor(labels[mine]))
    train, test = torch.utils.data.random_split(data, [0.7, 0.3], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(
        test, batch_size=batch_size
    )


def train(net: nn.Module, batches: Batches, epochs: int, lr: float, device: torch.device) -> float:
    """Train the model on the training data; return the mean loss of a batch."""
    net.to(device)
    net.train()
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    losses = []
    for _ in range(epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            loss = loss_of(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(net: nn.Module, batches: Batches, device: torch.device) -> tuple[float, float]:
    """Return the model's mean loss and its accuracy."""
    net.to(device)
    net.eval()
    loss, right, examples = 0.0, 0, 0
    with torch.no_grad():
        for images, labels in batches:
            scores = net(images.to(device))
            loss += nn.functional.cross_entropy(scores, labels.to(device), reduction="sum").item()
            right += int((scores.argmax(dim=1) == labels.to(device)).sum())
            examples += len(labels)
    return loss / examples, right / examples
