"""How Fairbloom is installed is one value: README, pages, new apps and errors say the same of it.

No index is asked: whoever registers the name before us runs code where somebody installs it.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.released import FILES, RELEASED, WORDS, say
from fairbloom.errors import REPOSITORY, install_command

from .pages import ROOT
from .test_facts import PROJECT

# An installation by the name alone, as from an index.
BY_NAME = re.compile(r"""pip install ["'`]?fairbloom\b(?!\S* @)|"fairbloom>=""")


def test_every_file_says_what_the_value_says() -> None:
    assert PROJECT["urls"]["Source"] == REPOSITORY
    for file in FILES:
        written = file.read_text()
        assert say(written, released=RELEASED) == written, file
        assert say(say(written, released=True), released=False) == written, file
    assert all(any(words in file.read_text() for file in FILES) for words, _ in WORDS)


@pytest.mark.parametrize("released", [False, True])
def test_the_name_alone_is_installed_once_it_is_ours(
    released: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbloom.errors.RELEASED", released)
    texts = [say(file.read_text(), released=released) for file in FILES]
    texts.append(install_command("excel"))
    assert any(map(BY_NAME.search, texts)) == released
    assert any(f"git+{REPOSITORY}" in text for text in texts) != released
    assert bool(BY_NAME.search(texts[-1])) == released


def test_code_names_an_extra_by_the_function_alone() -> None:
    for package in ("fairbloom", "client", "server", "strategies", "deploy"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text()
            assert file.name == "errors.py" or "pip install 'fairbloom[" not in text, file


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import fairbloom.__main__ as m; m.main()", "error: Fairbloom runs on Linux and macOS"),
        ("import fairbloom; fairbloom.run", "ImportError: Fairbloom runs on Linux and macOS"),
    ],
)
def test_windows_is_told_where_fairbloom_runs(code: str, status: str, tmp_path: Path) -> None:
    gone = "import sys; sys.modules |= dict.fromkeys(('fcntl', 'resource', 'pwd'))"
    done = subprocess.run(
        [sys.executable, "-c", f"{gone}; {code}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert status in done.stderr.splitlines()[-1]
    assert "WSL" in done.stderr
    assert ("Traceback" in done.stderr) == ("ImportError" in status)
