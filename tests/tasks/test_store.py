"""Where the files of known data sets lie, and what becomes of those that are missing or are something else."""

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.tasks import TASKS
from fairbloom.tasks.datasets import store
from fairbloom.tasks.datasets.store import folder_of, locate
from fairbloom.tasks.task import DataFile, Setup, TaskInfo

CONTENT = {"things/raw/a": b"first", "things/b": b"second"}


def md5_of(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


INFO = TaskInfo(
    "things",
    "Things",
    "nowhere",
    "none:load",
    files=tuple(DataFile(path, md5_of(content)) for path, content in CONTENT.items()),
)


def setup_of(root: Path | str, *, verify: bool = True) -> Setup:
    return Setup.of({"data-dir": str(root), "verify-data": verify})


def write(place: Path, **other: bytes) -> None:
    """Write the files of the data set, with other content where it is given by a file's name."""
    for path, content in CONTENT.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(other.get(Path(path).name, content))


def never(place: Path) -> None:
    raise AssertionError("nothing is to be downloaded")


def left_in(root: Path) -> set[str]:
    """Return the files below a folder but for locks."""
    return {file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file() and file.suffix != ".lock"}


# Where ----------------------------------------------------------------------------------------------------------------


def test_the_folder_is_data_dir_the_environments_or_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRBLOOM_DATA", "/of/the/environment")
    assert folder_of(setup_of("/named")) == Path("/named")
    assert folder_of(setup_of("")) == Path("/of/the/environment")
    monkeypatch.setenv("FAIRBLOOM_DATA", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert folder_of(setup_of("")) == Path("/home/somebody/.cache/fairbloom")
    assert folder_of(setup_of("~/data")) == Path("/home/somebody/data")


# Files that are there -------------------------------------------------------------------------------------------------


def test_present_files_are_not_downloaded(tmp_path: Path) -> None:
    write(tmp_path)
    tmp_path.chmod(0o500)
    try:
        assert locate(INFO, setup_of(tmp_path), never) == tmp_path
        assert left_in(tmp_path) == set(CONTENT)
    finally:
        tmp_path.chmod(0o700)


def test_a_wrong_file_is_refused_with_checksums_and_remedies(tmp_path: Path) -> None:
    write(tmp_path, b=b"forged")
    with pytest.raises(FairbloomError) as refusal:
        locate(INFO, setup_of(tmp_path), never)
    for word in (
        str(tmp_path / "things/b"),
        md5_of(b"forged"),
        INFO.files[1].md5,
        "Delete it",
        "verify-data=false",
    ):
        assert word in str(refusal.value)


def test_files_are_taken_as_they_are_where_that_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, a=b"", b=b"forged")
    assert locate(INFO, setup_of(tmp_path, verify=False), never) == tmp_path


def test_a_file_without_a_known_checksum_is_taken_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, b=b"another edition")
    unknown = replace(INFO, files=(INFO.files[0], INFO.files[1]._replace(md5="")))
    assert locate(unknown, setup_of(tmp_path), never) == tmp_path


def test_a_file_changed_after_its_check_is_checked_again(tmp_path: Path) -> None:
    write(tmp_path)
    locate(INFO, setup_of(tmp_path), never)
    (tmp_path / "things/b").write_bytes(b"forged!")
    with pytest.raises(FairbloomError, match="is not the original"):
        locate(INFO, setup_of(tmp_path), never)


# Files that are missing -----------------------------------------------------------------------------------------------


def test_missing_files_are_downloaded_once(tmp_path: Path) -> None:
    fetched: list[Path] = []

    def fetch(place: Path) -> None:
        fetched.append(place)
        write(place)
        (place / "archive.tar.gz").write_bytes(b"what they came in")

    root = tmp_path / "not" / "there" / "yet"
    for _ in range(2):
        assert locate(INFO, setup_of(root), fetch) == root
    assert len(fetched) == 1
    assert left_in(root) == set(CONTENT)
    assert (root / "things/raw/a").read_bytes() == b"first"


def test_one_file_that_is_missing_brings_all_anew(tmp_path: Path) -> None:
    write(tmp_path, b=b"forged")
    (tmp_path / "things/raw/a").unlink()
    locate(INFO, setup_of(tmp_path), write)
    assert (tmp_path / "things/b").read_bytes() == b"second"


def test_a_folder_in_place_of_a_file_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "things/b").mkdir(parents=True)
    with pytest.raises(FairbloomError, match=r"cannot be downloaded \(IsADirectoryError"):
        locate(INFO, setup_of(tmp_path), write)


def broken(place: Path) -> None:
    (place / "things").mkdir()
    (place / "things/b").write_bytes(b"sec")
    raise ConnectionError("Max retries exceeded,\n  no network")


def partial(place: Path) -> None:
    write(place)
    (place / "things/b").unlink()


@pytest.mark.parametrize(("fetch", "why"), [(broken, "no network"), (partial, "FileNotFoundError")])
def test_without_network_the_message_names_file_and_remedy(
    tmp_path: Path, fetch: Callable[[Path], None], why: str
) -> None:
    with pytest.raises(FairbloomError) as refusal:
        locate(INFO, setup_of(tmp_path), fetch)
    text = str(refusal.value)
    for word in ("task = 'things'", "things/b", str(tmp_path), why, "put the files there", "--data-dir"):
        assert word in text
    assert "\n" not in text
    assert "things/b" not in left_in(tmp_path)  # half a file would be taken for the whole one


def test_a_folder_that_nothing_can_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FairbloomError, match=r"things/raw/a is not in .*file.* cannot be downloaded"):
        locate(INFO, setup_of(tmp_path / "file"), never)


def test_what_a_download_says_itself_is_not_wrapped(tmp_path: Path) -> None:
    def refuse(place: Path) -> None:
        raise FairbloomError("these data are not free")

    with pytest.raises(FairbloomError, match=r"^these data are not free$"):
        locate(INFO, setup_of(tmp_path), refuse)


def test_a_download_that_is_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match="is not the original of things"):
        locate(INFO, setup_of(tmp_path), lambda place: write(place, a=b"an error page"))


def test_processes_that_want_the_same_data_download_them_once(tmp_path: Path) -> None:
    together = threading.Barrier(4)
    fetched = []

    def fetch(place: Path) -> None:
        fetched.append(place)
        write(place)

    def want(_: int) -> Path:
        together.wait()
        return locate(INFO, setup_of(tmp_path), fetch)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(want, range(4))) == {tmp_path}
    assert len(fetched) == 1


def test_an_interrupted_download_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(place: Path) -> None:
        write(place)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        locate(INFO, setup_of(tmp_path), interrupt)
    assert not left_in(tmp_path)


# What is known --------------------------------------------------------------------------------------------------------


def test_no_known_data_sets_share_a_file() -> None:
    files = [file for info in TASKS.values() for file in info.files]
    assert len({file.path for file in files}) == len(files) > 20
    for file in files:
        assert not Path(file.path).is_absolute()
        assert ".." not in Path(file.path).parts
        assert file.md5 == "" or len(bytes.fromhex(file.md5)) == 16


@pytest.mark.parametrize("name", [name for name, info in TASKS.items() if info.files])
def test_the_real_files_that_are_here_are_the_originals(name: str) -> None:
    root, info = Path(os.environ.get(store.ENVIRONMENT, "/nowhere")), TASKS[name]
    if not all((root / file.path).is_file() for file in info.files):
        pytest.skip(f"FAIRBLOOM_DATA names no folder with {info.files[0].path}")
    assert locate(info, setup_of(root), never) == root
