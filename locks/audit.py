"""Look up the versions in the lock files in a vulnerability database (make audit).

Exits with 1 if a version is known to be vulnerable or could not be looked up, and with 0 otherwise.
If no database can be reached, it also exits with 0, and prints that nothing was looked up.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# The version without a local part: databases do not have torch's +cpu, for example.
PIN = re.compile(r"^([a-z0-9._-]+)==([^ +;\\]+)", re.MULTILINE)


def read_pins(locks: list[Path]) -> dict[str, list[str]]:
    """Return all pinned versions of each package."""
    pins: dict[str, set[str]] = {}
    for lock in locks:
        for name, version in PIN.findall(lock.read_text()):
            pins.setdefault(name, set()).add(version)
    return {name: sorted(versions) for name, versions in sorted(pins.items())}


def look_up(versions: dict[str, list[str]]) -> list[dict[str, Any]] | None:
    """Return pip-audit's answer for each package, or None if it reached no database."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip_audit",
            "--no-deps",
            "--disable-pip",
            "--format=json",
            "--progress-spinner=off",
        ]
        # pip-audit accepts only one version of a package in a file
        for i in range(max(map(len, versions.values()))):
            file = Path(folder, f"{i}.txt")
            file.write_text(
                "".join(f"{name}=={pins[i]}\n" for name, pins in versions.items() if i < len(pins))
            )
            command += ["--requirement", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own words)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pip-audit ended with {done.returncode}: {done.stderr}")
    if not done.stdout.strip():
        return None
    return json.loads(done.stdout)["dependencies"]


def judge(answers: list[dict[str, Any]] | None) -> tuple[str, int]:
    """Return the message and the exit code for these answers."""
    missed = [answer["name"] for answer in answers or [] if "skip_reason" in answer]
    if answers is None or len(missed) == len(answers):
        return "SKIPPED: no vulnerability database could be reached, so nothing was looked up", 0
    lines = []
    for answer in answers:
        for hole in answer.get("vulns", []):
            remedy = " or ".join(hole["fix_versions"]) or "no version yet"
            lines.append(f"{answer['name']} {answer['version']}: {hole['id']}, fixed in {remedy}")
    if missed:
        lines.append(f"The database does not know: {', '.join(missed)}")
    if lines:
        return "\n".join(lines), 1
    return f"{len(answers)} versions looked up, no vulnerability is known", 0


if __name__ == "__main__":
    message, code = judge(look_up(read_pins([Path(name) for name in sys.argv[1:]])))
    print(f"audit: {message}")
    sys.exit(code)
