"""CIFAR-10: 60,000 coloured pictures of animals and vehicles of 32×32 pixels."""

from .pictures.album import Album
from .pictures.formats import SHAPE, read

ALBUM = Album(
    name="cifar10",
    shape=SHAPE,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    brightest=255.0,
    read=lambda setup: read("cifar10", setup, "CIFAR10", "labels"),
)

load = ALBUM.load
