"""The command line, in this process and in one of its own."""

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbloom.cli.main import main
from fairbloom.experiments.results.compared_scores import tabulate
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


def captured(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> Any:
    """Run a command that ends with this code; return what was printed until its end."""
    assert fairbloom(*words) == code
    return capsys.readouterr()


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one line with which a command is refused."""
    capsys.readouterr()
    printed = captured(capsys, *words, code=2)
    assert printed.out == ""
    (line,) = str(printed.err).splitlines()
    assert line.startswith("error: ")
    return line


def as_json(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """Run a command with --json, and return its output, without any earlier output."""
    capsys.readouterr()
    assert fairbloom(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def times_in(folder: Path) -> dict[Path, int]:
    """Return the files in a folder and below, and when each was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def start(*words: object, start_new_session: bool = False) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    command = [
        sys.executable,
        "-c",
        "from fairbloom.cli.main import main; main()",
        *map(str, words),
    ]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=start_new_session
    )


# By score and client, the client's score.
Scores = Mapping[str, Mapping[str, float]]


def compared_by_hand(
    score: Score = ACCURACY, **methods: Sequence[Mapping[str, float]]
) -> Comparison:
    """Return the comparison of these scores: by method one entry a seed, by client."""
    return compared_by_scores(
        {method: [{score.name: of} for of in seeds] for method, seeds in methods.items()}, score
    )


def compared_by_scores(
    finals: Mapping[str, Sequence[Scores]], *scores: Score, personal: Sequence[str] = ()
) -> Comparison:
    """Return the comparison of several scores: by method one entry a seed; some methods stand for
    personal models."""
    rows = [
        (
            method,
            "personal" if method in personal else "global",
            seed,
            client,
            math.nan,
            name,
            value,
        )
        for method, by_seed in finals.items()
        for seed, by_score in enumerate(by_seed)
        for name, by_client in by_score.items()
        for client, value in by_client.items()
    ]
    return Comparison(tabulate(rows), "FedAvg", scores)


def compared_at_random(
    count: int, score: Score = ACCURACY, name: str = "TERM (tilt={})", personal: int = 0
) -> Comparison:
    """Return a comparison of `count` methods with 12 clients and 2 seeds.

    The last `personal` methods are personal models.
    """
    rng = np.random.default_rng(0)
    names = ["FedAvg", *(name.format(k) for k in range(1, count))]
    finals = {
        method: [
            {score.name: {f"c{k}": float(v) for k, v in enumerate(rng.uniform(0, 90, 12))}}
            for _ in range(2)
        ]
        for method in names
    }
    return compared_by_scores(finals, score, personal=names[count - personal :])
