"""What clients keep in `context.state` of an app lasts as long as the run folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from fairbloom.client.fair import fair
from fairbloom.server.polling import PollingGrid
from fairbloom.server.run_folder.flower import RunFolder
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedAvg
from tests.simulation.helpers import StoppedError, stop_after, table

CLIENTS = 3


def app_of(*, keeps: bool = True) -> ClientApp:
    """Return an app that counts in its context how often it has trained and evaluated."""
    app = ClientApp()

    def count(context: Context, kind: str) -> int:
        before = context.state.metric_records.get("counts", MetricRecord())
        number = int(str(before.get(kind, 0))) + 1
        if keeps:
            context.state["counts"] = MetricRecord({**before, kind: number})
        return number

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = count(context, "train")
        weights = message.content["arrays"]["w"].numpy() + np.float32(number)
        metrics = MetricRecord({"num-examples": 10, "times": number})
        arrays = ArrayRecord({"w": Array(weights)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = {"num-examples": 2, "eval_acc": 0.5, "times": count(context, "evaluate")}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def start(folder: Path, rounds: int, grid: InProcessGrid | None = None, **given: Any) -> Result:
    grid = grid or InProcessGrid(app_of(), {}, CLIENTS)
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    strategy = FedAvg(fraction_train=0.5, seed=4)
    return RunFolder(folder, score="eval_acc").start(strategy, grid, arrays, rounds, **given)


def assert_like_whole(folder: Path, whole: Path) -> None:
    """Assert that a run has the counts and the model of one that was not interrupted."""
    assert table(folder / "metrics.csv") == table(whole / "metrics.csv")
    name = "model.safetensors"
    assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    start(tmp_path / "whole", 6)
    return tmp_path / "whole"


def test_an_extended_run_goes_on_with_the_states_of_clients(tmp_path: Path, whole: Path) -> None:
    start(tmp_path / "run", 5)
    start(tmp_path / "run", 6)
    assert_like_whole(tmp_path / "run", whole)


@pytest.mark.parametrize("same_grid", [False, True])
def test_a_round_that_was_under_way_counts_once(
    tmp_path: Path, whole: Path, same_grid: bool
) -> None:
    def evaluate(number: int, arrays: ArrayRecord) -> None:
        if number == 3:
            raise StoppedError

    grid = InProcessGrid(app_of(), {}, CLIENTS) if same_grid else None
    with pytest.raises(StoppedError):
        start(tmp_path / "run", 6, grid, evaluate_fn=evaluate)
    start(tmp_path / "run", 6, grid)
    assert_like_whole(tmp_path / "run", whole)


def test_a_damaged_checkpoint_goes_back_with_its_states(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(StoppedError):
        start(tmp_path / "run", 6, on_round=stop_after(4))
    (tmp_path / "run/checkpoint/4.safetensors").write_bytes(b"damaged")
    start(tmp_path / "run", 6)
    assert_like_whole(tmp_path / "run", whole)


def test_states_are_kept_with_the_checkpoints_alone(tmp_path: Path) -> None:
    start(tmp_path / "run", 6)
    kept = {path.stem for path in (tmp_path / "run").glob("checkpoint/*.contexts")}
    assert {"5", "6"} <= kept <= {"4", "5", "6"}
    start(tmp_path / "none", 3, InProcessGrid(app_of(keeps=False), {}, CLIENTS))
    assert not list((tmp_path / "none").glob("checkpoint/*.contexts"))


def test_damaged_states_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start(tmp_path / "run", 2)
    file = tmp_path / "run/checkpoint/2.contexts"
    file.write_bytes(file.read_bytes()[:-1])
    start(tmp_path / "run", 3)
    assert "2.contexts is damaged: the clients begin without the states in it" in caplog.text


# Nodes that keep a state for one run of Flower's only ---------------------------------------------


def made_fair(app: ClientApp) -> ClientApp:
    """Return an app by `fair` with the handlers of another one."""
    made = fair(lambda model, loader: None, lambda model, loader: (0.0, 0.0))
    made.train()(lambda message, context: app(message, context))
    made.evaluate()(lambda message, context: app(message, context))
    return made


@pytest.mark.parametrize(
    ("app", "words"),
    [
        (made_fair(app_of()), "the state of client-0, client-1, client-2 in context.state"),
        (made_fair(app_of(keeps=False)), ""),
        (app_of(), "what 2, 3, 4 may have kept in context.state is lost"),
    ],
)
def test_a_continued_run_warns_of_states_that_are_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, app: ClientApp, words: str
) -> None:
    for rounds in (2, 4):
        caplog.clear()
        grid = PollingGrid(InProcessGrid(app, {}, CLIENTS))  # has no contexts of its own
        arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
        RunFolder(tmp_path / "run", score="eval_acc").start(FedAvg(), grid, arrays, rounds)
        warnings = [each for each in caplog.messages if "context.state" in each]
        assert len(warnings) == (rounds == 4 and bool(words))
    assert words in "".join(warnings)


def test_a_message_names_no_folder_of_a_device(tmp_path: Path) -> None:
    app = made_fair(app_of())
    context = Context(1, 2, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})
    config = ConfigRecord(
        {"server-round": 1, "run-folder": "0123456789abcdef", "contexts": str(tmp_path)}
    )
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    reply = app(Message(RecordDict({"arrays": arrays, "config": config}), 2, "train"), context)
    assert reply.content["client"]["context-state"] is True
    assert not list(tmp_path.iterdir())
