"""Where the files of known data sets lie, and what becomes of those that are missing or are
something else."""

import gzip
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.tasks import TASKS
from fairbloom.tasks.datasets import store
from fairbloom.tasks.datasets.store import digest_files, folder_of, locate
from fairbloom.tasks.task import Setup
from fairbloom.tasks.task_info import DataFile, TaskInfo
from tests.tables.helpers import refused_with

CONTENT = {
    "things/raw/a": b"first" * 1000,
    "things/b": b"second",
    "batches/1": b"one",
    "batches/2": b"two",
}
NOWHERE = "http://127.0.0.1:9"


def md5_of(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def info_at(server: str) -> TaskInfo:
    """Return a data set of a compressed file, a plain one and an archive of two, all at one
    address."""
    addresses = (
        f"{server}/a.gz",
        f"{server}/b",
        f"{server}/batches.tar.gz",
        f"{server}/batches.tar.gz",
    )
    files = (
        DataFile(path, md5_of(content), address)
        for (path, content), address in zip(CONTENT.items(), addresses, strict=True)
    )
    return TaskInfo("things", "Things", "nowhere", "none:load", files=tuple(files))


INFO = info_at(NOWHERE)


def setup_of(root: Path | str, *, verify: bool = True) -> Setup:
    return Setup.of({"data-dir": str(root), "verify-data": verify})


def write(place: Path, **other: bytes) -> None:
    """Write the files of the data set, with other content where it is given by a file's name."""
    for path, content in CONTENT.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(other.get(Path(path).name, content))


def left_in(root: Path) -> set[str]:
    """Return the files below a folder but for locks."""
    return {
        file.relative_to(root).as_posix()
        for file in root.rglob("*")
        if file.is_file() and file.suffix != ".lock"
    }


class Archive(SimpleHTTPRequestHandler):
    """Serves a folder, and records the requests."""

    def __init__(self, *arguments: object, asked: list[str], directory: str) -> None:
        self.asked = asked
        super().__init__(*arguments, directory=directory)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: object) -> None:
        self.asked.append(self.path)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[TaskInfo, Path, list[str]]]:
    """Serve the data set; return it, the folder that is served and the list of what was asked
    for."""
    served = tmp_path / "served"
    asked = list[str]()
    served.mkdir()
    (served / "a.gz").write_bytes(gzip.compress(CONTENT["things/raw/a"]))
    (served / "b").write_bytes(CONTENT["things/b"])
    with tarfile.open(served / "batches.tar.gz", "w:gz") as archive:
        for path in ("batches/1", "batches/2"):
            about = tarfile.TarInfo(path)
            about.size = len(CONTENT[path])
            archive.addfile(about, io.BytesIO(CONTENT[path]))
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Archive, asked=asked, directory=str(served))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield info_at(f"http://127.0.0.1:{server.server_port}"), served, asked
    server.shutdown()
    server.server_close()


