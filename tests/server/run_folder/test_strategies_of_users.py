"""A run folder with strategies that users have changed or wrapped: Flower's wrappers, overridden
hooks and starts."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import Grid, strategy as flowers
from flwr.serverapp.strategy import Result, Strategy
from safetensors.numpy import load_file

import fairbloom
from fairbloom import RunFolder, StopRun
from fairbloom.errors import FairbloomError
from fairbloom.rounds.learning import NothingLearnedError
from fairbloom.rounds.round import Round
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import DRFA, FairStrategy, FedAvg, FedFV, FedMGDA
from tests.simulation.helpers import StoppedError, stop_after, without_seconds

from .test_flower import app

ROUNDS = 5
CLIENTS = 4


def start(
    folder: Path, strategy: Strategy, rounds: int = ROUNDS, client: ClientApp = app, **given: Any
) -> Result:
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    return RunFolder(folder, score="eval_acc", wait=False).start(
        strategy, InProcessGrid(client, {}, CLIENTS), arrays, rounds, **given
    )


def model(folder: Path) -> bytes:
    return load_file(folder / "model.safetensors")["w"].tobytes()


def assert_equal(one: Path, other: Path) -> None:
    for name in ("rounds.csv", "clients.csv", "metrics.csv"):
        assert without_seconds(one / name) == without_seconds(other / name)
    assert model(one) == model(other)


# Wrappers -----------------------------------------------------------------------------------------


def with_mod(mod: Any) -> ClientApp:
    changed = ClientApp()
    changed.query()(lambda message, context: app(message, context))
    changed.evaluate()(lambda message, context: app(message, context))
    changed.train(mods=[mod])(lambda message, context: app(message, context))
    return changed


WRAPPERS: dict[str, tuple[type[Strategy], ClientApp]] = {
    "server fixed": (flowers.DifferentialPrivacyServerSideFixedClipping, app),
    "client fixed": (
        flowers.DifferentialPrivacyClientSideFixedClipping,
        with_mod(fixedclipping_mod),
    ),
    "server adaptive": (flowers.DifferentialPrivacyServerSideAdaptiveClipping, app),
    "client adaptive": (
        flowers.DifferentialPrivacyClientSideAdaptiveClipping,
        with_mod(adaptiveclipping_mod),
    ),
}


def wrap(name: str, strategy: Strategy, noise: float, norm: float) -> Strategy:
    """Return a strategy in one of Flower's wrappers."""
    given: dict[str, Any] = {"noise_multiplier": noise, "num_sampled_clients": CLIENTS}
    if "adaptive" in name:
        given |= {"initial_clipping_norm": norm, "clipped_count_stddev": None if noise else 0.0}
    else:
        given |= {"clipping_norm": norm}
    return WRAPPERS[name][0](strategy, **given)


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_strategy_continues_to_the_same_bits(tmp_path: Path, name: str) -> None:
    """With the norm that it had adapted."""
    client = WRAPPERS[name][1]
    start(tmp_path / "noisy", wrap(name, FedAvg(), 0.2, 0.1), rounds=1, client=client)
    recorded = (tmp_path / "noisy" / "config.toml").read_text()
    assert f'wrapped-in = "{WRAPPERS[name][0].__name__}(' in recorded
    assert "noise_multiplier=" in recorded
    with pytest.raises(FairbloomError, match="wrapped-in = "):
        start(tmp_path / "noisy", wrap(name, FedAvg(), 0.3, 0.1), rounds=2, client=client)
    with pytest.raises(FairbloomError, match="wrapped-in = "):
        start(tmp_path / "noisy", FedAvg(), rounds=2)
    start(tmp_path / "whole", wrap(name, FedFV(fraction_train=1.0), 0.0, 0.3), client=client)
    with pytest.raises(StoppedError):
        start(
            tmp_path / "run", wrap(name, FedFV(), 0.0, 0.3), client=client, on_round=stop_after(2)
        )
    start(tmp_path / "run", wrap(name, FedFV(), 0.0, 0.3), client=client)
    assert_equal(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("method", [FedAvg, FedFV, FedMGDA])
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_that_neither_clips_nor_adds_noise_is_exact(
    tmp_path: Path, name: str, method: type[FedAvg]
) -> None:
    for folder, strategy in (("plain", method()), ("wrapped", wrap(name, method(), 0.0, 1e9))):
        start(
            tmp_path / folder / method.__name__,
            strategy,
            client=WRAPPERS[name][1] if folder == "wrapped" else app,
        )
    found, due = (
        np.frombuffer(model(tmp_path / each / method.__name__), "<f4")
        for each in ("wrapped", "plain")
    )
    np.testing.assert_allclose(found, due, rtol=1e-5)


def test_two_nested_wrappers_are_recorded(tmp_path: Path) -> None:
    start(
        tmp_path / "run",
        wrap("server fixed", wrap("client fixed", FedAvg(), 0.0, 10.0), 0.0, 20.0),
        client=app,
    )
    recorded = fairbloom.load(tmp_path / "run").settings["wrapped-in"]
    assert recorded.index("ServerSide") < recorded.index("ClientSide")


@pytest.mark.parametrize(
    "theirs", [wrap("server fixed", flowers.FedAvg(), 0.0, 1.0), flowers.FedAvg()]
)
def test_a_wrapper_around_flowers_own_strategy_is_refused(tmp_path: Path, theirs: Any) -> None:
    """And so is Flower's own strategy alone."""
    with pytest.raises(FairbloomError, match=r"FedAvg.* take the one of fairbloom\.strategies"):
        start(tmp_path / "run", theirs)
    assert not (tmp_path / "run").exists()


def test_clients_that_reply_no_snapshot_end_a_run_of_drfa(tmp_path: Path) -> None:
    with pytest.raises(NothingLearnedError, match="all since ArrayRecord 'snapshot' is missing"):
        start(tmp_path / "run", DRFA(gamma=0.01))


def failing(rounds: Iterable[int]) -> ClientApp:
    """Return the clients, of which the first one raises an error in these rounds of training."""
    changed = ClientApp()
    changed.query()(lambda message, context: app(message, context))
    changed.evaluate()(lambda message, context: app(message, context))

    @changed.train()
    def train(message: Message, context: Context) -> Message:
        number = int(str(message.content["config"]["server-round"]))
        if number in rounds and context.node_config["partition-id"] == 0:
            raise ValueError("it has no battery")
        return app(message, context)

    return changed


def test_a_round_skipped_by_a_wrapper_is_recorded_with_reasons(tmp_path: Path) -> None:
    """Flower's wrappers pass no replies on where one is an error."""
    seen: list[Round] = []
    start(
        tmp_path / "run",
        wrap("server fixed", FedAvg(), 0.0, 10.0),
        client=failing([2]),
        on_round=seen.append,
    )
    assert [bool(finished.coefficients) for finished in seen] == [True, False, True, True, True]
    assert "it has no battery" in seen[1].refused["site-0"]
    assert "ServerSideFixedClipping has passed no replies on" in seen[1].refused["site-2"]
    np.testing.assert_array_equal(seen[0].arrays["w"].numpy(), seen[1].arrays["w"].numpy())


# Hooks and starts of users ------------------------------------------------------------------------


class Falling(FedFV):
    """Keeps a learning rate in the config that falls with every round."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["lr"] = float(str(config["lr"])) * 0.7
        config["tried"] = [*list(config.get("tried", [])), server_round]  # type: ignore[arg-type,list-item]
        config["token"] = bytes([server_round, 255])
        return super().configure_train(server_round, arrays, config, grid)


class WithLogin(Falling):
    """Does something before and after rounds, as a start that is overridden does; it knows Flower's
    arguments alone."""

    def start(  # type: ignore[override]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
    ) -> Result:
        started.append(num_rounds)
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )


class WithLoop(Falling):
    """Has a loop of its own, as Flower's examples write one."""

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **given: Any
    ) -> Result:
        result = Result()
        for number in range(1, num_rounds + 1):
            asked = self.configure_train(number, initial_arrays, given["train_config"], grid)
            self.aggregate_train(number, grid.send_and_receive(asked))
        return result


