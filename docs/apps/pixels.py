"""Grey images in arrays: one file a client, DATA_DIR/CLIENT.npz with x and y."""

from pathlib import Path

import numpy as np
import torch

from fairbloom.tasks import Examples, Setup, Splits, Task
from fairbloom.tasks.models import build


def images(setup: Setup) -> Task:
    """Grey images of 8 × 8 pixels of two classes: x and y of DATA_DIR/CLIENT.npz."""

    def splits(client):
        with np.load(Path(setup.data_dir, f"{client}.npz")) as file:
            x = torch.from_numpy(file["x"] / np.float32(255))[:, None]
            y = torch.from_numpy(file["y"])
        return Splits(train=Examples(x[:48], y[:48]), test=Examples(x[48:], y[48:]))

    clients = sorted(path.stem for path in Path(setup.data_dir).glob("*.npz"))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    return Task(
        tuple(clients), lambda: build(setup.model or "cnn", (1, 8, 8), 2, setup.seed), loss, splits
    )


def make(folder: Path) -> None:
    """Write the files of two clients to try it with."""
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(("north", "south")):
        x = np.random.default_rng(number).integers(0, 256, (60, 8, 8), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", x=x, y=(x.mean(axis=(1, 2)) > 127).astype(int))


if __name__ == "__main__":
    make(Path("arrays"))
