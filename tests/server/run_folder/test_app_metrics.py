"""All that a user's app reports is in one table of the run folder: by client, together, and of the
server.

What clients keep in `context.state` of an app lasts as long as the run folder.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

import fairbloom
from fairbloom import RunFolder, Score
from fairbloom.client.fair import fair
from fairbloom.errors import FairbloomError
from fairbloom.server.polling import PollingGrid
from fairbloom.server.run_folder.metrics import LONGEST_NAME, MOST_METRICS
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FairStrategy, FedAvg
from fairbloom.system.versions import Versions
from tests.simulation.helpers import StoppedError, stop_after, table

ROUNDS = 4
SCORES = [Score("eval_acc", percent=True), "auc"]


def place(context: Context) -> int:
    return int(str(context.node_config["partition-id"]))


def clients(more: dict[str, Any] | None = None, of_last: dict[str, Any] | None = None) -> ClientApp:
    """Return clients with metrics of their own; from round 3 on all report `late`; `of_last` is
    client 3's alone."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = message.content["arrays"]["w"].numpy()
        after = ArrayRecord({"w": Array(model + np.float32(0.5) * (place(context) - model))})
        metrics = {"num-examples": 10 * (1 + place(context)), "train_loss": float(place(context))}
        return Message(
            RecordDict({"arrays": after, "metrics": MetricRecord(metrics)}), reply_to=message
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        away = float(np.abs(message.content["arrays"]["w"].numpy() - place(context)).sum())
        number = int(str(message.content["config"]["server-round"]))
        metrics = {
            "num-examples": 1 + place(context),
            "eval_loss": away,
            "eval_acc": 1.0 / (1.0 + away),
            "auc": 0.5,
        }
        metrics |= (more or {}) | ({"late": float(number)} if number >= 3 else {})
        metrics |= of_last or {} if place(context) == 3 else {}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"client": ConfigRecord({"name": f"site-{place(context)}"})}),
            reply_to=message,
        )

    return app


def on_server(number: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"central_acc": number / 10.0, "by_class": [float(number), 1.0]})


def start_measured(
    folder: Path,
    app: ClientApp | None = None,
    *,
    strategy: FairStrategy | None = None,
    rounds: int = ROUNDS,
    score: Any = SCORES,
    loss: str = "eval_loss",
    **given: Any,
) -> Result:
    arrays = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    grid = InProcessGrid(app or clients(), {}, 4)
    return RunFolder(folder, score=score, loss=loss, wait=False).start(
        strategy or FedAvg(), grid, arrays, rounds, **{"evaluate_fn": on_server, **given}
    )


def rows(folder: Path, **where: object) -> pandas.DataFrame:
    metrics = fairbloom.load(folder).metrics
    for column, value in where.items():
        metrics = metrics[metrics[column] == value]
    return metrics


def values(folder: Path, **where: object) -> list[float]:
    return [float(value) for value in rows(folder, **where)["value"]]


