"""A run whose model falls far below its best, or to where it began, says so once at its end."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from fairbloom.client.app import app
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.rounds.records import model_of, record_of
from fairbloom.server.app import main
from fairbloom.server.fallen import describe_fall
from fairbloom.server.run_folder.files import MODEL, is_finished
from fairbloom.server.run_folder.flower import RunFolder
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import SERVER, InProcessGrid
from fairbloom.strategies import FedAvg
from tests.federation import BUFFERS, MemoryGrid, initial_model, quadratics, record

COLUMN = "test_accuracy_of_global_model_mean"


def rows(*means: float | str) -> list[dict[str, str]]:
    return [{"round": str(number), COLUMN: str(mean)} for number, mean in enumerate(means, start=1)]


def test_a_model_has_fallen_that_lost_most_of_what_it_gained() -> None:
    mae, shares = Score("mae", higher_is_better=False), Score("eval_acc")
    cases: list[tuple[Score, tuple[float | str, ...], bool]] = [
        (ACCURACY, (40.0, 87.0, 10.5), True),
        (ACCURACY, (40.0, 87.0, 48.4), True),
        (ACCURACY, (40.0, 87.0, 55.0), False),
        (ACCURACY, (40.0, 87.0, ""), False),
        (ACCURACY, (87.0, 40.0, 86.0), False),
        (ACCURACY, (80.0, 52.0), True),
        (ACCURACY, (60.0, 69.0, 60.0), False),
        (ACCURACY, (90.0,), False),
        (ACCURACY, (), False),
        (mae, (5.0, 3.0, 5.5), True),
        (mae, (5.0, 4.9, 5.5), False),
        (shares, (0.4, 0.88, 0.1), True),
        (shares, (0.4, 0.88, 0.6), False),
    ]
    for score, means, fallen in cases:
        table = [{"round": str(t), f"{score.column()}_mean": str(mean)} for t, mean in enumerate(means, start=1)]
        assert bool(describe_fall(table, score, "global", "learning-rate = 0.5")) == fallen, means
    words = describe_fall(rows(40.0, 87.0, 30.0, 10.5), ACCURACY, "global", "learning-rate = 0.5")
    assert "is 10.5 % at the end, and was 87.0 % after round 2" in words
    assert "learning rate first (learning-rate = 0.5)" in words


class Harmed(InProcessGrid):
    """One of its clients answers with ten times its update in the wrong direction, from a round on."""

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        first = message.metadata.dst_node_id == SERVER + 1
        sent = message.content
        if first and message.metadata.message_type == "train" and sent.config_records["config"]["server-round"] > 3:
            content = reply.content
            before, after = (model_of(each.array_records["arrays"]) for each in (sent, content))
            content["arrays"] = record_of(
                {k: (before[k] - 10.0 * (after[k] - before[k])).astype(after[k].dtype) for k in after}
            )
            reply.content = content
        return reply


def run(out: Path, grid: type[InProcessGrid]) -> None:
    plain: dict[str, Any] = {"clients": 4, "num-rounds": 7, "fraction": 1.0, "device": "cpu", "method": "fedavg"}
    settings = Settings.of({**plain, "patience": 0.0, "out": str(out)})
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings.run_config())
    main(grid(app, settings.run_config(), settings.clients), context)


def test_a_run_whose_model_falls_says_so_once_at_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):  # the same command again does not say it again
        run(tmp_path / "run", Harmed)
    assert len([each for each in caplog.messages if "the model has fallen" in each]) == 1
    assert is_finished(tmp_path / "run")
    assert MODEL.path_in(tmp_path / "run").is_file()


def test_a_run_whose_model_learns_ends_as_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "run", InProcessGrid)
    assert "fallen" not in caplog.text


def test_a_users_run_whose_model_falls_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    far = record({name: np.asarray(50.0 * array).astype(array.dtype) for name, array in initial_model().items()})

    class Thrown(FedAvg):
        """Throws the model far away in the last round."""

        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            arrays, numbers = super().aggregate_train(server_round, replies)
            return far if server_round == 3 else arrays, numbers

    folder = RunFolder(tmp_path / "run", score="loss")
    folder.start(Thrown(buffers=BUFFERS), MemoryGrid(quadratics(3)), far, num_rounds=3)
    (said,) = [each for each in caplog.messages if "the model has fallen" in each]
    assert "learning rate first" in said
