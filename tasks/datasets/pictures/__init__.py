"""The data sets of pictures with an official test set, and the settings that all of them have.

A data set in one of the three formats takes one entry in PICTURES. Nothing here imports PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fairbloom.imports import imported
from fairbloom.protocol.parameters import Choices, Parameter, Range
from fairbloom.protocol.settings import Value

from ...task import LABEL_PARTITIONS, DataFile, Setup, TaskInfo

SHIFTS = (
    Parameter("rotated-clients", int, 0, "Number of clients with images turned by 90 degrees", Range("[0, inf)")),
    Parameter("noisy-clients", int, 0, "Number of clients with noise of half the range of grey", Range("[0, inf)")),
    Parameter("dimmed-clients", int, 0, "Number of clients with a quarter of the brightness", Range("[0, inf)")),
)
"""How the images of some clients differ from the others': the same classes through another camera."""

SETTINGS = (
    Parameter("classes", str, "", "Numbers of the classes to keep, as in '0,2,6'; by default all"),
    Parameter(
        "test",
        str,
        "merged",
        "Test images: merged holds out a share of official training and test images, train one of the "
        "training images alone, and official deals the official test images like the training images",
        Choices("merged", "train", "official"),
    ),
    Parameter(
        "standardise",
        str,
        "channel",
        "What pixels are standardised by, over the official training images: mean and deviation of a channel, or of "
        "each pixel, or none, which leaves them from 0 to 1",
        Choices("channel", "pixel", "none"),
    ),
    *SHIFTS,
)


@dataclass(frozen=True, kw_only=True)
class PictureSet(TaskInfo):
    """What is known of a data set of pictures, each with one label.

    `format` is "idx" (MNIST), "cifar" (pickled batches) or "parquet"; `origin` torchvision's class or, for "parquet", a
    repository on the Hugging Face hub; `target` the column of labels; `shape` (channels, height, width); `files` end
    with the test set, which for "idx" is two files: images and labels.
    """

    loader: str = f"{__name__}.formats:load"
    partitions: tuple[str, ...] = (*LABEL_PARTITIONS, "class")
    settings: tuple[Parameter, ...] = SETTINGS
    clients: int = 100
    natural: tuple[str, ...] = ("class",)
    split_by: tuple[str, tuple[Value, ...]] | None = ("test", ("merged", "train"))
    classes: int = field(init=False)
    format: Literal["idx", "cifar", "parquet"]
    origin: str
    target: str = ""
    shape: tuple[int, int, int]
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        """Count the classes."""
        object.__setattr__(self, "classes", len(self.labels))
        super().__post_init__()

    def make(self, setup: Setup, **arguments: Value) -> object:
        """Return what the loader makes of this data set."""
        return imported("task", self.loader)(self, setup, **arguments)


def _name_idx_files(folder: str, *digests: str) -> tuple[DataFile, ...]:
    """Return the four files of a data set in the format of MNIST."""
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(DataFile(f"{folder}/raw/{part}-ubyte", md5) for part, md5 in zip(parts, digests, strict=True))


def _name_batches(folder: str, **digests: str) -> tuple[DataFile, ...]:
    return tuple(DataFile(f"{folder}/{name}", md5) for name, md5 in digests.items())


DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

ANIMALS_AND_VEHICLES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

PICTURES = (
    PictureSet(
        name="mnist",
        summary="70,000 hand-written digits of 28×28 pixels",
        source="LeCun, Cortes, Burges, 1998; through torchvision",
        models=("logistic", "softmax", "mlp", "cnn", "mnist-cnn", "lenet"),
        format="idx",
        origin="MNIST",
        shape=(1, 28, 28),
        labels=DIGITS,
        files=_name_idx_files(
            "MNIST",
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    PictureSet(
        name="fashion-mnist",
        summary="70,000 pictures of clothes of 28×28 pixels",
        source="Xiao, Rasul, Vollgraf, 2017; through torchvision",
        models=("mlp", "logistic", "softmax", "cnn", "lenet", "mnist-cnn"),
        format="idx",
        origin="FashionMNIST",
        shape=(1, 28, 28),
        labels=("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"),
        files=_name_idx_files(
            "FashionMNIST",
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
    PictureSet(
        name="cifar10",
        summary="60,000 coloured pictures of animals and vehicles of 32×32 pixels, in ten classes",
        source="Krizhevsky, 2009; through torchvision",
        models=("cifar-cnn", "resnet18-gn", "mlp", "mlp-softmax", "logistic", "cnn"),
        format="cifar",
        origin="CIFAR10",
        target="labels",
        shape=(3, 32, 32),
        labels=ANIMALS_AND_VEHICLES,
        files=_name_batches(
            "cifar-10-batches-py",
            data_batch_1="c99cafc152244af753f735de768cd75f",
            data_batch_2="d4bba439e000b95fd0a9bffe97cbabec",
            data_batch_3="54ebc095f3ab1f0389bbae665268c751",
            data_batch_4="634d18415352ddfa80567beed471001a",
            data_batch_5="482c414d41f54cd18b22e5b47cb7c3cb",
            test_batch="40351d587109b95175f43aff81a1287e",
        ),
    ),
    PictureSet(
        name="cifar100",
        summary="60,000 coloured pictures of 32×32 pixels, in a hundred classes",
        source="Krizhevsky, 2009; through torchvision",
        models=("resnet18-gn", "cifar-cnn", "mlp", "logistic", "cnn"),
        format="cifar",
        origin="CIFAR100",
        target="fine_labels",
        shape=(3, 32, 32),
        labels=(
            *("apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle"),
            *("bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle"),
            *("chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur"),
            *("dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard"),
            *("lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle"),
            *("mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear"),
            *("pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon"),
            *("ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail"),
            *("snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone"),
            *("television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale"),
            *("willow_tree", "wolf", "woman", "worm"),
        ),
        files=_name_batches(
            "cifar-100-python",
            train="16019d7e3df5f24257cddd939b257f8d",
            test="f0ef6b0ae62326f3e7ffdfab6717acfc",
        ),
    ),
    PictureSet(
        name="cinic10",
        summary="270,000 coloured pictures of 32×32 pixels, in the ten classes of CIFAR-10",
        source="Darlow, Crowley, Antoniou, Storkey, 2018; from the Hugging Face hub, flwrlabs/cinic10",
        models=("resnet18-gn", "cifar-cnn", "mlp", "logistic", "cnn"),
        format="parquet",
        origin="flwrlabs/cinic10",
        target="label",
        shape=(3, 32, 32),
        labels=ANIMALS_AND_VEHICLES,
        files=tuple(  # they may be uploaded again, so they have no checksums; as in the papers, validation images train
            DataFile(f"cinic10/data/{part}-00000-of-00001.parquet", "") for part in ("train", "validation", "test")
        ),
    ),
)
"""What is known of each data set, in the order in which they are listed."""
