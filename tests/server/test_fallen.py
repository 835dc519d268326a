"""A run whose model falls far below its best does not end as a success."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from fairbloom.client.app import app
from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.rounds.flower import model_of, record_of
from fairbloom.server.app import main
from fairbloom.server.fallen import chance_of, describe_fall
from fairbloom.server.run_folder.files import MODEL, is_finished
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import SERVER, InProcessGrid

COLUMN = "test_accuracy_of_global_model_mean"
AUC = Score("auc", percent=True)


def rows(*means: float | str) -> list[dict[str, str]]:
    return [{"round": str(number), COLUMN: str(mean)} for number, mean in enumerate(means, start=1)]


@pytest.mark.parametrize(
    ("means", "chance", "fallen"),
    [
        ((40.0, 87.0, 10.5), 10.0, True),
        ((40.0, 87.0, 48.4), 10.0, True),
        ((40.0, 87.0, 48.6), 10.0, False),
        ((40.0, 87.0, ""), 10.0, False),
        ((87.0, 40.0, 86.0), 10.0, False),
        ((80.0, 52.0), 50.0, True),
        ((9.0, 8.0), 10.0, False),
        ((19.0, 10.0), 10.0, False),
        ((90.0,), 10.0, False),
        ((), 10.0, False),
        ((60.0, 20.0), 0.0, True),
    ],
)
def test_a_model_has_fallen_with_less_than_half_of_its_best_above_chance(
    means: tuple[float | str, ...], chance: float, fallen: bool
) -> None:
    assert bool(describe_fall(rows(*means), ACCURACY, "global", chance)) == fallen


def test_the_words_name_the_numbers() -> None:
    words = describe_fall(rows(40.0, 87.0, 30.0, 10.5), ACCURACY, "global", 10.0)
    assert "its mean test accuracy is 10.5 % at the end, and was 87.0 % after round 2" in words


def test_chance_is_that_of_a_guess() -> None:
    assert (chance_of(ACCURACY, 10), chance_of(AUC, 10), chance_of(ACCURACY, 0)) == (10.0, 50.0, 0.0)
    assert chance_of(Score("balanced-accuracy", percent=True), 2) == 50.0
    assert chance_of(Score("f1", percent=True), 2) == 0.0


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


def test_a_run_whose_model_falls_ends_with_an_error_and_its_folder_whole(tmp_path: Path) -> None:
    for _ in range(2):  # the same command again says it again
        with pytest.raises(FairbloomError, match="the model has fallen: its mean test accuracy is"):
            run(tmp_path / "run", Harmed)
    assert is_finished(tmp_path / "run")
    assert MODEL.path_in(tmp_path / "run").is_file()


def test_a_run_whose_model_learns_ends_as_before(tmp_path: Path) -> None:
    run(tmp_path / "run", InProcessGrid)