def test_client_metrics_of_training_and_evaluation_are_recorded(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    start_measured(tmp_path / "run")
    for number in range(1, ROUNDS + 1):
        with subtests.test(number=number):
            trained = rows(tmp_path / "run", round=number, phase="train", metric="train_loss")
            assert dict(zip(trained["client"], trained["value"], strict=True))["site-2"] == 2.0
            assert sorted(trained["client"]) == ["", "site-0", "site-1", "site-2", "site-3"]
            assert values(
                tmp_path / "run",
                round=number,
                phase="evaluate",
                metric="num-examples",
                client="site-3",
            ) == [4]


def test_the_scores_and_the_loss_are_in_the_table_of_clients(tmp_path: Path) -> None:
    start_measured(tmp_path / "run")
    run = fairbloom.load(tmp_path / "run")
    assert [score.name for score in run.scores] == ["eval_acc", "auc"]
    assert run.score.percent
    assert set(run.clients["test_auc_of_global_model"]) == {0.5}
    last = rows(tmp_path / "run", round=ROUNDS, phase="evaluate", metric="eval_loss").set_index(
        "client"
    )["value"]
    table = run.clients[run.clients["round"] == ROUNDS].set_index("client")[
        "test_loss_of_global_model"
    ]
    assert {name: last[name] for name in table.index} == table.to_dict()


def test_means_equal_the_result_also_with_own_aggregation(
    tmp_path: Path,
    subtests: pytest.Subtests,
) -> None:
    result = start_measured(tmp_path / "means")
    for number in range(1, ROUNDS + 1):
        with subtests.test(number=number):
            for phase, found in (
                ("train", result.train_metrics_clientapp),
                ("evaluate", result.evaluate_metrics_clientapp),
            ):
                assert rows(tmp_path / "means", round=number, phase=phase, client="").set_index(
                    "metric"
                )["value"].to_dict() == pytest.approx(dict(found[number]))

    def worst(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        return MetricRecord(
            {"largest": max(float(str(each["metrics"]["num-examples"])) for each in contents)}
        )

    start_measured(
        tmp_path / "own",
        strategy=FedAvg(evaluate_metrics_aggr_fn=worst, train_metrics_aggr_fn=worst),
    )
    assert values(tmp_path / "own", round=2, phase="train", client="", metric="largest") == [40.0]
    assert values(tmp_path / "own", round=2, phase="evaluate", client="", metric="largest") == [4.0]
    assert not values(tmp_path / "own", phase="evaluate", client="", metric="eval_loss")


def test_server_metrics_begin_with_the_initial_model(tmp_path: Path) -> None:
    start_measured(tmp_path / "run")
    assert values(tmp_path / "run", phase="server", metric="central_acc") == pytest.approx(
        [0.0, 0.1, 0.2, 0.3, 0.4]
    )
    assert values(tmp_path / "run", phase="server", metric="by_class") == []


def test_a_continued_run_has_the_table_of_an_uninterrupted_one(tmp_path: Path) -> None:
    """With a metric that comes in round 3, and one that a single client has."""

    app = clients(of_last={"extra": 1.5})
    start_measured(tmp_path / "whole", app)
    with pytest.raises(StoppedError):
        start_measured(tmp_path / "run", app, on_round=stop_after(2))
    start_measured(tmp_path / "run", app)
    whole, run = ((tmp_path / name / "metrics.csv").read_bytes() for name in ("whole", "run"))
    assert whole == run
    assert values(tmp_path / "run", metric="late", client="site-1") == [3.0, 4.0]
    assert set(rows(tmp_path / "run", metric="extra")["client"]) == {"site-3"}


def test_initial_metrics_are_written_once_despite_an_early_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the first round are written before its checkpoint."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("fairbloom.server.run_folder.recorder.save_round", killed)
        with pytest.raises(KeyboardInterrupt):
            start_measured(tmp_path / "run")
    assert "0,server,,central_acc" in (tmp_path / "run" / "metrics.csv").read_text()
    start_measured(tmp_path / "run")
    assert len(values(tmp_path / "run", round=0, metric="central_acc")) == 1


@pytest.mark.parametrize(
    ("damaged", "words"),
    [("servers,,central_acc,0.0", "it has no 'servers'"), ("server,,central_acc,x", "float: 'x'")],
)
def test_a_damaged_cell_names_the_table(tmp_path: Path, damaged: str, words: str) -> None:
    start_measured(tmp_path / "run")
    file = tmp_path / "run" / "metrics.csv"
    file.write_text(file.read_text().replace("server,,central_acc,0.0", damaged, 1))
    with pytest.raises(FairbloomError, match=f"metrics.csv cannot be read: .*{words}"):
        start_measured(tmp_path / "run")


def test_a_list_is_in_no_mean_and_no_table_and_ends_nothing(tmp_path: Path) -> None:
    result = start_measured(
        tmp_path / "run", clients({"by_class": [1.0, 2.0]}, of_last={"by_class": [1.0] * 300_000})
    )
    assert "by_class" not in result.evaluate_metrics_clientapp[1]
    assert "auc" in result.evaluate_metrics_clientapp[1]
    assert "by_class" not in (tmp_path / "run" / "metrics.csv").read_text()
    assert fairbloom.load(tmp_path / "run").finished


def test_metric_names_may_have_commas_quotes_and_column_names(tmp_path: Path) -> None:
    names = {
        "a, b": 1.0,
        'say "x"': 2.0,
        "round": 3.0,
        "client": 4.0,
        "test_accuracy_of_global_model": 5.0,
    }
    start_measured(tmp_path / "run", clients(names))
    assert {
        name: values(tmp_path / "run", round=1, client="site-0", metric=name) for name in names
    } == {name: [value] for name, value in names.items()}


@pytest.mark.parametrize(
    "report",
    [
        {"two\nlines": 1.0, "x" * (LONGEST_NAME + 1): 1.0},
        {f"m{number}": 1.0 for number in range(MOST_METRICS + 500)},
    ],
    ids=["absurd names", "too many"],
)
def test_absurd_metrics_of_a_client_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, report: dict[str, float]
) -> None:
    start_measured(tmp_path / "run", clients(of_last=report), rounds=1)
    there = set(rows(tmp_path / "run", client="site-3", phase="evaluate")["metric"])
    assert len(there) <= MOST_METRICS
    assert "eval_loss" in there
    assert len(report) > MOST_METRICS or not there & set(report)
    assert any("site-3" in line and "not written" in line for line in caplog.messages)
    assert max(map(len, caplog.messages)) < 1000


@pytest.mark.parametrize(
    ("start", "given", "words"),
    [
        (start_measured, {"score": ["eval_acc", Score("aucc")]}, "not 'aucc'.* name one of those"),
        (start_measured, {"loss": "loss_eval"}, "not 'loss_eval'"),
        (RunFolder, {"score": ["auc", Score("auc")]}, "test_auc_of_global_model"),
        (RunFolder, {"score": []}, r"score = \[\]"),
    ],
)
def test_a_score_that_no_client_ever_replies_is_refused(
    tmp_path: Path, start: Any, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(FairbloomError, match=words):
        start(tmp_path / "run", **given)


def test_a_run_continues_with_the_same_loss(tmp_path: Path) -> None:
    start_measured(tmp_path / "run", rounds=1)
    with pytest.raises(FairbloomError, match="loss = 'eval_loss' there and None here"):
        start_measured(tmp_path / "run", rounds=2, loss="")


def test_show_prints_what_the_app_reported_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start_measured(tmp_path / "run")
    fairbloom.load(tmp_path / "run").show()
    shown = capsys.readouterr().out
    assert "Metrics of round 4" in shown
    assert "central_acc" in shown


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
        return Message(
            RecordDict({"arrays": ArrayRecord({"w": Array(weights)}), "metrics": metrics}),
            reply_to=message,
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = {"num-examples": 2, "eval_acc": 0.5, "times": count(context, "evaluate")}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def start_stateful(
    folder: Path, rounds: int, grid: InProcessGrid | None = None, **given: Any
) -> Result:
    grid = grid or InProcessGrid(app_of(), {}, CLIENTS)
    strategy = FedAvg(fraction_train=0.5, seed=4)
    return RunFolder(folder, score="eval_acc").start(
        strategy, grid, ArrayRecord({"w": Array(np.zeros(3, np.float32))}), rounds, **given
    )


def assert_like_whole(folder: Path, whole: Path) -> None:
    """Assert that a run has the counts and the model of one that was not interrupted."""
    assert table(folder / "metrics.csv") == table(whole / "metrics.csv")
    name = "model.safetensors"
    assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    start_stateful(tmp_path / "whole", 6)
    return tmp_path / "whole"


def test_an_extended_run_goes_on_with_the_states_of_clients(tmp_path: Path, whole: Path) -> None:
    start_stateful(tmp_path / "run", 5)
    start_stateful(tmp_path / "run", 6)
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
        start_stateful(tmp_path / "run", 6, grid, evaluate_fn=evaluate)
    start_stateful(tmp_path / "run", 6, grid)
    assert_like_whole(tmp_path / "run", whole)


def test_a_damaged_checkpoint_goes_back_with_its_states(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(StoppedError):
        start_stateful(tmp_path / "run", 6, on_round=stop_after(4))
    (tmp_path / "run/checkpoint/4.safetensors").write_bytes(b"damaged")
    start_stateful(tmp_path / "run", 6)
    assert_like_whole(tmp_path / "run", whole)


def test_states_are_kept_with_the_checkpoints_alone(tmp_path: Path) -> None:
    start_stateful(tmp_path / "run", 6)
    kept = {step.round for step in Versions(tmp_path / "run" / "contexts").steps("2")}
    assert {5, 6} <= kept <= {4, 5, 6}
    start_stateful(tmp_path / "none", 3, InProcessGrid(app_of(keeps=False), {}, CLIENTS))
    assert not (tmp_path / "none" / "contexts").exists()


def test_damaged_states_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start_stateful(tmp_path / "run", 2)
    *_, file = sorted((tmp_path / "run" / "contexts").iterdir())
    file.write_bytes(file.read_bytes()[:-9])
    start_stateful(tmp_path / "run", 3)
    assert f"{file} is damaged: " in caplog.text


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
        RunFolder(tmp_path / "run", score="eval_acc").start(
            FedAvg(), grid, ArrayRecord({"w": Array(np.zeros(3, np.float32))}), rounds
        )
        warnings = [each for each in caplog.messages if "context.state" in each]
        assert len(warnings) == (rounds == 4 and bool(words))
    assert words in "".join(warnings)


def test_a_message_names_no_folder_of_a_device(tmp_path: Path) -> None:
    config = ConfigRecord(
        {"server-round": 1, "run-folder": "0123456789abcdef", "contexts": str(tmp_path)}
    )
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    reply = made_fair(app_of())(
        Message(RecordDict({"arrays": arrays, "config": config}), 2, "train"),
        Context(1, 2, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {}),
    )
    assert reply.content["client"]["context-state"] is True
    assert not list(tmp_path.iterdir())
