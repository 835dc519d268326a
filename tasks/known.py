"""The tasks that are known by name; nothing here imports PyTorch, since names are wanted without it."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairbloom.protocol.parameters import Choices, Parameter, Range

from .files.known import FILES
from .task import LABEL_PARTITIONS, DataFile, PictureSet, TaskInfo

ROTATED = Parameter("rotated-clients", int, 0, "Number of clients with images turned by 90 degrees", Range("[0, inf)"))

PICTURE_SETTINGS = (
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
    ROTATED,
)

WITH_TEST_SET: Mapping[str, Any] = {
    "loader": "fairbloom.tasks.datasets.pictures:load",
    "partitions": (*LABEL_PARTITIONS, "class"),
    "settings": PICTURE_SETTINGS,
    "clients": 100,
    "natural": ("class",),
    "split_by": ("test", ("merged", "train")),
}
"""What is common to all pictures with an official test set, which their last files have."""

SETTINGS: Mapping[str, tuple[Parameter, ...]] = {
    "digits": (ROTATED,),
    "adult": (
        Parameter(
            "groups",
            str,
            "described",
            "Who the clients of partition = phd are: described takes people with and without a doctorate, and "
            "published those whom the code behind FedMGDA+'s Table 7 takes in their place",
            Choices("described", "published"),
        ),
        Parameter("group", str, "", "Columns, or categories, to report groups by, as in 'sex,race=White'"),
        Parameter("left-out", str, "", "Columns of categories that are no inputs of the model, as in 'sex,race'"),
    ),
    "heart-disease": (
        Parameter(
            "split",
            int,
            0,
            "Random state by which a third of each hospital's patients is drawn for testing; 43 is FLamby's split, "
            "and 0 draws by the run's seed",
            Range("[0, 4294967295]"),
        ),
        Parameter("group", str, "", "What to report groups by: sex, or a number, as in 'sex,age>=60'"),
    ),
    "synthetic": (
        Parameter("alpha", float, 1.0, "α: how much the devices' models differ", Range("[0, inf)")),
        Parameter("beta", float, 1.0, "β: how much the devices' inputs differ", Range("[0, inf)")),
        Parameter("iid", bool, False, "Whether all devices are alike; α and β have no effect then"),
    ),
}
"""The settings that belong to one task alone, where they are not those of all pictures."""


def _read_info(name: str, table: Mapping[str, Any]) -> TaskInfo:
    """Return what known.toml says of a data set."""
    about: dict[str, Any] = {"settings": SETTINGS.get(name, ())} if "loader" in table else {**WITH_TEST_SET}
    about |= {key: _as_tuple(value) for key, value in table.items()}
    files = tuple(DataFile(*each) for each in about.pop("files", ()))
    return (PictureSet if "labels" in about else TaskInfo)(name=name, files=files, **about)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


DATA_SETS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

TASKS = {info.name: info for info in (*(_read_info(name, table) for name, table in DATA_SETS.items()), *FILES)}
"""Every task by its name on the command line, in the order in which they are listed."""
