"""Fashion-MNIST: 70,000 pictures of clothes of 28×28 pixels, in the format of MNIST."""

from .idx import read
from .pictures.album import Album

ALBUM = Album(
    name="fashion-mnist",
    shape=(1, 28, 28),
    classes=("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"),
    brightest=255.0,
    read=lambda setup: read("fashion-mnist", setup, "FashionMNIST"),
)

load = ALBUM.load
