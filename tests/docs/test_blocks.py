"""Every code block of README.md and docs/ is run as it is printed, by the reader or by a test that is named."""

import importlib
import re
import shlex
import traceback
from pathlib import Path
from shutil import copytree

import pytest
import typer

from fairbloom.cli import LateCommand, app
from fairbloom.deploy.device.cli import DEFAULT, WithDefault
from tests.commands import forked

from .pages import ELSEWHERE, PAGES, ROOT, blocks
from .reader import Reader, follow, is_shown

READ = [page for page in PAGES if any(not block.elsewhere for block in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", READ)
def test_what_a_page_shows_works(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page takes for granted, the reader's own data and modules, lies in given/, and its apps beside it."""
    copytree(ROOT / "docs" / "apps", tmp_path, dirs_exist_ok=True)
    if (given := Path(__file__).parent / "given" / Path(page).stem).is_dir():
        copytree(given, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("COLUMNS", "120")  # tables are as wide as on a screen
    done = forked(tmp_path, follow, page)
    assert done.returncode == 0, done.stderr[-5000:]


# What runs elsewhere ------------------------------------------------------------------------------------------------


def test_another_test_does_what_a_section_says() -> None:
    for section, test in ELSEWHERE.items():
        page, _, title = section.partition("#")
        file, _, name = test.partition("::")
        assert [block for block in blocks(page) if title in ("", block.section)], f"{section} has no block"
        assert callable(getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name))


def commands(page: str) -> set[str]:
    """All commands of ours on a page, those in the midst of a sentence too."""
    lines = [line for block in blocks(page) for line in block.commands]
    inline = re.findall(r"(?<!`)`(fairbloom [a-z][^`]*)`", (ROOT / page).read_text())
    return {" ".join(line.split()) for line in (*lines, *inline) if re.match(r"fairbloom [a-z]", line)}


def test_commands_have_the_options_that_pages_give_them() -> None:
    for page in PAGES:
        for line in commands(page):
            words = shlex.split(line, comments=True)[1:]
            command: typer.core.click.Command = typer.main.get_command(app)
            while words and isinstance(command, typer.core.TyperGroup):
                known_word = words[0] in command.commands or not isinstance(command, WithDefault)
                command = command.commands[words.pop(0) if known_word else DEFAULT]
                command = command.imported() if isinstance(command, LateCommand) else command
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, (page, line)


def test_the_readme_starts_a_federation_as_its_guide_does() -> None:
    shown, guide = (
        [block.commands for block in blocks(page) if block.section == section]
        for page, section in (("README.md", "You operate a federation"), ("docs/docker.md", "In containers"))
    )
    assert shown == [["docker compose up"]]
    assert guide[0] == shown[0]


def test_the_readme_has_at_most_900_words() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_there_are_pages_and_commands() -> None:
    assert {"README.md", "docs/index.md"} <= set(READ)
    assert len(commands("docs/deployment.md")) >= 8


# The reader itself --------------------------------------------------------------------------------------------------

GOOD = """
# A page

```python
a = 40
```

```python
# doubling.py
def double(a): return 2 * a
```

```python
# doubling.py
def quadruple(a): return double(double(a))
```

```python
from doubling import quadruple
print("four times", quadruple(a) + 1.5)
```

```text
four times 161.4
```

```sh
fairbloom tasks --json \\
    --help
echo one two
```

```text
one … two
```

```sh
fairbloom run --method nobody
```

```text
error: … nobody …
```
"""

BAD = {
    "```yaml\na: 1\n```": "line 2: nobody runs a block whose language is 'yaml'",
    "# A\n\n```python\na = 1\nb = 1 / 0\n```": 'page.md", line 5',
    "```python\n# mine.py\nimport nothing_such\n```": "No module named",
    "```sh\nfairbloom run --method nobody\n```": "ended with 2",
    "```sh\nfalse\ntrue\n```": "false ended with 1",
    "```sh\npip install 'fairbloom[wings]'\n```": "there is no extra wings",
    "```sh\nmake coffee\n```": "ended with 2",
    "```sh\nfairbloom server --dir a\n```": "name the test that runs fairbloom server",
    "```sh\necho a 10\n```\n```text\na 12\n```": "printed was",
    "```toml\na = 1\n```": "say in the first line which file this is",
    "```toml\n# client.toml\ncolour = 1\n```": "unknown setting colour",
    "```python\nfrom flwr.serverapp import ServerApp\napp = ServerApp()\n@app.main()\n"
    "def main(grid, context): 1 / len(list(grid.get_node_ids())[4:])\n```": "ZeroDivisionError",
}
"""Pages that do not work, each with words of what is said."""


def test_a_page_that_works_is_read_to_its_end(folder: Path) -> None:
    (folder / "page.md").write_text(GOOD)
    reader = Reader()
    reader.follow(str(folder / "page.md"))
    assert (folder / "doubling.py").exists()
    assert "nobody" in reader.printed


def test_what_does_not_work_is_said_with_its_line(folder: Path) -> None:
    for text, words in BAD.items():
        (folder / "page.md").write_text(text)
        with pytest.raises(Exception) as wrong:  # noqa: PT011 (what a cell raises is anything)
            Reader().follow(str(folder / "page.md"))
        assert words in "".join(traceback.format_exception(wrong.value)), text


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a  1.0", "first\na 1.05\n", True),
        ("a 10", "a 12", False),
        ("a … c", "x a b b c", True),
        ("a …", "b", False),
        ("a b", "xa b", False),
        ("a", "a b", False),
        ("± 3.0 −2", "± 3.1 −2.1", True),
        ("−2", "2", False),
    ],
)
def test_what_is_printed_is_compared(shown: str, printed: str, same: bool) -> None:
    assert is_shown(shown, printed) == same
