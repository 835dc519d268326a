"""CIFAR-100: 60,000 coloured pictures of 100 kinds of things of 32×32 pixels, in the format of CIFAR-10."""

from .pictures.album import Album
from .pictures.formats import SHAPE, read

ALBUM = Album(
    name="cifar100",
    shape=SHAPE,
    classes=(
        *("apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle"),
        *("bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle"),
        *("chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur"),
        *("dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard"),
        *("lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain"),
        *("mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck"),
        *("pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road"),
        *("rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake"),
        *("spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone"),
        *("television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale"),
        *("willow_tree", "wolf", "woman", "worm"),
    ),
    brightest=255.0,
    read=lambda setup: read("cifar100", setup, "CIFAR100", "fine_labels"),
)

load = ALBUM.load