started: list[int] = []
CONTINUED: list[type[FairStrategy]] = [Falling, WithLogin]


def central(number: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"sum": float(arrays["w"].numpy().sum()), "number": number})


def changed(folder: Path, strategy: FairStrategy, rounds: int = ROUNDS, **given: Any) -> Result:
    config = ConfigRecord({"lr": 0.8})
    return start(folder, strategy, rounds, train_config=config, evaluate_fn=central, **given)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the configs of all messages that are sent from now on."""
    configs: list[dict[str, Any]] = []
    plain = InProcessGrid.push_messages

    def watched(self: InProcessGrid, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        configs.extend(
            {**message.content["config"]} for message in messages if "config" in message.content
        )  # type: ignore[dict-item]
        return plain(self, messages)

    monkeypatch.setattr(InProcessGrid, "push_messages", watched)
    return configs


def test_a_schedule_and_an_overridden_start_survive_a_stop(
    tmp_path: Path,
    sent: list[dict[str, Any]],
    subtests: pytest.Subtests,
) -> None:
    changed(tmp_path / "whole", Falling(fraction_train=0.5))
    whole = [config for config in sent if "lr" in config]
    for strategy in CONTINUED:
        with subtests.test(strategy=strategy):
            for stopped_after in (1, 4):
                folder = tmp_path / f"{strategy.__name__} {stopped_after}"
                sent.clear()
                with pytest.raises(StoppedError):
                    changed(
                        folder, strategy(fraction_train=0.5), on_round=stop_after(stopped_after)
                    )
                first = len([config for config in sent if "lr" in config])
                changed(folder, strategy(fraction_train=0.5))
                assert_equal(folder, tmp_path / "whole")
                trained = [config for config in sent if "lr" in config]
                assert trained == whole
                assert trained[first]["server-round"] == stopped_after + 1
    assert whole[-1]["lr"] == pytest.approx(0.8 * 0.7**ROUNDS)
    assert whole[-1]["tried"] == [1, 2, 3, 4, 5]


class Warming(FedAvg):
    """Removes a key from the config once it is no longer needed."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round == 2:
            del config["warm"]
        return super().configure_train(server_round, arrays, config, grid)


