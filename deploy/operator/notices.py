"""Notices for an operator who does not watch: what is newly wrong with a federation goes to a command, once."""

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairbloom.logs import escape_unprintable
from fairbloom.system.files import make_folder, write_private

from ..errors import DeployError
from ..processes import first_names
from .doctor import EXPIRES_SOON_DAYS, check_expiry
from .federation import Federation
from .status import survey

FILE = "notices.json"
"""In the state folder: the names of what was wrong at the last look."""

AWAY, CLIENT = "no answer", "client "

MOST_CLIENTS = 5
"""How many clients have a notice each; more that are gone at one look have one together."""

COMMAND_SECONDS = 60.0


def notify(federation: Federation, command: str) -> list[str]:
    """Run a command once with a sentence about each thing that was not wrong at the last look; return the sentences.

    DeployError where the command cannot be run, or fails: it is run again with that sentence at the next look.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise DeployError(f"command = {command!r} cannot be read ({error}): close its quotes") from None
    if not words:
        raise DeployError("command = '' names no program: give one, such as 'logger --tag fairbloom'")
    wrong, known, said = dict(find_faults(federation)), read_known(federation.state), list[str]()
    kept = [name for name in known if name in wrong or (AWAY in wrong and name != AWAY)]  # unknown: it may last
    new: dict[tuple[str, ...], str] = {(name,): sentence for name, sentence in wrong.items() if name not in known}
    gone = [name for name, *_ in new if name.startswith(CLIENT)]
    if len(gone) > MOST_CLIENTS:
        new = {names: sentence for names, sentence in new.items() if names[0] not in gone}
        new[*gone] = f"{len(gone)} clients are away: {first_names(gone, MOST_CLIENTS)}"
    try:
        for names, sentence in new.items():
            run(words, escape_unprintable(sentence))
            kept += names
            said.append(sentence)
    finally:
        make_folder(federation.state)
        write_private(federation.state / FILE, json.dumps(kept).encode())
    return said


def find_faults(federation: Federation) -> Iterator[tuple[str, str]]:
    """Yield a name and a sentence for each thing that is wrong now."""
    authority = check_expiry("CA certificate", federation.authority)
    if authority.verdict != "ok":
        yield authority.what, f"{authority.what}: {authority.words}"
    try:
        yield from read_faults(survey(federation))
    except DeployError as error:
        yield AWAY, f"the server does not answer: {error}"


def read_faults(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a name and a sentence for each thing that a survey shows to be wrong; names stay while it is wrong."""
    for run in found["runs"]:
        if run["status"] == "finished:failed":
            reason = run["status-details"] or "the server gives no reason"
            yield f"run {run['run-id']}", f"run {run['run-id']} has failed: {reason}"
    for client in found["clients"]:
        if client["status"] != "online" and client["last-seen"] != "never":
            sentence = f"{CLIENT}{client['client']} is {client['status']} since {client['last-seen']}"
            yield sentence, sentence
    if found["server"]["verdict"] != "ok":
        yield "server", f"server: {found['server']['words']}"
    if found["keys"]["verdict"] != "ok":
        yield f"keys: {found['keys']['words']}", f"client keys: {found['keys']['words']}"
    days = found["certificate-days"]
    if days is not None and days < EXPIRES_SOON_DAYS:
        yield "certificate", f"the server's certificate expires within {days:.0f} days: fairbloom deploy renew"


def read_known(state: Path) -> list[str]:
    """Return the names of what was wrong at the last look; none where there was none, or its file is damaged."""
    try:
        known = json.loads((state / FILE).read_text())
    except (OSError, ValueError):
        return []
    return known if isinstance(known, list) else []


def run(words: list[str], sentence: str) -> None:
    """Run the operator's command with a sentence as its last argument."""
    try:
        done = subprocess.run([*words, sentence], timeout=COMMAND_SECONDS, check=False)  # noqa: S603 (the operator's)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeployError(f"command = {shlex.join(words)!r} cannot be run: {error}") from None
    if done.returncode:
        raise DeployError(f"command = {shlex.join(words)!r} ended with exit code {done.returncode}")
