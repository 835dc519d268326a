"""Small data sets that are made up, in the files of the real ones: the loaders that read these read
the originals."""

import pickle
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fairbloom.protocol.settings import Value
from fairbloom.tasks import TASKS, Task, load_task
from fairbloom.tasks.task import AnyExamples

Labels = NDArray[np.int64]


def load(name: str, folder: Path | None = None, **settings: Value) -> Task:
    """Load a data set from a folder of made-up files, or the real one; `task__own` is the setting
    task.own."""
    own: dict[str, Value] = {
        key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()
    }
    place: dict[str, Value] = {"data-dir": str(folder), "verify-data": False} if folder else {}
    return load_task({"task": name, **place, **own})


def everything(examples: AnyExamples) -> tuple[Tensor, Tensor]:
    """Return the inputs, which are one tensor, and the targets."""
    inputs, targets = examples[0 : len(examples)]
    assert isinstance(inputs, Tensor)
    return inputs, targets


def pictures(labels: Labels, shape: tuple[int, int, int], seed: int = 0) -> NDArray[np.uint8]:
    """Return images, shape (n, channels, height, width), which a network can tell apart: bars at a
    class's place."""
    images = np.random.default_rng(seed).integers(0, 100, (len(labels), *shape), dtype=np.uint8)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[label % shape[0], (3 * label) % shape[1], :] = 255
        image[:, :, (7 * label) % shape[2]] = 255
    return images


def balanced(count: int, classes: int) -> Labels:
    """Return `count` labels, each class as often as the others."""
    return np.arange(count) % classes


# MNIST --------------------------------------------------------------------------------------------


def idx(path: Path, array: NDArray[np.uint8]) -> Path:
    """Write an array as an IDX file of bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
    )
    return path


def mnist(root: Path, train: int = 200, test: int = 40, folder: str = "MNIST") -> Path:
    """Write the four files of MNIST."""
    for part, count in (("train", train), ("t10k", test)):
        labels = balanced(count, 10)
        idx(
            root / folder / "raw" / f"{part}-images-idx3-ubyte", pictures(labels, (1, 28, 28))[:, 0]
        )
        idx(root / folder / "raw" / f"{part}-labels-idx1-ubyte", labels.astype(np.uint8))
    return root


# CIFAR --------------------------------------------------------------------------------------------


class AsPython2(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes a pickle as Python 2 did, which has written CIFAR: texts and arrays' content are byte
    strings."""

    def save(self, item: Any, save_persistent_id: bool = True) -> None:
        if isinstance(item, str | bytes):
            content = item.encode("latin1") if isinstance(item, str) else item
            self.write(pickle.BINSTRING + len(content).to_bytes(4, "little") + content)
        elif item is np.empty(0).__reduce__()[0]:
            self.write(b"cnumpy.core.multiarray\n_reconstruct\n")
        else:
            super().save(item, save_persistent_id)


def pickled(path: Path, batch: Mapping[str, Any]) -> Path:
    """Write a batch in the old format of pickles."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        AsPython2(file, 2).dump(dict(batch))
    return path


def cifar10(root: Path, train: int = 200, test: int = 40) -> Path:
    """Write CIFAR-10's five batches of training images and one of test images."""
    sizes = {f"data_batch_{k}": train // 5 for k in range(1, 6)} | {"test_batch": test}
    for k, (name, count) in enumerate(sizes.items()):
        labels = balanced(count, 10)
        batch = {
            "batch_label": name,
            "labels": labels.tolist(),
            "filenames": [f"{i}.png" for i in range(count)],
        }
        data = pictures(labels, (3, 32, 32), seed=k).reshape(count, -1)
        pickled(root / "cifar-10-batches-py" / name, {**batch, "data": data})
    return root


def cifar100(root: Path, train: int = 200, test: int = 20) -> Path:
    """Write CIFAR-100's two files."""
    for name, count in (("train", train), ("test", test)):
        labels = balanced(count, 100)
        batch = {
            "fine_labels": labels.tolist(),
            "coarse_labels": (labels // 5).tolist(),
            "data": pictures(labels, (3, 32, 32)).reshape(count, -1),
        }
        pickled(root / "cifar-100-python" / name, batch)
    return root


# The Hugging Face hub -----------------------------------------------------------------------------


def png(image: NDArray[np.uint8]) -> bytes:
    """Return the PNG file of an image, shape (channels, height, width)."""
    content = BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(content, "PNG")
    return content.getvalue()


def hub_parquet(path: Path, images: NDArray[np.uint8], **others: Sequence[Any]) -> Path:
    """Write a table of images as the hub has it: a file's content and its path in each cell."""
    # installed by the extra datasets
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": png(image), "path": f"{i}.png"} for i, image in enumerate(images)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    parquet.write_table(pa.table({"image": pa.array(cells, kind), **others}), path)
    return path


def cinic10(root: Path, count: int = 100) -> Path:
    """Write CINIC-10's three files."""
    for seed, file in enumerate(TASKS["cinic10"].files):
        labels = balanced(count, 10)
        hub_parquet(root / file.path, pictures(labels, (3, 32, 32), seed), label=labels)
    return root


def femnist(root: Path, sizes: Mapping[str, int]) -> Path:
    """Write FEMNIST's file, with these numbers of characters by writer."""
    labels = np.concatenate([balanced(count, 62) for count in sizes.values()])
    writers = [name for name, count in sizes.items() for _ in range(count)]
    others = {"writer_id": writers, "hsf_id": [0] * len(labels), "character": labels}
    hub_parquet(root / TASKS["femnist"].files[0].path, pictures(labels, (1, 28, 28)), **others)
    return root


def stackoverflow(root: Path, texts: Mapping[str, Sequence[Any]]) -> Path:
    """Write each user's sentences as a parquet table of TensorFlow Federated's columns."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = root / TASKS["stackoverflow"].files[0].path
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [(user, text) for user, sentences in texts.items() for text in sentences]
    users, tokens = ([row[place] for row in rows] for place in (0, 1))
    table = pa.table({"client_id": users, "score": [0] * len(rows), "tokens": tokens})
    parquet.write_table(table, path)
    return root


# Shakespeare --------------------------------------------------------------------------------------


def shakespeare(root: Path, speeches: Sequence[tuple[str, str]]) -> Path:
    """Write plays as tiny Shakespeare has them."""
    path = root / "shakespeare" / "input.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "\n\n".join(f"{name}:\n{speech}" for name, speech in speeches) + "\n", "latin-1"
    )
    return path
