"""`.ci/run` runs all everyday and slow tests first, and says what it had no time for."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.checkout import ROOT

SUMMARY = """=========== short test summary info ===========
SKIPPED [1] tests/test_b.py:1: not here
=========== 9 passed, 1 skipped in 3.00s ==========="""

# Writes down what it is to make, prints a summary, and ends as the file named for the target says.
MAKE = f"""#!/bin/bash
echo "$*" >> made
echo "collecting"
echo '{SUMMARY}'
exit "$(cat "ends-$1" 2> /dev/null || echo 0)"
"""

# In place of what has a limit of time, so that a stop can be played.
TIMEOUT = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
echo "$1" >> limits
shift
exec "$@"
"""

# No engine for containers, no browser, no other Python; pip offers the Flower that is locked.
ABSENT = ("docker", "chromium")
PYTHON = """#!/bin/bash
case "$*" in
  -c*) echo 11 ;;
  *index*) echo "flwr (1.42.0)" ;;
  *) exit 1 ;;
esac
"""


class Checkout:
    """A checkout of `.ci/run` alone, with commands that take a moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".ci").mkdir()
        (folder / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
        (folder / "tests").mkdir()
        for name in "abc":
            (folder / "tests" / f"test_{name}.py").write_text("mark.federation")
        (folder / "pyproject.toml").write_text("")
        (folder / "requirements.lock").write_text("flwr==1.42.0 \\\n")
        (folder / "bin").mkdir()
        names = {"make": MAKE, "timeout": TIMEOUT, "python3": PYTHON}
        for name, script in {**names, **dict.fromkeys(ABSENT, "#!/bin/bash\nexit 1\n")}.items():
            (folder / "bin" / name).write_text(script)
            (folder / "bin" / name).chmod(0o755)
        (folder / "bin" / "chromium").unlink()
        for command in ("init", "add .", "commit -m x"):
            self.git(*command.split())

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=self.folder, check=True, capture_output=True)

    def end(self, target: str, code: int) -> None:
        (self.folder / f"ends-{target}").write_text(str(code))

    def run(self, begun: int = 0) -> tuple[int, list[str]]:
        """Return the exit code and the printed lines, as if it had begun so many seconds ago."""
        done = subprocess.run(
            ["bash", ".ci/run"],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
                "SECONDS": str(begun),
            },
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout.splitlines()

    def made(self) -> list[str]:
        return (self.folder / "made").read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def last_parts(made: list[str]) -> list[str]:
    """Return what comes after the slow tests, as the targets alone."""
    return [line.split()[0] for line in made[4:]]


def test_all_tests_come_first_and_their_summary_last(checkout: Checkout) -> None:
    code, printed = checkout.run()
    assert code == 0
    *first, tests = checkout.made()[:4]
    assert first == ["lint", "audit", ".venv/docs"]
    assert re.fullmatch("test SLOW_WITHIN=6[0-8]", tests)  # less on a busy machine
    assert {*last_parts(checkout.made())} == {
        *("test-onnx", "soak", "test-federation", ".venv-vision/ready", "test-vision")
    }
    assert printed[-4:] == ["Not run: nothing", *SUMMARY.splitlines()]


def test_the_commit_draws_the_order_of_what_comes_last(checkout: Checkout) -> None:
    """Of six orders, twenty commits draw more than one."""
    orders = set[tuple[str, ...]]()
    for number in range(20):
        checkout.git("commit", "--allow-empty", "-m", str(number))
        (checkout.folder / "made").unlink(missing_ok=True)
        assert checkout.run()[0] == 0
        orders.add((*last_parts(checkout.made()),))
        if len(orders) > 1:
            break
    assert len(orders) > 1


@pytest.mark.parametrize("target", ["lint", "audit", ".venv/docs"])
def test_what_must_pass_ends_all_with_its_failure(checkout: Checkout, target: str) -> None:
    (checkout.folder / "ends-.venv").mkdir()
    checkout.end(target, 3)
    code, printed = checkout.run()
    assert code == 3
    assert checkout.made()[-1].split()[0] == target
    assert "Not run: nothing" not in printed


def test_what_failed_beside_others_runs_once_more_by_itself(checkout: Checkout) -> None:
    checkout.end("test", 1)
    code, _ = checkout.run()
    assert (code, checkout.made()[4]) == (0, "test-failed")
    (checkout.folder / "made").unlink()
    checkout.end("test-failed", 3)
    code, _ = checkout.run()
    assert (code, checkout.made()[-1]) == (3, "test-failed")


@pytest.mark.parametrize("code", [124, 137])
def test_a_part_that_was_stopped_is_named(checkout: Checkout, code: int) -> None:
    checkout.end("test-federation", code)
    ended, printed = checkout.run()
    assert ended == 0
    assert "soak" in last_parts(checkout.made())
    assert "Not run: Federations: stopped before its end, with no failure up to then" in printed
    assert printed[-1] == SUMMARY.splitlines()[-1]


def test_a_part_that_fails_twice_is_a_failure(checkout: Checkout) -> None:
    checkout.end("soak", 2)
    code, printed = checkout.run()
    assert code == 2
    assert [line.split()[0] for line in checkout.made()[-2:]] == ["soak", "soak"]
    assert "Rounds with faults: what failed runs once more:" in printed
    assert printed[-1] == SUMMARY.splitlines()[-1]


def test_no_slow_test_begins_when_the_time_is_over(checkout: Checkout) -> None:
    code, printed = checkout.run(begun=4000)
    assert code == 0
    assert checkout.made()[3] in ("test SLOW_WITHIN=1", "test SLOW_WITHIN=0")  # on a busy machine
    (checkout.folder / "made").unlink()
    code, printed = checkout.run(begun=4450)
    assert checkout.made() == ["lint", "audit", ".venv/docs", "test SLOW_WITHIN=0"]
    assert {line for line in printed if line.startswith("Not run")} == {
        "Not run: Federations: no time was left",
        "Not run: Rounds with faults: no time was left",
        "Not run: The ONNX example: no time was left",
        "Not run: torchvision's models: no time was left",
    }


def test_no_part_may_reach_ninety_minutes(checkout: Checkout) -> None:
    """Each is stopped in time, counted from the start; its last minute is for what cleans up."""
    checkout.run(begun=3000)
    limits = [int(line) for line in (checkout.folder / "limits").read_text().splitlines()]
    assert max(limits) + 3000 + 60 <= 90 * 60
    assert 4780 - 3000 <= limits[3] <= 4800 - 3000
    assert all(4400 - 3000 < limit <= 4500 - 3000 for limit in limits[4:] if limit != 60)


def test_slow_tests_that_did_not_begin_are_said(checkout: Checkout) -> None:
    make = checkout.folder / "bin" / "make"
    skipped = (
        "SKIPPED [7] tests/conftest.py:9: 68 minutes were over before this slow test of tests/x.py"
    )
    make.write_text(make.read_text().replace("SKIPPED [1] tests/test_b.py:1: not here", skipped))
    code, printed = checkout.run()
    assert code == 0
    assert printed[-4] == "Not run: slow tests of files that the summary names"
    assert printed[-2] == skipped


def test_conftest_skips_in_these_words() -> None:
    words = re.findall(r'grep -q "([^"]+)"', (ROOT / ".ci" / "run").read_text())
    assert words
    assert all(each in (ROOT / "tests" / "conftest.py").read_text() for each in words)
