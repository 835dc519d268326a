"""Every code block of README.md and docs/ is run as it is printed, by the reader or by a test that
is named."""

import importlib
import re
import shlex
from pathlib import Path
from shutil import copytree

import pytest
import typer

from fairbloom.cli.device import DEFAULT, WithDefault
from fairbloom.cli.main import LateCommand, app
from tests.commands import forked

from .pages import ELSEWHERE, PAGES, ROOT, blocks
from .reader import follow

READ = [page for page in PAGES if any(not block.elsewhere for block in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", READ)
def test_what_a_page_shows_works(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the page takes for granted, the reader's own data and modules, lies in given/, and its
    apps beside it."""
    copytree(ROOT / "docs" / "apps", tmp_path, dirs_exist_ok=True)
    if (given := Path(__file__).parent / "given" / Path(page).stem).is_dir():
        copytree(given, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("COLUMNS", "120")  # tables are as wide as on a screen
    done = forked(tmp_path, follow, page)
    assert done.returncode == 0, done.stderr[-5000:]


# What runs elsewhere ------------------------------------------------------------------------------


def test_another_test_does_what_a_section_says(subtests: pytest.Subtests) -> None:
    for section, test in ELSEWHERE.items():
        with subtests.test(section=section, test=test):
            page, _, title = section.partition("#")
            file, _, name = test.partition("::")
            assert [block for block in blocks(page) if title in ("", block.section)], (
                f"{section} has no block"
            )
            module = importlib.import_module(f"tests.{file.removesuffix('.py').replace('/', '.')}")
            assert callable(getattr(module, name))


def test_commands_have_the_options_that_pages_give_them(subtests: pytest.Subtests) -> None:
    """All commands of ours, those in the midst of a sentence too."""
    for page in PAGES:
        with subtests.test(page=page):
            inline = re.findall(r"(?<!`)`(fairbloom [a-z][^`]*)`", (ROOT / page).read_text())
            shown = {
                line
                for block in blocks(page)
                for line in block.commands
                if re.match(r"fairbloom [a-z]", line)
            }
            for line in sorted({*shown, *inline}):
                words = shlex.split(line, comments=True)[1:]
                command: typer.core.click.Command = typer.main.get_command(app)
                while words and isinstance(command, typer.core.TyperGroup):
                    known_word = words[0] in command.commands or not isinstance(
                        command, WithDefault
                    )
                    command = command.commands[words.pop(0) if known_word else DEFAULT]
                    command = command.imported() if isinstance(command, LateCommand) else command
                known = {option for parameter in command.params for option in parameter.opts}
                assert {
                    word.partition("=")[0] for word in words if word.startswith("--")
                } <= known, (
                    page,
                    line,
                )


def test_the_readme_starts_a_federation_as_its_guide_does() -> None:
    shown, guide = (
        [block.commands for block in blocks(page) if block.section == section]
        for page, section in (
            ("README.md", "You operate a federation"),
            ("docs/docker.md", "In containers"),
        )
    )
    assert shown == [["docker compose up"]]
    assert guide[0] == shown[0]


def test_the_readme_has_at_most_1000_words() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1000
