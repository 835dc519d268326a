"""The names of torchvision's classifiers: `torchvision:resnet18` is a model.

A device accepts these names from a server, like the names of built-in models, so they are listed
here. PyTorch is not imported.
"""

from fairbloom.errors import FairbloomError, did_you_mean, join_names

PREFIX = "torchvision:"

CLASSIFIERS = (
    "alexnet",
    *(f"convnext_{size}" for size in ("tiny", "small", "base", "large")),
    *(f"densenet{layers}" for layers in (121, 161, 169, 201)),
    *(f"efficientnet_b{number}" for number in range(8)),
    *(f"efficientnet_v2_{size}" for size in "sml"),
    "googlenet",
    "inception_v3",
    "maxvit_t",
    *(f"mnasnet{width}" for width in ("0_5", "0_75", "1_0", "1_3")),
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    *(f"regnet_x_{size}" for size in ("400mf", "800mf", "1_6gf", "3_2gf", "8gf", "16gf", "32gf")),
    *(f"regnet_y_{size}" for size in ("400mf", "800mf", "1_6gf", "3_2gf", "8gf", "16gf", "32gf")),
    "regnet_y_128gf",
    *(f"resnet{layers}" for layers in (18, 34, 50, 101, 152)),
    "resnext50_32x4d",
    "resnext101_32x8d",
    "resnext101_64x4d",
    *(f"shufflenet_v2_x{width}" for width in ("0_5", "1_0", "1_5", "2_0")),
    "squeezenet1_0",
    "squeezenet1_1",
    *(f"swin_{size}" for size in "tsb"),
    *(f"swin_v2_{size}" for size in "tsb"),
    *(f"vgg{layers}{norm}" for layers in (11, 13, 16, 19) for norm in ("", "_bn")),
    *(f"vit_{size}" for size in ("b_16", "b_32", "l_16", "l_32", "h_14")),
    "wide_resnet50_2",
    "wide_resnet101_2",
)


def is_classifier(model: str) -> bool:
    """Return whether a model's name is that of a classifier of torchvision."""
    return model.startswith(PREFIX) and model.removeprefix(PREFIX) in CLASSIFIERS


def check_classifier(model: str) -> None:
    """Raise FairbloomError if a name that begins with torchvision: is not a known classifier."""
    name = model.removeprefix(PREFIX)
    if name not in CLASSIFIERS:
        raise FairbloomError(
            f"model = {model!r}: torchvision has no such classifier:"
            f" {did_you_mean(name, CLASSIFIERS)}there are {join_names(CLASSIFIERS)}"
        )
