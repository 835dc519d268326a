"""All that a user's app reports is in one table of the run folder: by client, together, and of the
server."""

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
from fairbloom.errors import FairbloomError
from fairbloom.server.run_folder.metrics import LONGEST_NAME, MOST_METRICS
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FairStrategy, FedAvg
from tests.simulation.helpers import StoppedError, stop_after

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


def start(
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
    run_folder = RunFolder(folder, score=score, loss=loss, wait=False)
    return run_folder.start(
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
    start(tmp_path / "run")
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
    start(tmp_path / "run")
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
    result = start(tmp_path / "means")
    for number in range(1, ROUNDS + 1):
        with subtests.test(number=number):
            for phase, found in (
                ("train", result.train_metrics_clientapp),
                ("evaluate", result.evaluate_metrics_clientapp),
            ):
                there = rows(tmp_path / "means", round=number, phase=phase, client="").set_index(
                    "metric"
                )["value"]
                assert there.to_dict() == pytest.approx(dict(found[number]))

    def worst(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        return MetricRecord(
            {"largest": max(float(str(each["metrics"]["num-examples"])) for each in contents)}
        )

    start(
        tmp_path / "own",
        strategy=FedAvg(evaluate_metrics_aggr_fn=worst, train_metrics_aggr_fn=worst),
    )
    assert values(tmp_path / "own", round=2, phase="train", client="", metric="largest") == [40.0]
    assert values(tmp_path / "own", round=2, phase="evaluate", client="", metric="largest") == [4.0]
    assert not values(tmp_path / "own", phase="evaluate", client="", metric="eval_loss")


def test_server_metrics_begin_with_the_initial_model(tmp_path: Path) -> None:
    start(tmp_path / "run")
    assert values(tmp_path / "run", phase="server", metric="central_acc") == pytest.approx(
        [0.0, 0.1, 0.2, 0.3, 0.4]
    )
    assert values(tmp_path / "run", phase="server", metric="by_class") == []


def test_a_continued_run_has_the_table_of_an_uninterrupted_one(tmp_path: Path) -> None:
    """With a metric that comes in round 3, and one that a single client has."""

    app = clients(of_last={"extra": 1.5})
    start(tmp_path / "whole", app)
    with pytest.raises(StoppedError):
        start(tmp_path / "run", app, on_round=stop_after(2))
    start(tmp_path / "run", app)
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
            start(tmp_path / "run")
    assert "0,server,,central_acc" in (tmp_path / "run" / "metrics.csv").read_text()
    start(tmp_path / "run")
    assert len(values(tmp_path / "run", round=0, metric="central_acc")) == 1


@pytest.mark.parametrize(
    ("damaged", "words"),
    [("servers,,central_acc,0.0", "it has no 'servers'"), ("server,,central_acc,x", "float: 'x'")],
)
def test_a_damaged_cell_names_the_table(tmp_path: Path, damaged: str, words: str) -> None:
    start(tmp_path / "run")
    file = tmp_path / "run" / "metrics.csv"
    file.write_text(file.read_text().replace("server,,central_acc,0.0", damaged, 1))
    with pytest.raises(FairbloomError, match=f"metrics.csv cannot be read: .*{words}"):
        start(tmp_path / "run")


def test_a_list_is_in_no_mean_and_no_table_and_ends_nothing(tmp_path: Path) -> None:
    result = start(
        tmp_path / "run", clients({"by_class": [1.0, 2.0]}, of_last={"by_class": [1.0] * 300_000})
    )
    assert "by_class" not in result.evaluate_metrics_clientapp[1]
    assert "auc" in result.evaluate_metrics_clientapp[1]
    assert "by_class" not in (tmp_path / "run" / "metrics.csv").read_text()
    assert fairbloom.load(tmp_path / "run").finished


def test_metric_names_may_have_commas_quotes_and_column_names(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    names = {
        "a, b": 1.0,
        'say "x"': 2.0,
        "round": 3.0,
        "client": 4.0,
        "test_accuracy_of_global_model": 5.0,
    }
    start(tmp_path / "run", clients(names))
    for name, value in names.items():
        with subtests.test(name=name, value=value):
            assert values(tmp_path / "run", round=1, client="site-0", metric=name) == [value]


def test_absurd_metrics_of_a_client_are_left_out_with_a_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    subtests: pytest.Subtests,
) -> None:
    many = {f"m{number}": 1.0 for number in range(MOST_METRICS + 500)}
    for place, report in enumerate(({"two\nlines": 1.0, "x" * (LONGEST_NAME + 1): 1.0}, many)):
        with subtests.test(place=place, report=report):
            caplog.clear()
            start(tmp_path / str(place), clients(of_last=report), rounds=1)
            there = set(rows(tmp_path / str(place), client="site-3", phase="evaluate")["metric"])
            assert len(there) <= MOST_METRICS
            assert "eval_loss" in there
            assert report is many or not there & set(report)
            assert any("site-3" in line and "not written" in line for line in caplog.messages)
            assert max(map(len, caplog.messages)) < 1000


def test_a_score_that_no_client_ever_replies_ends_the_run(
    tmp_path: Path,
) -> None:
    with pytest.raises(FairbloomError, match=r"not 'aucc'.* name one of those"):
        start(tmp_path / "a", score=["eval_acc", Score("aucc")])
    with pytest.raises(FairbloomError, match="not 'loss_eval'"):
        start(tmp_path / "b", loss="loss_eval")
    with pytest.raises(FairbloomError, match="test_auc_of_global_model"):
        RunFolder(tmp_path / "c", score=["auc", Score("auc")])
    with pytest.raises(FairbloomError, match=r"score = \[\]"):
        RunFolder(tmp_path / "d", score=[])
    start(tmp_path / "e", rounds=1)
    with pytest.raises(FairbloomError, match="loss = 'eval_loss' there and None here"):
        start(tmp_path / "e", rounds=2, loss="")


def test_show_prints_what_the_app_reported_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path / "run")
    fairbloom.load(tmp_path / "run").show()
    shown = capsys.readouterr().out
    assert "Metrics of round 4" in shown
    assert "central_acc" in shown
