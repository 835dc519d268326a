"""Terminals, logs and cron jobs without UTF-8: no character ends a command."""

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from fairbloom.cli.main import COMMANDS
from fairbloom.system.streams import PLAINLY, write_any_text
from tests.experiments.helpers import fairbloom
from tests.experiments.made_up import make_comparison

ENCODINGS = pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])


def run_in(encoding: str, *words: object) -> tuple[int, str, str]:
    """Run a command with streams of an encoding that replace nothing; return code and output."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        code = fairbloom(*words)
    out, err = (stream.buffer.getvalue().decode(encoding) for stream in streams)  # type: ignore[attr-defined]
    return code, out, err


@ENCODINGS
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_printed_in_any_encoding(command: str, encoding: str) -> None:
    code, out, _ = run_in(encoding, *filter(None, [command, "--help"]))
    assert code == 0
    assert out


@ENCODINGS
@pytest.mark.parametrize("words", [("methods",), ("tasks",), ("settings", "--json")])
def test_lists_are_printed_in_any_encoding(words: tuple[str, ...], encoding: str) -> None:
    code, out, _ = run_in(encoding, *words)
    assert code == 0
    assert out


@ENCODINGS
def test_a_comparison_is_shown_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    clients = ("Zürich", "Łódź", "医院", "Genève – Est")
    make_comparison(tmp_path / "cmp", ("fedavg", "fedfv"), (0, 1), clients, 3)
    code, out, _ = run_in(encoding, "show", tmp_path / "cmp")
    assert code == 0
    assert ("Zurich" if encoding == "ascii" else "Zürich") in out


@ENCODINGS
@pytest.mark.parametrize("name", ["–−…", "医院", "\udce9"])
def test_an_error_that_quotes_any_text_ends_with_2(name: str, encoding: str) -> None:
    code, out, err = run_in(encoding, "run", "--task", name)
    assert (code, out) == (2, "")
    assert "error" in err


@pytest.mark.parametrize(
    ("text", "encoding", "written"),
    [
        ("gain −0.5 ± 1, 3–4", "ascii", "gain -0.5 +- 1, 3-4"),
        ("gain −0.5 ± 1, 3–4", "cp1252", "gain -0.5 ± 1, 3–4"),
        ("gain −0.5 ± 1, 3–4", "utf-8", "gain −0.5 ± 1, 3–4"),
        ("10⁻⁵, ½, m², ε ≤ 3, Δ", "ascii", "10-5, 1/2, m2, epsilon <= 3, delta"),
        ("Zürich … Łódź", "ascii", "Zurich ... ?odz"),
        ("Zürich 医院", "latin-1", "Zürich ??"),
        ("a\udce9b", "utf-8", "a?b"),  # a name of a file that is no UTF-8
    ],
)
def test_what_an_encoding_lacks_is_written_plainly(text: str, encoding: str, written: str) -> None:
    write_any_text()
    assert text.encode(encoding, PLAINLY).decode(encoding) == written


def test_only_what_is_written_can_be_replaced() -> None:
    write_any_text()
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("utf-8", PLAINLY)
