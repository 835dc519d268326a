"""Model, data, training and test."""

from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Net(nn.Module):
    """A small network for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 24)
        self.second = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the ten digits."""
        scores: Tensor = self.second(torch.tanh(self.first(x.flatten(1))))
        return scores


class Images(Dataset[dict[str, Tensor]]):
    """Images and labels by name, as Hugging Face's data sets have them."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"img": self.images[index], "label": self.labels[index]}


@cache
def all_images() -> tuple[Tensor, Tensor]:
    """Return 400 images, sorted by digit, so that clients have digits of their own, and their
    labels."""
    images, labels = load_digits(return_X_y=True)
    order = np.argsort(labels[:400], kind="stable")
    return torch.from_numpy(images[order] / 16).float().view(-1, 1, 8, 8), torch.from_numpy(
        labels[order]
    ).long()


def load_data(
    partition_id: int, num_partitions: int, batch_size: int
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return the loaders of one partition; partitions are of different sizes."""
    images, labels = all_images()
    edges = np.linspace(0.0, 1.0, num_partitions + 1) ** 1.5 * len(labels)
    mine = torch.arange(int(edges[partition_id]), int(edges[partition_id + 1]))
    held_out = torch.arange(len(mine)) % 5 == 0
    train = mine[~held_out]
    test = mine[held_out]
    trainloader = DataLoader(
        Images(images[train], labels[train]), batch_size=batch_size, shuffle=True
    )
    testloader = DataLoader(Images(images[test], labels[test]), batch_size=batch_size)
    return trainloader, testloader


def train(
    net: nn.Module, trainloader: DataLoader[Any], epochs: int, lr: float, device: torch.device
) -> float:
    """Train the model on the training set."""
    net.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(batch["img"].to(device)), batch["label"].to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net: nn.Module, testloader: DataLoader[Any], device: torch.device) -> tuple[float, float]:
    """Measure the model on the test set."""
    net.to(device)
    criterion = nn.CrossEntropyLoss()
    correct = 0
    loss = 0.0
    with torch.no_grad():
        for batch in testloader:
            outputs = net(batch["img"].to(device))
            labels = batch["label"].to(device)
            loss += criterion(outputs, labels).item()
            correct += int((outputs.argmax(1) == labels).sum().item())
    return loss / len(testloader), correct / len(testloader.dataset)  # type: ignore[arg-type]
