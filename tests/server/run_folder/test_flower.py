"""The run folder of a user's ServerApp.

StopRun ends a run as finished, whichever function of an app raises it.
"""

import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Result
from safetensors.numpy import load_file

import fairbloom
from fairbloom import StopRun
from fairbloom.errors import FairbloomError
from fairbloom.protocol.scores import Score
from fairbloom.server.run_folder.flower import RunFolder
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FairStrategy, FedAvg, FedAvgN, FedFV, FedMGDAPlus
from tests.simulation.helpers import StoppedError, stop_after, table, without_seconds

ROUNDS = 6
SCORE = Score("eval_acc", percent=True)

# A client as somebody may have written it: three numbers that move towards its own target, with its
# own metrics.
app = ClientApp()


def target(context: Context) -> np.ndarray[Any, Any]:
    return np.eye(3, dtype=np.float32)[int(str(context.node_config["partition-id"])) % 3]


@app.train()
def train(message: Message, context: Context) -> Message:
    model = message.content["arrays"]["w"].numpy()
    rate = float(message.content["config"].get("lr", 0.5))
    after = ArrayRecord({"w": Array(model + np.float32(rate) * (target(context) - model))})
    loss = float(np.square(model - target(context)).sum())
    metrics = MetricRecord({"num-examples": 10, "train_loss": loss, "loss-before": loss})
    return Message(RecordDict({"arrays": after, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    away = float(np.abs(message.content["arrays"]["w"].numpy() - target(context)).sum())
    metrics = MetricRecord({"num-examples": 2, "eval_loss": away, "eval_acc": 1.0 / (1.0 + away)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    name = ConfigRecord({"name": f"site-{context.node_config['partition-id']}", "num-examples": 10})
    return Message(RecordDict({"client": name}), reply_to=message)


def start(
    folder: Path,
    strategy: FairStrategy,
    rounds: int = ROUNDS,
    score: str | Score = SCORE,
    **given: Any,
) -> Result:
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    return RunFolder(folder, score=score, wait=False).start(
        strategy, InProcessGrid(app, {}, 4), arrays, rounds, **given
    )


def test_each_client_and_round_is_recorded_in_the_named_score(tmp_path: Path) -> None:
    result = start(tmp_path / "run", FedFV(alpha=0.0, fraction_train=0.5))
    rows = table(tmp_path / "run" / "clients.csv")
    assert [(row["round"], row["client"]) for row in rows] == [
        (str(number), f"site-{i}") for number in range(1, ROUNDS + 1) for i in range(4)
    ]
    assert all(0 < float(row["test_eval_acc_of_global_model"]) < 100 for row in rows)
    assert sum(row["participated"] == "1" for row in rows) == 2 * ROUNDS
    last = table(tmp_path / "run" / "rounds.csv")[-1]
    assert float(last["test_eval_acc_of_global_model_worst"]) == min(
        [float(row["test_eval_acc_of_global_model"]) for row in rows[-4:]]
    )
    assert json.loads((tmp_path / "run" / "scores.json").read_text())[0]["name"] == "eval_acc"
    np.testing.assert_array_equal(
        load_file(tmp_path / "run" / "model.safetensors")["w"], result.arrays["w"].numpy()
    )


def test_the_result_of_a_continued_run_has_all_rounds(tmp_path: Path) -> None:
    def central(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"length": float(np.linalg.norm(arrays["w"].numpy())), "count": number})

    def run(folder: str, rounds: int) -> Result:
        return start(tmp_path / folder, FedFV(evaluate_every=2), rounds, evaluate_fn=central)

    whole = run("whole", ROUNDS)
    run("run", 4)
    assert vars(whole).keys() == vars(run("other", 1)).keys()
    for result in (run("run", ROUNDS), run("run", ROUNDS)):  # continued, and finished before
        assert result.train_metrics_clientapp == whole.train_metrics_clientapp
        assert result.evaluate_metrics_clientapp == whole.evaluate_metrics_clientapp
        assert result.evaluate_metrics_serverapp == whole.evaluate_metrics_serverapp
        assert list(result.evaluate_metrics_serverapp) == [*range(ROUNDS + 1)]
        assert result.arrays["w"].data == whole.arrays["w"].data


def test_a_share_evaluates_and_everybody_after_the_last_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def columns(folder: Path) -> list[tuple[str, str]]:
        return [(row["clients"], row["clients_scored"]) for row in table(folder / "rounds.csv")]

    with pytest.raises(StoppedError), caplog.at_level("INFO", "flwr"):
        start(tmp_path / "run", FedAvg(fraction_evaluate=0.5), 3, on_round=stop_after(2))
    assert columns(tmp_path / "run") == [("4", "2")] * 2
    assert len([each for each in caplog.messages if "over 2 of 4 clients" in each]) == 2
    fairbloom.load(tmp_path / "run").show()
    assert "2 of 4" in capsys.readouterr().out
    start(tmp_path / "run", FedAvg(fraction_evaluate=0.5), 3)
    assert columns(tmp_path / "run") == [*[("4", "2")] * 2, ("4", "4")]
    start(tmp_path / "none", FedAvg(fraction_evaluate=0.0), 1)
    assert columns(tmp_path / "none") == [("4", "")]


def test_a_score_that_is_no_number_leaves_the_client_uncounted(tmp_path: Path) -> None:
    def odd(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "evaluate" and context.node_config["partition-id"] == 1:
            reply.content["metrics"] = MetricRecord({"num-examples": 2, "eval_acc": float("nan")})
        return reply

    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    RunFolder(tmp_path / "run", score=SCORE).start(
        FedAvg(), InProcessGrid(cast(ClientApp, odd), {}, 4), arrays, 1
    )
    (row,) = table(tmp_path / "run" / "rounds.csv")
    assert (row["clients"], row["clients_scored"]) == ("4", "3")


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({}, "evaluate reply no metric, and not 'eval_acc', in which fairness is to be measured"),
        ({"eval_acc": math.nan}, "'eval_acc', in which fairness is to be measured, is NaN at all"),
        ({"eval_acc": 0.5, "eval_loss": math.nan}, "'eval_loss', which is named, is NaN at all"),
        ({"eval_acc": math.inf}, "'eval_acc', in which fairness is to be measured, is infinite at"),
    ],
)
def test_a_metric_that_no_client_has_as_a_number_is_named(
    tmp_path: Path, metrics: dict[str, float], words: str
) -> None:
    def odd(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "evaluate":
            reply.content["metrics"] = MetricRecord(
                ({"num-examples": 2} if metrics else {}) | metrics
            )
        return reply

    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    grid = InProcessGrid(cast(ClientApp, odd), {}, 4)
    with pytest.raises(FairbloomError, match=words):
        RunFolder(tmp_path, score=SCORE, loss="eval_loss").start(FedAvg(), grid, arrays, 1)


def test_the_worst_client_of_a_loss_has_the_highest_one(tmp_path: Path) -> None:
    start(tmp_path / "run", FedAvg(), score=Score("eval_loss", higher_is_better=False))
    rows = [row for row in table(tmp_path / "run" / "clients.csv") if row["round"] == str(ROUNDS)]
    losses = [float(row["test_eval_loss_of_global_model"]) for row in rows]
    last = table(tmp_path / "run" / "rounds.csv")[-1]
    assert float(last["test_eval_loss_of_global_model_worst"]) == max(losses)
    assert float(last["test_eval_loss_of_global_model_best"]) == min(losses)


@pytest.mark.parametrize(
    ("strategy", "stopped_after"), [(FedFV, 1), (FedMGDAPlus, 3), (FedAvg, ROUNDS)]
)
def test_a_run_that_stops_goes_on_to_the_same_bits(
    tmp_path: Path, strategy: type[FairStrategy], stopped_after: int
) -> None:
    start(tmp_path / "whole", strategy(fraction_train=0.5))
    with pytest.raises(StoppedError):
        start(tmp_path / "run", strategy(fraction_train=0.5), on_round=stop_after(stopped_after))
    assert not (tmp_path / "run" / "model.safetensors").exists()
    start(tmp_path / "run", strategy(fraction_train=0.5))
    assert [
        name
        for name in ("clients.csv", "rounds.csv")
        if without_seconds(tmp_path / "run" / name) != without_seconds(tmp_path / "whole" / name)
    ] == []
    one, other = (
        load_file(tmp_path / run / "model.safetensors")["w"].tobytes() for run in ("run", "whole")
    )
    assert one == other


def test_a_finished_run_is_extended_to_the_bits_of_a_longer_one(tmp_path: Path) -> None:
    start(tmp_path / "long", FedFV(fraction_train=0.5), rounds=9)
    start(tmp_path / "run", FedFV(fraction_train=0.5), rounds=5)
    start(tmp_path / "run", FedFV(fraction_train=0.5), rounds=9)
    assert without_seconds(tmp_path / "run" / "clients.csv") == without_seconds(
        tmp_path / "long" / "clients.csv"
    )
    with pytest.raises(FairbloomError, match=r"already has 9 rounds, .* num-rounds = 5"):
        start(tmp_path / "run", FedFV(fraction_train=0.5), rounds=5)


def test_fewer_rounds_end_a_run_but_not_before_its_last_one(tmp_path: Path) -> None:
    start(tmp_path / "short", FedFV(), 3)
    with pytest.raises(StoppedError):
        start(tmp_path / "run", FedFV(), 6, on_round=stop_after(2))
    with pytest.raises(
        FairbloomError,
        match=r"already has 2 rounds.*num-rounds = 1.*another folder \(RunFolder\(path\)\)",
    ):
        start(tmp_path / "run", FedFV(), 1)
    start(tmp_path / "run", FedFV(), 3)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (
        tmp_path / "short/model.safetensors"
    ).read_bytes()
    with pytest.raises(FairbloomError, match="already has 3 rounds"):
        start(tmp_path / "run", FedFV(), 2)


def test_a_run_with_steps_that_decay_cannot_be_extended(tmp_path: Path) -> None:
    start(tmp_path / "run", FedAvgN(decay=0.5), rounds=4)
    with pytest.raises(
        FairbloomError, match="decay over 4 rounds, so it cannot be extended to 8: choose another"
    ):
        start(tmp_path / "run", FedAvgN(decay=0.5), rounds=8)
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("strategy", "given", "words"),
    [
        (FedFV(alpha=0.3), {}, "alpha = 0.1 there and 0.3 here"),
        (FedAvg(), {}, "method = 'FedFV' there and 'FedAvg' here"),
        (FedFV(seed=1), {}, "seed = 0 there and 1 here"),
        (FedFV(server_optimizer="avgm"), {}, "server-optimizer = 'none' there and 'avgm' here"),
        (
            FedFV(),
            {"train_config": ConfigRecord({"lr": 0.1})},
            "train.lr = None there and 0.1 here",
        ),
        (FedFV(training_clients=("site-0",)), {}, "training-clients = '' there and 'site-0' here"),
    ],
)
def test_a_folder_of_another_run_is_refused_with_what_differs(
    tmp_path: Path, strategy: FedFV | FedAvg, given: dict[str, ConfigRecord], words: str
) -> None:
    start(tmp_path / "run", FedFV(), rounds=2)
    with pytest.raises(FairbloomError, match=words):
        start(tmp_path / "run", strategy, rounds=2, **given)


def test_the_error_for_a_missing_score_names_the_replied_metrics(tmp_path: Path) -> None:
    with pytest.raises(
        FairbloomError,
        match=r"reply eval_acc, eval_loss, num-examples, and not 'accuracy'.*RunFolder",
    ):
        start(tmp_path / "run", FedAvg(), score="accuracy")


def test_only_chosen_settings_are_shown(tmp_path: Path) -> None:
    start(tmp_path / "run", FedFV(alpha=0.3, fraction_train=0.5), rounds=2)
    assert fairbloom.load(tmp_path / "run").differing() == {
        "method": "FedFV",
        "alpha": 0.3,
        "fraction-train": 0.5,
        "num-rounds": 2,
    }


@pytest.mark.parametrize(
    "score", ["eval_acc", "roc_auc", "f1_score", "R2", "neg_loss", "eval_loss", "val-rmse"]
)
def test_the_name_of_a_score_says_which_way_is_better(tmp_path: Path, score: str) -> None:
    assert RunFolder(tmp_path, score=score).score == Score(
        score, higher_is_better=score not in ("eval_loss", "val-rmse")
    )


def test_a_score_of_unknown_direction_asks_for_it(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match=r"Score\('harm', higher_is_better=True\)"):
        RunFolder(tmp_path, score=["eval_acc", "harm"])
    assert (
        not RunFolder(tmp_path, score=["eval_acc", "harm"], loss="harm").scores[1].higher_is_better
    )
    assert RunFolder(tmp_path, score=Score("harm", higher_is_better=False)).scores[0].name == "harm"


def test_only_constructor_parameters_are_settings_of_a_run(tmp_path: Path) -> None:
    class Dated(FedFV):
        """A strategy that notes where and when it runs, as Flower's advanced-pytorch does."""

        def __init__(self, *, width: int = 2, **options: Any) -> None:
            super().__init__(**options)
            self.width = width
            self.run_dir = str(os.urandom(4))

    for rounds in (2, 3):
        start(tmp_path / "run", Dated(alpha=0.2), rounds)
    settings = fairbloom.load(tmp_path / "run").settings
    assert {settings["width"], settings["alpha"]} == {2, 0.2}
    assert "run-dir" not in settings
    with pytest.raises(FairbloomError, match="width = 2 there and 3 here"):
        start(tmp_path / "run", Dated(alpha=0.2, width=3), 4)


@pytest.mark.parametrize("name", ["train_config", "evaluate_config"])
def test_keys_of_the_strategy_are_refused_in_a_users_config(tmp_path: Path, name: str) -> None:
    for key, value in {
        "local-steps": 7.5,
        "proximal-mu": 0.1,
        "server-round": 1,
        "full-batch-step": True,
        "measure": "all",
    }.items():
        with pytest.raises(FairbloomError, match=f"{name} has .*{key}"):
            start(tmp_path / name / key, FedAvg(), **{name: ConfigRecord({key: value})})
    start(
        tmp_path / name / "own",
        FedAvg(),
        1,
        **{name: ConfigRecord({"lr": 0.1, "measure": ["loss-before"]})},
    )


# Whether the round in which a hook raises counts: its replies are aggregated before.
HOOKS = {
    "configure_train": False,
    "choose": False,
    "weigh": False,
    "learn": False,
    "aggregate_train": True,
    "configure_evaluate": True,
    "aggregate_evaluate": True,
}


def stopping(hook: str, *, first: bool) -> FairStrategy:
    """Return a strategy with a hook that raises StopRun in round 2, before or after super()."""

    def raising(self: Any, *given: Any, **named: Any) -> Any:
        inner = partial(getattr(FedAvg, hook), self)
        is_before = hook in ("configure_train", "choose", "weigh", "learn", "aggregate_train")
        if self.run_state.finished_rounds + is_before != 2:
            return inner(*given, **named)
        if not first:
            inner(*given, **named)
        raise StopRun("plateau")

    return type("Stopping", (FedAvg,), {hook: raising})()


# Before super(), aggregate_train has not aggregated the replies: see the next test.
CASES = [
    (hook, first)
    for hook in HOOKS
    for first in (True, False)
    if (hook, first) != ("aggregate_train", True)
]


@pytest.mark.parametrize(("hook", "first"), CASES)
def test_a_hook_ends_the_run_as_finished(tmp_path: Path, hook: str, first: bool) -> None:
    result = start(tmp_path / "run", stopping(hook, first=first), 5)
    run = fairbloom.load(tmp_path / "run")
    assert (run.state, run.stopped) == ("finished", "plateau")
    assert run.rounds_done == (2 if HOOKS[hook] else 1)
    rows = table(tmp_path / "run" / "rounds.csv")
    assert bool(rows[-1]["test_eval_acc_of_global_model_mean"]) == (hook != "configure_evaluate")
    start(tmp_path / "run", stopping(hook, first=first), 5)
    assert fairbloom.load(tmp_path / "run").rounds_done == run.rounds_done
    assert result.arrays["w"].numpy().any()


def test_a_step_after_the_stop_is_kept(tmp_path: Path) -> None:
    stopped = start(tmp_path / "run", stopping("aggregate_train", first=False), 5)
    assert stopped.arrays["w"].data == start(tmp_path / "whole", FedAvg(), 2).arrays["w"].data
    (last,) = table(tmp_path / "run" / "rounds.csv")[1:]
    (expected,) = table(tmp_path / "whole" / "rounds.csv")[1:]
    name = "test_eval_acc_of_global_model_mean"
    assert last[name] == expected[name] != ""


def stop(*given: Any) -> Any:
    raise StopRun("plateau")


def seconds(number: int) -> float:
    return stop() if number == 3 else 60.0


class StopsInThird(FedAvg):
    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return stop() if server_round == 3 else super().aggregate_train(server_round, replies)


@pytest.mark.parametrize(
    ("strategy", "given", "done"),
    [
        (FedAvg(train_metrics_aggr_fn=stop), {}, 1),
        (FedAvg(evaluate_metrics_aggr_fn=stop), {}, 1),
        (type("Stopping", (FedAvg,), {"summary": stop})(), {}, 0),
        (type("Stopping", (FedAvg,), {"configure_train": stop})(), {}, 0),
        (StopsInThird(), {}, 2),  # a round without aggregation does not count
        (FedAvg(), {"timeout": seconds}, 2),
    ],
)
def test_a_function_or_hook_of_the_app_ends_the_run_as_finished(
    tmp_path: Path, strategy: FedAvg, given: dict[str, Any], done: int
) -> None:
    start(tmp_path / "run", strategy, 5, **given)
    run = fairbloom.load(tmp_path / "run")
    assert (run.state, run.stopped, run.rounds_done) == ("finished", "plateau", done)
    assert bool(run.final()) == bool(done)


def test_a_hook_inside_a_wrapper_leaves_no_model_without_noise(tmp_path: Path) -> None:
    strategy: Any = DifferentialPrivacyServerSideFixedClipping(
        stopping("aggregate_train", first=False),
        noise_multiplier=0.1,
        clipping_norm=1.0,
        num_sampled_clients=4,
    )
    models = list[bytes]()
    start(
        tmp_path / "run",
        strategy,
        5,
        on_round=lambda finished: models.append(finished.arrays["w"].data),
    )
    assert models[0] == models[1]
    assert fairbloom.load(tmp_path / "run").rounds_done == 2
