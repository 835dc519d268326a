"""The command line, in this process and in one of its own."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fairbloom.cli import main
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.protocol.scores import ACCURACY, Score

ROOT = Path(__file__).parents[2]

SMALL = ("--clients", "5", "--rounds", "3", "--device", "cpu")


def fairbloom(*words: object) -> int:
    """Run the command here; return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fairbloom", *map(str, words)])
        try:
            main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def start(*words: object, start_new_session: bool = False) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    command = [sys.executable, "-c", "from fairbloom.cli import main; main()", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=start_new_session)


def compared_by_hand(score: Score = ACCURACY, **methods: Sequence[Mapping[str, float]]) -> Comparison:
    """Return the comparison of these scores: by method one entry a seed, by client."""
    finals = {method: [{score.name: values} for values in by_seed] for method, by_seed in methods.items()}
    seeds = tuple(range(len(next(iter(finals.values())))))
    return Comparison(finals, "FedAvg", (score,), seeds)
