"""Each command on a folder that is damaged in each way: an answer or one line, and never a traceback."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from typer.main import get_command

from fairbloom.deploy.cli import app
from fairbloom.errors import FairbloomError

from .commands import Machine, answering


def put(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def swap(old: str, new: str) -> Callable[[Path], None]:
    """Change what is written of the client."""

    def change(folder: Path) -> None:
        file = folder / "clients" / "a.toml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return change


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()


def other_kind(name: str) -> Callable[[Path], None]:
    """A folder where a file should be, and a file where a folder should be."""

    def change(folder: Path) -> None:
        is_folder = (folder / name).is_dir()
        gone(name)(folder)
        (folder / name).touch() if is_folder else (folder / name).mkdir()

    return change


def link_to_itself(folder: Path) -> None:
    gone("federation.toml")(folder)
    (folder / "federation.toml").symlink_to("federation.toml")


FILES = (
    *("federation.toml", "clients/a.toml", "ca.crt", "ca.key", "server.crt", "server.key", "operator.token"),
    *("operators.toml", "runtime.secret"),
)
FOLDERS = ("clients", "state", "bundles", "bundles/a", "flower")
DAMAGE: dict[str, Callable[[Path], None]] = {
    **{f"{name} is gone": gone(name) for name in (*FILES, *FOLDERS)},
    **{f"{name} is of another kind": other_kind(name) for name in (*FILES, *FOLDERS)},
    **{f"{name} is empty": put(name, b"") for name in FILES},
    **{f"{name} is no text": put(name, b"\xff\xfe\x00") for name in FILES},
    **{f"{name} is other text": put(name, b"= what\n") for name in FILES},
    "addresses are numbers": put("federation.toml", b"superlink = 5\ncontrol = 7\n"),
    "addresses are tables": put("federation.toml", b"[superlink]\na = 1\n[control]\nb = 2\n"),
    "addresses lack ports": put("federation.toml", b'superlink = "x"\ncontrol = "y"\n'),
    "ports are too high": put("federation.toml", b'superlink = "a:99999"\ncontrol = "127.0.0.1:99999"\n'),
    "listen is a number": put("federation.toml", b'superlink = "a:1"\ncontrol = "127.0.0.1:2"\nlisten = 3\n'),
    "federation.toml links to itself": link_to_itself,
    "a node's number is none": swap('node_id = "77"', 'node_id = "seven"'),
    "a date is none": swap('enrolled = "2', 'enrolled = "x2'),
    "a client's key is of another kind": swap("ecdsa-sha2", "ed25519"),
    "a bundle has a folder in it": lambda folder: (folder / "bundles" / "a" / "sub").mkdir(),
}
COMMAND = get_command(app)
COMMANDS = (
    *("status", "doctor", "stop", "renew"),
    *("enroll b", "enroll c --request .", "enroll d --request nowhere", "enroll a", "revoke a"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A federation with one client."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        (folder / "machine").mkdir()
        there = Machine(folder / "machine")
        patch.setattr("fairbloom.deploy.flower.operator.commands.flwr_command", lambda: str(there.path))
        patch.setattr("fairbloom.deploy.flower.operator.control_api.connected", answering)
        run("init", str(folder / "federation"), "--host", "fl.example.org")
        run("enroll", "a", "--dir", str(folder / "federation"))
        yield folder / "federation"


def run(*words: str) -> None:
    """Run a command as the command line does, but for what it makes of errors."""
    COMMAND.main(list(words), standalone_mode=False)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_folder_is_one_line(
    how: str, whole: Path, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbloom.deploy.flower.operator.commands.subprocess.run", answers_at_once)
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


class answers_at_once:  # noqa: N801 (it stands where subprocess.run was)
    """What Flower's command is without a process."""

    stdout = '{"success": true, "node-id": "78", "nodes": [], "runs": []}'
    stderr = ""

    def __init__(self, command: object, **options: object) -> None:
        pass
