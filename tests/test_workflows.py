"""The workflows have the least permissions, pinned actions, and commands that exist."""

import re

import pytest

from tests.checkout import ROOT
from tests.workflows import PUBLISHES, WORKFLOWS, run_steps

TARGETS = {*re.findall(r"^([a-z][a-z-]*|\$\(VENV\)/docs):", (ROOT / "Makefile").read_text(), re.M)}

# Commands other than make: what publishes, and what writes a patch.
KNOWN = re.compile(
    rf"git diff > locks\.patch|(?:\.venv-publisher/bin/python -m )?(?:{PUBLISHES.pattern}) [^;&|]+"
)

# What a job may do beyond reading the repository.
WRITES = {
    ("docs", "deploy"): {"pages", "id-token"},
    ("release", "testpypi"): {"id-token"},
    ("release", "pypi"): {"id-token"},
    ("release", "site"): {"actions"},
}


# The targets that commands make.
def made(text: str) -> set[str]:
    named = re.findall(r"\bmake ([a-z.][a-z/.-]*)", text)
    return {target.replace(".venv/", "$(VENV)/") for target in named}


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_every_step_is_a_target_or_a_known_command(workflow: str) -> None:
    for _, command in run_steps(workflow):
        assert bool(made(command)) != bool(KNOWN.fullmatch(command)), command
        assert made(command) <= TARGETS, command
        assert "${{" not in command, "the value of an expression could be a command itself"


def test_the_checks_are_parts_of_the_local_ones() -> None:
    # A slow test builds the site, and a person makes new locks.
    assert made(str(run_steps("checks"))) - made((ROOT / ".ci/run").read_text()) == {"docs", "lock"}


def test_every_action_is_pinned_by_digest_and_tag() -> None:
    used = [
        use
        for file in (ROOT / ".github" / "workflows").iterdir()
        for use in re.findall(r"uses: *(.+)", file.read_text())
    ]
    pins = [re.fullmatch(r"([\w.-]+/[\w.-]+)@[0-9a-f]{40} # v\d+\.\d+\.\d+", use) for use in used]
    assert None not in pins, used
    assert len({*used}) == len({pin[1] for pin in pins if pin}) > 5, "one version of each"


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_permissions_are_the_least(workflow: str) -> None:
    assert WORKFLOWS[workflow]["permissions"] == {}
    for name, job in WORKFLOWS[workflow]["jobs"].items():
        clones = [step["with"] for step in job["steps"] if "/checkout@" in step.get("uses", "")]
        writes = dict.fromkeys(WRITES.get((workflow, name), ()), "write")
        assert job["permissions"] == writes | ({"contents": "read"} if clones else {}), name
        assert all(options["persist-credentials"] is False for options in clones), name
        assert ("id-token" in writes) == ("environment" in job), name
        assert job["timeout-minutes"] <= 120, name


def test_the_oldest_and_the_newest_python_are_tried() -> None:
    pythons = re.findall(r'Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    matrix = {"os": ["ubuntu-latest", "macos-latest"], "python": [pythons[0], pythons[-1]]}
    assert WORKFLOWS["checks"]["jobs"]["test"]["strategy"]["matrix"] == matrix
    assert WORKFLOWS["release"]["jobs"]["try"]["strategy"]["matrix"] == {"python": matrix["python"]}
