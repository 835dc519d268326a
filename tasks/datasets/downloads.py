"""Where known data sets are downloaded from: the UCI archive, the Hugging Face hub, torchvision, or an address.

Each function downloads the files of a data set into a folder, with progress bars.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from ..task import TaskInfo

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"


def fetch_from_uci(info: TaskInfo, place: Path) -> None:
    """Download files of the UCI archive, where they lie in a folder that is called as the data set."""
    fetch_from_address(info, f"{UCI}/{info.name}", place)


def fetch_from_address(info: TaskInfo, address: str, place: Path) -> None:
    """Download files from a folder on the web; each must have its checksum."""
    retrieve = import_library("pooch", "downloads").retrieve
    for file in info.files:
        path = place / file.path
        retrieve(f"{address}/{path.name}", f"md5:{file.md5}", fname=path.name, path=path.parent, progressbar=True)


def fetch_from_hub(info: TaskInfo, repository: str, place: Path) -> None:
    """Download files of a repository of the Hugging Face hub, in which they have the same paths as in their folder."""
    hub = import_library("huggingface_hub", "datasets")
    for file in info.files:
        folder, _, inside = file.path.partition("/")
        hub.hf_hub_download(repository, inside, repo_type="dataset", local_dir=place / folder)


def fetch_from_torchvision(info: TaskInfo, dataset: str, place: Path) -> None:
    """Download one of torchvision's data sets, with its checksums, laid out as it lays them out."""
    getattr(import_library("torchvision.datasets", "images"), dataset)(place, download=True)


def import_library(name: str, extra: str = "") -> ModuleType:
    """Return a library that data sets alone need, imported when one is downloaded or read."""
    try:
        return import_module(name)
    except ImportError as error:
        what = f"'fairbloom[{extra}]'" if extra else name
        raise ImportError(f"{name.partition('.')[0]} cannot be imported: {error}: pip install {what}") from error
