"""The workflows of .github: their jobs and steps, which `python -m tests.workflows` runs here.

`python -m tests.workflows checks lint docs` runs the steps of two jobs of checks.yml in a fresh
clone of the last commit. Without names of jobs all run in one clone, in their order: a job finds
the files of an earlier one. Steps that publish are left out. `make` takes PYTHON and TORCH from the
environment.
"""

import re
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.checkout import ROOT

# Commands that send something to somebody: only a release runs them.
PUBLISHES = re.compile(r"pypi_attestations sign|twine upload|gh workflow run")

WORKFLOWS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((ROOT / ".github" / "workflows").iterdir())
}


# The job and the command of each step that runs one.
def run_steps(workflow: str) -> list[tuple[str, str]]:
    return [
        (name, step["run"])
        for name, job in WORKFLOWS[workflow]["jobs"].items()
        for step in job["steps"]
        if "run" in step
    ]


def main(workflow: str, *chosen: str) -> None:
    with TemporaryDirectory(prefix="workflow-") as clone:
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        for job, command in run_steps(workflow):
            if job in (chosen or WORKFLOWS[workflow]["jobs"]) and not PUBLISHES.search(command):
                print(f"{job}: {command}", flush=True)
                subprocess.run(["bash", "-e", "-c", f"time {command}"], cwd=clone, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