def test_the_folder_is_data_dir_the_environments_or_a_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAIRBLOOM_DATA", "/of/the/environment")
    assert folder_of(setup_of("/named")) == Path("/named")
    assert folder_of(setup_of("")) == Path("/of/the/environment")
    monkeypatch.setenv("FAIRBLOOM_DATA", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert folder_of(setup_of("")) == Path("/home/somebody/.cache/fairbloom")
    assert folder_of(setup_of("~/data")) == Path("/home/somebody/data")


# Files that are there -----------------------------------------------------------------------------


def test_present_files_are_not_downloaded(tmp_path: Path) -> None:
    write(tmp_path)
    tmp_path.chmod(0o500)
    try:
        assert locate(INFO, setup_of(tmp_path)) == [tmp_path / path for path in CONTENT]
        assert locate(INFO, setup_of(tmp_path), INFO.files[1:2]) == [tmp_path / "things/b"]
        assert left_in(tmp_path) == set(CONTENT)
    finally:
        tmp_path.chmod(0o700)


def test_a_file_that_is_not_the_original_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    locate(INFO, setup_of(tmp_path))
    (tmp_path / "things/b").write_bytes(b"forged")  # after it has been checked
    forged = tmp_path / "things/b"
    with refused_with(str(forged), md5_of(b"forged"), INFO.files[1].md5, "verify-data=false"):
        locate(INFO, setup_of(tmp_path))
    assert locate(INFO, setup_of(tmp_path, verify=False))
    # it has no fixed checksum
    assert locate(INFO, setup_of(tmp_path), [each._replace(md5="") for each in INFO.files])


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_recorded_checksum_names_its_algorithm(
    *, fixed: bool, verify: bool, tmp_path: Path
) -> None:
    write(tmp_path)
    assert digest_files(
        INFO if fixed else replace(INFO, files=[each._replace(md5="") for each in INFO.files]),
        setup_of(tmp_path, verify=verify),
    ) == {each.path: f"md5 {each.md5}" for each in INFO.files}


# Files that are missing ---------------------------------------------------------------------------


def test_missing_files_are_downloaded_once(
    web: tuple[TaskInfo, Path, list[str]], tmp_path: Path
) -> None:
    info, _, asked = web
    root = tmp_path / "not" / "there" / "yet"
    together = threading.Barrier(4)

    def want(_: int) -> list[Path]:
        together.wait()
        return locate(info, setup_of(root))

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(want, range(4))] == [[root / path for path in CONTENT]] * 4
    assert asked == ["/a.gz", "/b", "/batches.tar.gz"]
    assert {path: (root / path).read_bytes() for path in left_in(root)} == CONTENT
    (root / "batches/2").unlink()
    locate(info, setup_of(root))
    assert asked[3:] == ["/batches.tar.gz"]
    assert left_in(root) == set(CONTENT)


def test_a_download_that_fails_leaves_nothing_and_a_remedy(
    web: tuple[TaskInfo, Path, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    info, served, _ = web
    page = b"<html>an error page</html>"
    root = tmp_path / "data"
    for path, fail in (
        ("a.gz", lambda: (served / "a.gz").write_bytes(page)),
        ("batches.tar.gz", lambda: (served / "batches.tar.gz").write_bytes(page)),
        ("b", lambda: monkeypatch.setattr(Archive, "send_header", longer_than_it_is)),
        ("b", lambda: (served / "b").unlink()),
    ):
        with subtests.test(path=path, fail=fail):
            fail()
            files = [file for file in info.files if file.address.endswith(f"/{path}")]
            words = ("task = 'things'", files[0].path, "put the files there", "--data-dir")
            with refused_with(*words, str(root)) as refusal:
                locate(info, setup_of(root), files)
            assert "\n" not in str(refusal.value)
            assert not left_in(root)  # half a file would be taken for the whole one
            monkeypatch.undo()


def longer_than_it_is(handler: Archive, name: str, value: str) -> None:
    """Promise ten bytes more than there are."""
    value = str(int(value) + 10) if name == "Content-Length" else value
    SimpleHTTPRequestHandler.send_header(handler, name, value)


def test_a_place_that_cannot_be_written_to_is_said(
    web: tuple[TaskInfo, Path, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        FairbloomError, match=r"things/raw/a is not in .*file.* cannot be downloaded"
    ):
        locate(web[0], setup_of(tmp_path / "file"))
    (tmp_path / "data/things/b").mkdir(parents=True)
    with pytest.raises(FairbloomError, match=r"cannot be downloaded \(IsADirectoryError"):
        locate(web[0], setup_of(tmp_path / "data"))


# What is known ------------------------------------------------------------------------------------


def test_no_known_data_sets_share_a_file(subtests: pytest.Subtests) -> None:
    files = [file for info in TASKS.values() for file in info.files]
    assert len({file.path for file in files}) == len(files) > 20
    for file in files:
        with subtests.test(file=file):
            assert not Path(file.path).is_absolute()
            assert ".." not in Path(file.path).parts
            assert file.md5 == "" or len(bytes.fromhex(file.md5)) == 16
            assert not file.address or file.address.startswith(
                "https://" if "fashion-mnist" not in file.address else "http://"
            )


@pytest.mark.parametrize("name", [name for name, info in TASKS.items() if info.files])
def test_the_real_files_that_are_here_are_the_originals(name: str) -> None:
    root = Path(os.environ.get(store.ENVIRONMENT, "/nowhere"))
    info = TASKS[name]
    if not all((root / file.path).is_file() for file in info.files):
        pytest.skip(f"FAIRBLOOM_DATA names no folder with {info.files[0].path}")
    assert locate(info, setup_of(root))
