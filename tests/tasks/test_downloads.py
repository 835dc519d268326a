"""Downloads of data sets, from an archive that here is on this machine, and the libraries that they need."""

from collections.abc import Iterator
from functools import partial
from hashlib import md5
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.tasks.datasets import downloads
from fairbloom.tasks.datasets.downloads import fetch_from_uci, import_library
from fairbloom.tasks.datasets.store import locate
from fairbloom.tasks.task import DataFile, Setup, TaskInfo

CONTENT = b"39, Private\n"
ORIGINAL = md5(CONTENT, usedforsecurity=False).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def uci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve a folder in place of the archive; return it."""
    pytest.importorskip("pooch")
    folder = tmp_path / "served"
    (folder / "flowers").mkdir(parents=True)
    (folder / "flowers" / "iris.data").write_bytes(CONTENT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(downloads, "UCI", f"http://127.0.0.1:{server.server_port}")
    yield folder
    server.shutdown()
    server.server_close()


def info_of(digest: str, path: str = "flowers/iris.data") -> TaskInfo:
    return TaskInfo("flowers", "flowers", "nowhere", "nothing:load", files=(DataFile(path, digest),))


def setup_in(root: Path) -> Setup:
    return Setup.of({"data-dir": str(root)})


def test_files_come_to_the_same_paths_below_the_data_folder(uci: Path, tmp_path: Path) -> None:
    info = info_of(ORIGINAL)
    root = locate(info, setup_in(tmp_path / "data"), partial(fetch_from_uci, info))
    assert (root / "flowers" / "iris.data").read_bytes() == CONTENT


@pytest.mark.parametrize("info", [info_of("0" * 32), info_of(ORIGINAL, "flowers/roses.data")], ids=["other", "missing"])
def test_a_wrong_or_missing_file_is_refused_and_removed(uci: Path, tmp_path: Path, info: TaskInfo) -> None:
    with pytest.raises(FairbloomError, match=r"flowers.*cannot be downloaded.*--data-dir"):
        locate(info, setup_in(tmp_path / "data"), partial(fetch_from_uci, info))
    assert not list((tmp_path / "data").rglob("*.data"))


# Libraries ------------------------------------------------------------------------------------------------------------


def test_a_missing_library_is_named_with_its_extra() -> None:
    assert import_library("json") is __import__("json")
    with pytest.raises(ImportError, match=r"nonsense cannot be imported: .*pip install 'fairbloom\[datasets\]'"):
        import_library("nonsense.parquet", "datasets")
    with pytest.raises(ImportError, match=r"pip install nonsense$"):
        import_library("nonsense")
