"""Options of the command line that only other commands have."""

import pytest

from .helpers import fairbloom


def test_the_other_commands_spelling_is_refused_with_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    """`run` has --method and --seed, studies have --methods and --seeds."""
    for command, other, right in (
        ("compare", "--method", "--methods"),
        ("run", "--methods", "--method"),
        ("search", "--method", "--methods"),
        ("reproduce", "--method", "--rows"),
        ("run", "--seeds", "--seed"),
        ("reproduce", "--seed", "--seeds"),
    ):
        assert fairbloom(command, other, "a,b") == 2
        told = " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert f"No such option '{other}': write {right}." in told
        assert "--set" not in told
