"""Training and test functions as Flower's quickstart has them."""

import torch
from torch.utils.data import DataLoader


def train(net: torch.nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
    return loss.item()


def test(net: torch.nn.Module, loader: DataLoader) -> tuple[float, float]:
    outputs, labels = zip(*((net(images), labels) for images, labels in loader), strict=True)
    answers, right = torch.cat(outputs), torch.cat(labels)
    loss = torch.nn.functional.cross_entropy(answers, right).item()
    return loss, (answers.argmax(dim=1) == right).float().mean().item()