def test_a_continued_run_keeps_config_changes_by_hooks_only(
    tmp_path: Path, sent: list[dict[str, Any]]
) -> None:
    train_config = {"warm": True, "lr": 0.5}
    with pytest.raises(StoppedError):
        start(
            tmp_path / "run",
            Warming(),
            train_config=ConfigRecord({**train_config}),
            on_round=stop_after(3),
        )
    sent.clear()
    given = {
        "train_config": ConfigRecord({**train_config}),
        "evaluate_config": ConfigRecord({"batch": 64}),
    }
    start(tmp_path / "run", Warming(), **given)
    assert {config.get("batch") for config in sent} == {None, 64}
    assert not any("warm" in config for config in sent)
    assert {config["lr"] for config in sent if "lr" in config} == {0.5}


def test_a_loop_of_ones_own_is_refused_before_it_trains(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Also if it asks no client; the strategy can be started again without a folder."""
    changed(tmp_path / "run", Falling(), rounds=2)
    strategy = WithLoop()
    for folder, rounds in ((tmp_path / "new", 2), (tmp_path / "none", 0)):
        with subtests.test(folder=folder, rounds=rounds):
            with pytest.raises(
                FairbloomError, match=r"WithLoop\.start is a loop of its own.*super\(\)\.start"
            ):
                changed(folder, strategy, rounds=rounds)
            assert not fairbloom.load(folder).rounds_done


# Stopping early -----------------------------------------------------------------------------------


def stop_in_round(number: int) -> Callable[[Round], None]:
    def on_round(finished: Round) -> None:
        if finished.number == number:
            raise StopRun(f"enough after {finished.server_metrics['number']}")

    return on_round


def evaluate_and_stop(number: int, arrays: ArrayRecord) -> MetricRecord:
    if number == 3:
        raise StopRun("no gain", {"sum": 1.5})
    return central(number, arrays)


def test_a_run_stopped_by_on_round_stays_finished(tmp_path: Path) -> None:
    strategy = WithLogin
    seen: list[Round] = []
    changed(tmp_path / "whole", strategy(), on_round=seen.append)
    result = changed(tmp_path / "run", strategy(), on_round=stop_in_round(3))
    run = fairbloom.load(tmp_path / "run")
    assert (run.state, run.rounds_done, run.num_rounds) == ("finished", 3, ROUNDS)
    assert run.stopped == "enough after 3"
    assert (
        model(tmp_path / "run")
        == result.arrays["w"].numpy().tobytes()
        == seen[2].arrays["w"].numpy().tobytes()
    )
    assert (tmp_path / "run" / "model-best.safetensors").exists()
    changed(tmp_path / "run", strategy(), on_round=seen.append)  # nothing to run
    assert len(seen) == ROUNDS
    changed(tmp_path / "run", strategy(), rounds=ROUNDS + 1)
    changed(tmp_path / "longer", strategy(), rounds=ROUNDS + 1)
    assert_equal(tmp_path / "run", tmp_path / "longer")
    assert not fairbloom.load(tmp_path / "run").stopped


def test_evaluate_fn_stops_a_run_after_the_evaluated_round(tmp_path: Path) -> None:
    start(
        tmp_path / "run",
        WithLogin(),
        train_config=ConfigRecord({"lr": 0.8}),
        evaluate_fn=evaluate_and_stop,
    )
    run = fairbloom.load(tmp_path / "run")
    assert (run.state, run.rounds_done, run.stopped) == ("finished", 3, "no gain")
    server = run.metrics[(run.metrics["phase"] == "server") & (run.metrics["metric"] == "sum")]
    assert list(server["value"])[-1] == 1.5


def test_a_run_stopped_between_evaluations_shows_its_last_one(tmp_path: Path) -> None:
    start(
        tmp_path / "run", FedAvg(evaluate_every=2), evaluate_fn=central, on_round=stop_in_round(3)
    )
    run = fairbloom.load(tmp_path / "run")
    assert len(run.final()) == CLIENTS
    assert run.summary["state"] == "finished"


def test_without_a_folder_a_run_stops_as_well(tmp_path: Path) -> None:
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    result = FedAvg().start(
        InProcessGrid(app, {}, CLIENTS), arrays, 5, evaluate_fn=central, on_round=stop_in_round(2)
    )
    assert sorted(result.train_metrics_clientapp) == [1, 2]
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert FedAvg().start(
        InProcessGrid(app, {}, CLIENTS),
        arrays,
        5,
        evaluate_fn=lambda *_: (_ for _ in ()).throw(StopRun("good enough")),
    ).arrays["w"].numpy().tolist() == [0.0, 0.0, 0.0]
