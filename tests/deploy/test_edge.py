"""What an edge device gets: scripts that pass a checker, a unit that systemd takes, a guide that names what is."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import typer

from experiments.cli import app

ROOT = Path(__file__).parents[2]
EDGE = ROOT / "deploy" / "edge"
SCRIPTS = sorted(EDGE.glob("*.sh"))
GUIDE = (ROOT / "docs" / "deployment.md").read_text()
COMMANDS = sorted({*re.findall(r"^(fairbloom .*)$", GUIDE, re.M), *re.findall(r"`(fairbloom [^`]*)`", GUIDE)})


def needs(command: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(command) is None, reason=f"{command} is not installed")


@needs("shellcheck")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_can_be_read_and_run(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert script.stat().st_mode & 0o111


def test_help_names_every_option() -> None:
    printed = subprocess.run([EDGE / "install.sh", "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[a-z-]+(?= \||\))", (EDGE / "install.sh").read_text().partition("opt=")[0]))
    assert known - {"--help"} <= set(re.findall(r"--[a-z-]+", printed))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--colour", "red"], "unknown option --colour"),
        (["--bundle"], "--bundle needs a value"),
        (["--wheels", "/nowhere"], "--wheels /nowhere: there is no fairbloom wheel in it"),
        (["--bundle", "x.tar.gz"], "say where Fairbloom comes from"),
        (["--python", "/bin/false", "--source", "."], "Python 3.11 or later is needed"),
    ],
)
def test_install_stops_before_it_changes_anything(words: list[str], message: str, tmp_path: Path) -> None:
    if os.getuid() != 0 and message not in ("unknown option --colour", "--bundle needs a value"):
        pytest.skip("only root comes that far")
    done = subprocess.run([EDGE / "install.sh", "--root", tmp_path, *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


@needs("systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = (EDGE / "fairbloom-client.service").read_text().replace("/opt/fairbloom/venv/bin/python", sys.executable)
    (tmp_path / "fairbloom-client.service").write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "fairbloom-client.service"], capture_output=True, text=True
    )
    assert "fairbloom-client" not in done.stderr, done.stderr


def test_a_client_needs_no_simulation_and_no_figures(tmp_path: Path) -> None:
    lines = ("flwr[simulation]<1.40,>=1.39", "torch>=2.6", "matplotlib>=3.9", "numpy>=2.0", "rich>=13; extra == 'x'")
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.writestr("x.dist-info/METADATA", "".join(f"Requires-Dist: {line}\n" for line in lines))
    script = [sys.executable, EDGE / "requirements.py", tmp_path / "x.whl"]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["flwr<1.40,>=1.39", "numpy>=2.0"]


def test_a_client_starts_without_the_servers_libraries() -> None:
    """The client's command loads neither PyTorch nor Flower nor what only servers have."""
    program = (
        "import sys; sys.argv[1:] = ['client', '--superlink', 'x']; import runpy\n"
        "try: runpy.run_module('deploy', run_name='__main__')\n"
        "except SystemExit as end: print(end.code, *sorted({'torch', 'flwr', 'pydantic', 'cvxopt'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["2"]
    assert "write it as HOST:PORT" in done.stderr


@pytest.mark.parametrize("line", COMMANDS)
def test_the_guide_names_commands_and_options_that_are(line: str) -> None:
    words = shlex.split(line)[1:]
    command = typer.main.get_command(app)
    while words and isinstance(command, typer.core.TyperGroup):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_guide_has_commands() -> None:
    assert len(COMMANDS) >= 8
