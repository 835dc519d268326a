"""MNIST: 70,000 hand-written digits of 28×28 pixels."""

from .idx import read
from .pictures.album import Album

ALBUM = Album(
    name="mnist",
    shape=(1, 28, 28),
    classes=("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    brightest=255.0,
    read=lambda setup: read("mnist", setup, "MNIST"),
)

load = ALBUM.load
