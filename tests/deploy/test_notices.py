"""Notices to an operator: each fault once, by a command."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.server.superlink.linkstate import linkstate_factory
from flwr.supercore.object_store import object_store_factory

from fairbloom.deploy import pki
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.flower.server.run_state import RunState, RunStore
from fairbloom.deploy.operator import notices
from fairbloom.deploy.operator.notices import FILE, notify, read_faults

from .served import Served
from .state import submit


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(linkstate_factory, "SqlLinkState", RunState)
    monkeypatch.setattr(object_store_factory, "SqlObjectStore", RunStore)
    there = Served(tmp_path)
    there.start()
    yield there
    there.stop()


@pytest.fixture
def command(tmp_path: Path) -> str:
    """A command that adds its last argument, as a line, to a file."""
    script = tmp_path / "note.py"
    script.write_text("import sys; open(sys.argv[1], 'a').write(sys.argv[-1] + '\\n')")
    return f"{sys.executable} {script} {tmp_path / 'said'}"


def said(folder: Path) -> list[str]:
    return (folder / "said").read_text().splitlines() if (folder / "said").exists() else []


def found(**changes: Any) -> dict[str, Any]:
    """A survey in which nothing is wrong, but for the changes."""
    good = {"verdict": "ok", "words": ""}
    return {"runs": [], "clients": [], "server": good, "keys": good, "certificate-days": 300.0, **changes}


def test_a_failed_run_is_noticed_once(served: Served, command: str, tmp_path: Path) -> None:
    run, task = submit(served.place.state)
    notify(served.federation, command)
    before = said(tmp_path)
    assert not [line for line in before if line.startswith("run ")]
    served.place.state.finish_task(task, "failed", "the model has fallen; $(rm -rf x)")
    notify(served.federation, command)
    assert said(tmp_path) == [*before, f"run {run} has failed: the model has fallen; $(rm -rf x)"]
    assert notify(served.federation, command) == []
    assert said(tmp_path)[len(before) + 1 :] == []


def test_a_server_that_is_away_is_noticed_each_time(
    served: Served, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(federation: Any) -> dict[str, Any]:
        raise DeployError("nobody answers")

    for survey in (away, away, lambda federation: found(), away):
        monkeypatch.setattr(notices, "survey", survey)
        notify(served.federation, command)
    assert said(tmp_path) == ["the server does not answer: nobody answers"] * 2


def test_other_faults_are_not_new_after_an_outage(
    served: Served, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(federation: Any) -> dict[str, Any]:
        raise DeployError("nobody answers")

    expiring = lambda federation: found(**{"certificate-days": 3.0})  # noqa: E731
    for survey in (expiring, away, away, expiring):
        monkeypatch.setattr(notices, "survey", survey)
        notify(served.federation, command)
    assert [line.split()[1] for line in said(tmp_path)] == ["server's", "server"]


def test_the_authoritys_certificate_is_looked_at_too(
    served: Served, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "survey", lambda federation: found())
    pki.make_authority(served.federation.authority, tmp_path / "other.key", days=3)
    notify(served.federation, command)
    assert said(tmp_path)[0].startswith("CA certificate: ")


def test_a_notice_is_one_line(served: Served, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"run-id": "7", "status": "finished:failed", "status-details": "a\nb\x1b[2J"}
    monkeypatch.setattr(notices, "survey", lambda federation: found(runs=[run]))
    notify(served.federation, command)
    (line,) = said(tmp_path)
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runs": [{"run-id": "7", "status": "finished:failed", "status-details": "why"}]}, "run 7 has failed: why"),
        ({"runs": [{"run-id": "7", "status": "finished:completed", "status-details": ""}]}, ""),
        ({"runs": [{"run-id": "7", "status": "running", "status-details": ""}]}, ""),
        ({"clients": [{"client": "a", "status": "offline", "last-seen": "noon"}]}, "client a is offline since noon"),
        ({"clients": [{"client": "a", "status": "offline", "last-seen": "never"}]}, ""),
        ({"clients": [{"client": "a", "status": "online", "last-seen": "now"}]}, ""),
        ({"keys": {"verdict": "warning", "words": "expire soon: a"}}, "client keys: expire soon: a"),
        ({"server": {"verdict": "fault", "words": "no SuperExec"}}, "server: no SuperExec"),
        ({"certificate-days": 29.4}, "certificate expires within 29 days"),
        ({"certificate-days": None}, ""),
        ({}, ""),
    ],
)
def test_each_fault_of_a_survey_is_a_sentence(changes: dict[str, Any], words: str) -> None:
    sentences = [sentence for _, sentence in read_faults(found(**changes))]
    assert len(sentences) == bool(words)
    assert words in "".join(sentences)


def test_the_name_of_a_fault_stays_while_it_lasts() -> None:
    """The SuperExec's silence is told in seconds, which grow."""
    names = [
        [name for name, _ in read_faults(found(**{"server": {"verdict": "fault", "words": f"for {seconds} s"}}))]
        for seconds in (31, 91)
    ]
    assert names[0] == names[1] == ["server"]


def test_many_lost_clients_are_one_notice(
    served: Served, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [{"client": f"site-{number}", "status": "offline", "last-seen": "noon"} for number in range(1000)]
    monkeypatch.setattr(notices, "survey", lambda federation: found(clients=lost[:3]))
    assert len(notify(served.federation, command)) == 3
    monkeypatch.setattr(notices, "survey", lambda federation: found(clients=lost))
    (sentence,) = notify(served.federation, command)
    assert sentence.startswith("997 clients are away: client site-3 is offline since noon, ")
    assert sentence.endswith(" and 992 more")
    assert notify(served.federation, command) == []
    assert said(tmp_path)[3:] == [sentence]


@pytest.mark.parametrize("bad", ["false", "/no/such/program", "''", "logger '"])
def test_a_notice_that_could_not_be_given_comes_again(
    bad: str, served: Served, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "survey", lambda federation: found(**{"certificate-days": 3.0}))
    with pytest.raises(DeployError, match="command = "):
        notify(served.federation, bad)
    assert len(notify(served.federation, command)) == len(said(tmp_path)) == 1


def test_an_empty_command_is_refused_with_an_example(served: Served) -> None:
    with pytest.raises(DeployError, match=r"command = '' names no program: .*logger"):
        notify(served.federation, "  ")


@pytest.mark.parametrize("content", [b"{", b"3", b"\xff"])
def test_a_damaged_file_of_notices_counts_as_none(
    content: bytes, served: Served, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "survey", lambda federation: found(**{"certificate-days": 3.0}))
    served.federation.state.mkdir(exist_ok=True)
    (served.federation.state / FILE).write_bytes(content)
    assert len(notify(served.federation, command)) == 1
    assert json.loads((served.federation.state / FILE).read_text()) == ["certificate"]
    assert (served.federation.state / FILE).stat().st_mode & 0o077 == 0
