"""What a run shows while it goes on: log lines."""

import re
from pathlib import Path
from typing import Any

import pytest

from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.simulation.helpers import checkpoints_every

SMALL: dict[str, Any] = {"clients": 4, "num-rounds": 3, "device": "cpu"}


def test_a_run_logs_the_accuracy_and_the_worst_served_clients(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    rounds: list[RecordedRound] = []
    with checkpoints_every(1):
        simulate(
            Settings.of({**SMALL, "evaluate-every": 2, "out": str(tmp_path / "run")}), rounds.append
        )
    messages = dict.fromkeys(said.messages)  # some come by the root's handler too
    lines = [message for message in messages if message.startswith(("round", "worst"))]
    mean, worst, best = (rounds[2].measures[over] for over in ("mean", "worst", "best"))
    assert lines[0] == "round 1 is finished"
    assert lines[2].startswith(
        f"round 3 is finished: test accuracy {mean:.1f} %, of the worst 10 % of clients"
    )
    client = r"client-\d"
    others = rf"{client} {worst:.1f} %(, {client} [\d.]+ %){{2}}"
    assert re.fullmatch(rf"worst served: {others}; best: {client} {best:.1f} %", lines[3])


def test_rounds_that_share_a_checkpoint_share_a_log_line(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    with checkpoints_every(3):
        simulate(Settings.of({**SMALL, "num-rounds": 8, "out": str(tmp_path / "run")}))
    lines = dict.fromkeys(line.split(" is")[0] for line in said.messages)
    assert [line for line in lines if line.startswith("round ")] == [
        "round 3",
        "round 6",
        "round 8",
    ]
