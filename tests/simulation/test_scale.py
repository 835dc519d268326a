"""Many registered clients, few a round: what a run takes grows with those who take part."""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from fairbloom.rounds.sampling import sample
from tests.tasks import mine

from .helpers import ROOT, run, table

LINE = f"{mine.__name__}:line"


def settings(clients: int, a_round: int, **others: Any) -> dict[str, Any]:
    share = a_round / clients
    return {
        "task": LINE,
        "clients": clients,
        "fraction": share,
        "fraction-evaluate": share,
        "device": "cpu",
        **others,
    }


# Memory -------------------------------------------------------------------------------------------


GROWTH = r"""
import re, sys
from pathlib import Path
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.simulation.test_scale import settings

def largest():
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024

for clients in (1_000, 1_000, 1_000_000):  # twice, so that what a second run in a process takes is no growth
    simulate(Settings.of(settings(clients, 100, **{"num-rounds": 3, "out": f"{sys.argv[1]}/{len(sys.argv)}"})))
    sys.argv.append(str(largest()))
print(int(sys.argv[-1]) - int(sys.argv[-2]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="a process reads its largest resident memory from /proc"
)
def test_a_run_with_a_million_clients_takes_at_most_200_mb_more(tmp_path: Path) -> None:
    command = [sys.executable, "-c", GROWTH, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # less than the names take would be no measurement
    assert 50 < int(done.stdout.split()[-1]) <= 200


# Draws --------------------------------------------------------------------------------------------


def test_clients_are_drawn_by_the_order_of_their_names(tmp_path: Path) -> None:
    """line-10 comes before line-9, and is the eleventh client of the task."""
    folder = run(tmp_path / "run", **settings(30, 3, num_rounds=4, seed=5))
    evaluated = defaultdict(list)
    for row in table(folder / "clients.csv"):
        evaluated[int(row["round"])].append(row["client"])
    names = sorted(f"line-{number}" for number in range(30))
    assert evaluated == {number: sample(names, 3, 5, "evaluate", number) for number in range(1, 5)}
