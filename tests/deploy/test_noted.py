"""Which of an operator's commands are in the audit log, and how the log is shown."""

import json
import re
from pathlib import Path

import pytest

from fairbloom.deploy.operator import audit
from fairbloom.deploy.operator.doctor import (
    examine,
)
from fairbloom.deploy.operator.federation import Federation
from tests.experiments.helpers import fairbloom

from .commands import Machine, noted


def test_every_command_that_changes_something_is_noted(made: Path, machine: Machine) -> None:
    for words in (("enroll", "a"), ("revoke", "a"), ("renew",)):
        assert fairbloom("deploy", *words) == 0
    assert [line["event"] for line in noted(made)] == ["enroll", "revoke", "renew"]
    assert json.loads(audit.read_text(made / "state").splitlines()[0])["event"] == "init"
    assert audit.first_broken_line(made / "state") is None


def test_the_audit_log_is_shown_and_a_changed_line_is_exit_code_1(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    capsys.readouterr()
    assert fairbloom("deploy", "audit") == 0
    assert re.search(r"│ 2 .*│ enroll .*client a, node-id 77", capsys.readouterr().out)
    assert fairbloom("deploy", "audit", "--json") == 0
    printed = capsys.readouterr().out
    assert [json.loads(line)["event"] for line in printed.splitlines()] == ["init", "enroll"]
    log = made / "state" / "audit.jsonl"
    log.write_text(log.read_text().replace("10.0.0.7", "10.0.0.8"))
    assert fairbloom("deploy", "audit") == 1
    assert "line 1 of federation/state/audit.jsonl does not fit" in capsys.readouterr().err
    finding = next(finding for finding in examine(Federation(made)) if finding.what == "audit log")
    assert finding.verdict == "fault"


def test_a_log_that_cannot_be_written_stops_nobody_and_is_said(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "state" / "audit.jsonl").unlink()
    (made / "state").rmdir()
    assert fairbloom("deploy", "enroll", "a") == 0
    said = capsys.readouterr().err
    assert "federation/state/audit.jsonl cannot be written (No such file or directory): enroll is not noted" in said
