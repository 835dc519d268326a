"""Look what the lock files pin up in a vulnerability database (make audit).

Ends with 1 where a version is known to be vulnerable or could not be looked up, and with 0 where
all is well. Where no database can be reached it ends with 0, too, and says that nothing was looked
up.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# A local version such as torch's +cpu is in no database; the public one is.
PIN = re.compile(r"^([a-z0-9._-]+)==([^ +;\\]+)", re.MULTILINE)


def pinned(locks: list[Path]) -> dict[str, list[str]]:
    """Return all versions of each package."""
    found: dict[str, set[str]] = {}
    for lock in locks:
        for name, version in PIN.findall(lock.read_text()):
            found.setdefault(name, set()).add(version)
    return {name: sorted(versions) for name, versions in sorted(found.items())}


def look_up(versions: dict[str, list[str]]) -> list[dict[str, Any]] | None:
    """Return pip-audit's answer for each package, or None where it could not ask."""
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
        # it takes one version of a package in each file
        for i in range(max(map(len, versions.values()))):
            file = Path(folder, f"{i}.txt")
            file.write_text(
                "".join(f"{name}=={have[i]}\n" for name, have in versions.items() if i < len(have))
            )
            command += ["--requirement", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own words)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pip-audit ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)["dependencies"] if done.stdout.strip() else None


def verdict(answers: list[dict[str, Any]] | None) -> tuple[str, int]:
    """Return the message and the exit code."""
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
    return "\n".join(
        lines or [f"{len(answers)} versions looked up, no vulnerability is known"]
    ), 1 if lines else 0


if __name__ == "__main__":
    said, code = verdict(look_up(pinned([Path(name) for name in sys.argv[1:]])))
    print(f"audit: {said}")
    sys.exit(code)
