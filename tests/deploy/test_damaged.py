"""Each command on a folder with each damage answers or prints one line, never a traceback."""

import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from typer.main import get_command

from fairbloom.cli.deploy import app
from fairbloom.errors import FairbloomError


def put(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def swap(old: str, new: str) -> Callable[[Path], None]:
    """Return a change of the client's file."""

    def change(folder: Path) -> None:
        file = folder / "clients" / "a.toml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return change


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    )


def other_kind(name: str) -> Callable[[Path], None]:
    """Replace a file by a folder, or a folder by a file."""

    def change(folder: Path) -> None:
        is_folder = (folder / name).is_dir()
        gone(name)(folder)
        (folder / name).touch() if is_folder else (folder / name).mkdir()

    return change


def link_to_itself(folder: Path) -> None:
    gone("federation.toml")(folder)
    (folder / "federation.toml").symlink_to("federation.toml")


FILES = (
    "federation.toml",
    "clients/a.toml",
    "ca.crt",
    "ca.key",
    "server.crt",
    "server.key",
    "state/now.json",
    "state/runs/7/run.toml",
    "state/runs/7/folder",
)
FOLDERS = ("clients", "state", "bundles", "bundles/a", "state/runs", "state/runs/7")
DAMAGE: dict[str, Callable[[Path], None]] = {
    **{f"{name} is gone": gone(name) for name in (*FILES, *FOLDERS)},
    **{f"{name} is of another kind": other_kind(name) for name in (*FILES, *FOLDERS)},
    **{f"{name} is empty": put(name, b"") for name in FILES},
    **{f"{name} is no text": put(name, b"\xff\xfe\x00") for name in FILES},
    **{f"{name} is other text": put(name, b"= what\n") for name in FILES},
    "the address is a number": put("federation.toml", b"server = 5\n"),
    "the address is a table": put("federation.toml", b"[server]\na = 1\n"),
    "the address lacks its port": put("federation.toml", b'server = "x"\n'),
    "the port is too high": put("federation.toml", b'server = "a:99999"\n'),
    "listen is a number": put("federation.toml", b'server = "a:1"\nlisten = 3\n'),
    "a key is unknown": put("federation.toml", b'server = "a:1"\nsuperlink = "a:1"\n'),
    "federation.toml links to itself": link_to_itself,
    "a partition is not a number": swap("partition = 0", 'partition = "zero"'),
    "a client has another's name": swap('name = "a"', 'name = "b"'),
    "a bundle has a folder in it": lambda folder: (folder / "bundles" / "a" / "sub").mkdir(),
}
COMMAND = get_command(app)
COMMANDS = (
    "status",
    "doctor",
    "stop",
    "renew",
    "enroll b",
    "enroll c --request .",
    "enroll d --request nowhere",
    "enroll a",
    "revoke a",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation with one client and one waiting run."""
    folder = tmp_path_factory.mktemp("whole") / "federation"
    run("init", str(folder), "--host", "fl.example.org")
    run("enroll", "a", "--dir", str(folder))
    place = folder / "state" / "runs" / "7"
    place.mkdir(parents=True)
    order = 'app = "x:y"\ndistribution = "x"\nversion = "1"\n[settings]\n'
    for name, text in (("run.toml", order), ("folder", "/nowhere")):
        (place / name).write_text(text)
    (folder / "state" / "now.json").write_text('{"at": 0.0, "online": {}, "seen": {}, "runs": []}')
    return folder


def run(*words: str) -> None:
    """Run a command as the command line does, but let its errors through."""
    COMMAND.main(list(words), standalone_mode=False)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_folder_is_one_line(how: str, whole: Path, tmp_path: Path) -> None:
    for number, command in enumerate(COMMANDS):
        folder = shutil.copytree(whole, tmp_path / str(number) / "federation")
        DAMAGE[how](folder)
        try:
            run(*command.split(), "--dir", str(folder))
        except FairbloomError as error:
            assert "\n" not in str(error)  # noqa: PT017 (which commands are refused differs)
            assert len(str(error)) > 20  # noqa: PT017
        except click.exceptions.Exit as end:
            assert end.exit_code in (0, 1)  # noqa: PT017
