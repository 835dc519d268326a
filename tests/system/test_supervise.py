"""Descriptions of how a process ended."""

import pytest

from fairbloom.system.supervise import exit_reason


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-40, "killed by signal 40"),
    ],
)
def test_how_a_process_ended_is_said(code: int, words: str) -> None:
    assert exit_reason(code) == words
