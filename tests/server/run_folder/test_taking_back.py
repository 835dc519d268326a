"""A run that is taken back to an earlier round: what can be reached, and that nothing is lost or half written."""

import math
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from fairbloom.protocol.settings import SettingsError
from fairbloom.rounds.loop import NothingLearnedError
from fairbloom.rounds.options import Options
from fairbloom.server.app import choose_run_folder, federate
from fairbloom.server.checkpoint import Merit, list_checkpoints, list_reachable, select_kept
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import CONFIG, is_finished
from fairbloom.server.run_folder.flower import RunFolder
from fairbloom.server.run_folder.taking_back import TakeBack
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.loop import LoopClients
from fairbloom.simulation.run import simulate
from fairbloom.strategies import FedAvg
from tests.simulation.helpers import Outcome, checkpoints_every, drafts, run, small, table

from ..test_checkpoint import watched
from . import test_flower
from .test_recorder import record, records, settings

ROUNDS = 8
OTHERS = "client-0,client-1,client-2,client-3"
PLAIN: dict[str, Any] = {"num_rounds": ROUNDS, "method": "fedfv", "fraction": 0.6, "engine": "loop"}
"""FedFV remembers old updates; of five clients three train in a round."""


@pytest.fixture(autouse=True)
def every() -> Iterator[None]:
    """Let each round have a checkpoint."""
    with checkpoints_every(1):
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run, of which tests change copies only."""
    with checkpoints_every(1):
        return run(tmp_path_factory.mktemp("finished") / "run", **PLAIN)


def copied(folder: Path, to: Path) -> Path:
    return shutil.copytree(folder, to, symlinks=True)


def kept(folder: Path) -> list[int]:
    return sorted(list_reachable(folder / "checkpoint"))


def config_in(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "config.toml").read_text())


class EndedError(Exception):
    """A run is cut off here."""


def run_up_to(folder: Path, last: int, **changes: Any) -> Path:
    def end(recorded: Any) -> None:
        if recorded.number == last:
            raise EndedError

    with pytest.raises(EndedError):
        simulate(small(folder, **changes), end)
    return folder


def with_others_from(number: int, folder: Path, **changes: Any) -> Path:
    """Return a run in which others train from the round after `number`, by hand: nothing was taken back."""
    if number:
        run_up_to(folder, number, **(PLAIN | changes))
        there = config_in(folder) | {"training-clients": OTHERS}
        (folder / "config.toml").write_text(tomli_w.dumps(there))
    return run(folder, **PLAIN | changes, training_clients=OTHERS)


# What comes of it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 4, 6, 7, 8])
def test_a_run_that_is_taken_back_is_the_run_that_had_those_settings_from_there(
    finished: Path, tmp_path: Path, number: int
) -> None:
    assert number == 0 or number in kept(finished)
    folder = copied(finished, tmp_path / "run")
    run(folder, **PLAIN, training_clients=OTHERS, from_round=number)
    expected = with_others_from(number, tmp_path / "expected")
    assert not Outcome.of(folder).differences(Outcome.of(expected))
    assert kept(folder) == kept(expected)
    assert not drafts(folder)
    if number < ROUNDS:
        assert Outcome.of(folder).differences(Outcome.of(finished))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fedavg", "average_models": True},
        {"method": "fedfv", "server_optimizer": "adam", "server_optimizer_lr": 0.05},
        {"method": "drfa"},
        {"validation_share": 0.3},
        {"evaluate_every": 3},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_memory_averages_and_best_models_are_those_of_that_round(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = run(tmp_path / "run", **PLAIN | changes)
    (earliest, *_) = kept(folder)
    run(folder, **PLAIN | changes, training_clients=OTHERS, from_round=earliest)
    expected = with_others_from(earliest, tmp_path / "expected", **changes)
    assert not Outcome.of(folder).differences(Outcome.of(expected))


def test_the_best_model_is_the_one_of_before_although_a_later_one_was_better(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    folder.resume()
    for number, accuracy in enumerate([0.7, 0.3, 0.2, 0.4, 0.8, 0.9, 0.95, 0.96], 1):
        evaluations = {name: {"num-examples": 2, "accuracy": accuracy, "loss": 0.5} for name in "abc"}
        record(folder, number, 1.0, evaluations=evaluations)
        if number == 4:
            best = (tmp_path / "model-best.safetensors").read_bytes()
    assert 4 in kept(tmp_path)
    assert 1 not in kept(tmp_path)
    older = copied(tmp_path, tmp_path.with_name("older"))
    records(tmp_path, settings(), back=TakeBack(4))
    assert (tmp_path / "model-best.safetensors").read_bytes() == best
    (older / "checkpoint" / "earlier" / "best-4.safetensors").unlink()  # as in an incomplete copy
    records(older, settings(), back=TakeBack(4)).resume()
    assert not (older / "model-best.safetensors").exists()


def test_a_run_that_is_taken_back_to_before_its_first_round_has_no_best_model(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    folder.resume()
    record(folder, 1)
    assert records(tmp_path, settings(), back=TakeBack(0)).resume() is None
    assert not (tmp_path / "model-best.safetensors").exists()
    assert kept(tmp_path) == []


def test_the_folder_says_that_it_was_taken_back_and_what_changed(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path / "run")
    run(folder, **PLAIN, training_clients=OTHERS, loss_limit=50.0, from_round=4)
    run(folder, **PLAIN, training_clients=OTHERS, loss_limit=60.0, from_round=6)
    config = config_in(folder)
    assert (config["training-clients"], config["loss-limit"], config["from-round"]) == (OTHERS, 60.0, -1)
    assert [(entry["to"], entry["after"], entry["before"]) for entry in CONFIG.read(folder).taken_back] == [
        (4, ROUNDS, {"training-clients": "", "loss-limit": 1000.0}),
        (6, ROUNDS, {"loss-limit": 50.0}),
    ]


def test_the_same_command_without_the_round_continues_what_was_taken_back(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path / "run")
    run_up_to(folder, 6, **PLAIN, training_clients=OTHERS, from_round=4)
    rounds: list[Any] = []
    simulate(small(folder, **PLAIN, training_clients=OTHERS), rounds.append)
    assert [recorded.number for recorded in rounds] == [7, 8]
    assert not Outcome.of(folder).differences(Outcome.of(with_others_from(4, tmp_path / "expected")))
    run_up_to(folder, 7, **PLAIN, training_clients=OTHERS, from_round=6)
    assert len(CONFIG.read(folder).taken_back) == 2


def test_a_run_is_taken_back_and_extended_at_once(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path / "run")
    run(folder, **PLAIN | {"num_rounds": 10}, from_round=4)
    assert not Outcome.of(folder).differences(Outcome.of(run(tmp_path / "whole", **PLAIN | {"num_rounds": 10})))


# Killed while it is taken back --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_as_the_old_run_or_as_the_new_one(finished: Path, tmp_path: Path) -> None:
    """The folder is copied before each change of a file's name, as a killed process would leave it."""
    folder, looks = copied(finished, tmp_path / "run"), list[Path]()

    def look() -> None:
        looks.append(copied(folder, tmp_path / f"look-{len(looks)}"))

    with watched(folder, look):
        records(folder, small(folder, **PLAIN, training_clients=OTHERS, score="accuracy"), back=TakeBack(4))
    assert len(looks) >= 8
    old, new = Outcome.of(finished), Outcome.of(with_others_from(4, tmp_path / "expected"))
    begun = [bool(CONFIG.read(each).taken_back) for each in looks]
    assert begun == sorted(begun)
    assert {*begun} == {False, True}
    for each, is_begun in zip(looks, begun, strict=True):
        again = copied(each, each.with_name(f"{each.name}-again"))
        assert not is_finished(each) or not is_begun
        run(each, **PLAIN, **({"training_clients": OTHERS} if is_begun else {}))
        assert not Outcome.of(each).differences(new if is_begun else old)
        run(again, **PLAIN, training_clients=OTHERS, from_round=4)
        assert not Outcome.of(again).differences(new)


# For whom -----------------------------------------------------------------------------------------------------------


def test_a_process_that_takes_the_place_of_a_lost_one_does_not_take_the_run_back_again(
    finished: Path, tmp_path: Path
) -> None:
    folder, seen = copied(finished, tmp_path / "run"), list[int]()
    chosen = small(folder, **PLAIN, training_clients=OTHERS, from_round=4)
    config = chosen.run_config()

    def process(submission: str, last: int) -> None:
        def end(recorded: Any) -> None:
            seen.append(recorded.number)
            if recorded.number == last:
                raise EndedError

        federate(chosen, lambda method: LoopClients(method, config), end, submission=submission)

    for submission, last in (("17", 6), ("17", 7), ("18", 5)):
        with pytest.raises(EndedError):
            process(submission, last)
    process("18", 0)
    process("18", 0)
    assert seen == [5, 6, 7, 5, 6, 7, 8]
    assert [entry["submission"] for entry in CONFIG.read(folder).taken_back] == ["17", "18"]
    assert not Outcome.of(folder).differences(Outcome.of(with_others_from(4, tmp_path / "expected")))


# What is refused ----------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_round_that_cannot_be_reached_is_refused_with_those_that_can(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path / "run")
    before = contents(folder)
    with pytest.raises(
        RunFolderError, match=r"taken back to round 9: rounds 0, .* 7 and 8 can be reached, as by --from-round (\d)"
    ) as refusal:
        run(folder, **PLAIN, training_clients=OTHERS, from_round=9)
    assert contents(folder) == before
    run(folder, **PLAIN, training_clients=OTHERS, from_round=int(str(refusal.value)[-1]))


def test_a_damaged_checkpoint_or_table_is_refused_and_nothing_is_changed(finished: Path, tmp_path: Path) -> None:
    for number, name in enumerate(["checkpoint/7.safetensors", "clients.csv"]):
        folder = copied(finished, tmp_path / f"run-{number}")
        (folder / name).write_text("precious")
        before = contents(folder)
        with pytest.raises(RunFolderError, match=name):
            run(folder, **PLAIN, from_round=7)
        assert contents(folder) == before


def test_a_run_whose_last_two_checkpoints_are_damaged_goes_on_from_an_earlier_one(
    finished: Path, tmp_path: Path
) -> None:
    folder = copied(finished, tmp_path / "run")
    (folder / "model.safetensors").unlink()
    for path in list_checkpoints(folder / "checkpoint"):
        path.write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"take it back to one of rounds .* and \d by --from-round"):
        run(folder, **PLAIN)
    run(folder, **PLAIN, from_round=4)
    assert not Outcome.of(folder).differences(Outcome.of(finished))


def test_other_settings_may_not_change_with_it(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"other settings \(learning-rate = 0.1 there and 0.2 here\)"):
        run(folder, **PLAIN, learning_rate=0.2, from_round=4)
    with pytest.raises(RunFolderError, match=r"training-clients = .*or take the run back .* \(--from-round\)"):
        run(folder, **PLAIN, training_clients=OTHERS)


def test_a_folder_without_a_run_is_refused_and_the_likely_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default the folder's name is made of the settings, those of the clients that train among them."""
    monkeypatch.chdir(tmp_path)
    there = choose_run_folder(small("", **PLAIN))
    run(there, **PLAIN)
    with pytest.raises(
        RunFolderError, match=r"no run that could be taken back to round 4: .* say \(--out\)"
    ) as refusal:
        simulate(small("", **PLAIN, training_clients=OTHERS, from_round=4))
    assert str(there) in str(refusal.value)


@pytest.mark.parametrize("method", ["ditto", "scaffold"])
def test_what_clients_keep_reaches_back_over_the_last_two_rounds(tmp_path: Path, method: str) -> None:
    personal = PLAIN | {"method": method}
    folder = run(tmp_path / "run", **personal)
    assert kept(folder) == [7, 8]
    whole = Outcome.of(folder)
    with pytest.raises(RunFolderError, match=r"rounds 0, 7 and 8 can be reached"):
        run(folder, **personal, from_round=6)
    run(folder, **personal, from_round=7)
    assert not Outcome.of(folder).differences(whole)
    with pytest.raises(RunFolderError, match=r"with another training-clients: .*.* --from-round 0"):
        run(folder, **personal, training_clients=OTHERS, from_round=7)
    run(folder, **personal, training_clients=OTHERS, from_round=0)
    assert not Outcome.of(folder).differences(Outcome.of(run(tmp_path / "b", **personal, training_clients=OTHERS)))


def test_a_comparison_takes_no_run_back(tmp_path: Path) -> None:
    from fairbloom.experiments.api import compare

    with pytest.raises(SettingsError, match=r"from-round = 2: .* fairbloom run --from-round"):
        compare(out=tmp_path, settings={"from-round": 2})


# Which rounds -------------------------------------------------------------------------------------------------------


def test_of_earlier_rounds_the_best_are_kept_and_some_at_growing_distance() -> None:
    merits: dict[int, Merit] = {}
    for number in range(1, 71):
        merits = {each: merits[each] for each in select_kept(merits)}
        merits[number] = Merit.of(number, number - 1, {20: 0.9, 23: 0.8}.get(number, 0.1))
    assert select_kept(merits) == {20, 23, 32, 64}


def test_without_scores_rounds_at_growing_distance_are_kept() -> None:
    merits: dict[int, Merit] = {}
    for before, number in ((each, each + 3) for each in range(0, 90, 3)):
        merits = {each: merits[each] for each in select_kept(merits)} | {number: Merit.of(number, before, None)}
        if number > 24:
            assert min(merits) <= 0.75 * number
    assert len(select_kept(merits)) == 2


def test_a_folder_keeps_at_most_six_checkpoints(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    folder.resume()
    for number in range(1, 40):
        record(folder, number, 1.0)
        assert len(kept(tmp_path)) <= 6
        assert len([*(tmp_path / "checkpoint" / "earlier").glob("best-*")]) <= 6
    assert [int(path.stem) for path in list_checkpoints(tmp_path / "checkpoint")] == [39, 38]


def test_what_is_kept_survives_a_resume(tmp_path: Path) -> None:
    folder = records(tmp_path, settings())
    for number in range(1, 12):
        folder = records(tmp_path, settings())
        folder.resume()
        record(folder, number, 1.0)
    assert {8, 9, 10, 11} <= {*kept(tmp_path)}
    other = records(tmp_path / "other", settings())
    other.resume()
    for number in range(1, 12):
        record(other, number, 1.0)
    assert kept(tmp_path / "other") == kept(tmp_path)


# A poisoned run -----------------------------------------------------------------------------------------------------

NO_LIMIT: Any = {"update_limit": math.inf} if "update_limit" in Options.__optional_keys__ else {}
SITES = [f"site-{number}" for number in range(4)]


def poisoning(poisoned: int) -> ClientApp:
    """Return an app of which one client replies 3e38 once; nobody can train from a model that it has reached."""
    app = ClientApp()

    def train(message: Message, context: Context) -> Message:
        received, reply = message.content["arrays"]["w"].numpy(), test_flower.train(message, context)
        if np.abs(received).max() > 1e30:  # where gradients overflow
            reply.content["arrays"]["w"] = Array(np.full(3, np.nan, np.float32))
        elif name_of(context) == SITES[3] and message.content["config"]["server-round"] == poisoned:
            reply.content["arrays"]["w"] = Array(np.full(3, 3e38, np.float32))
        return reply

    app.train()(train)
    app.evaluate()(test_flower.evaluate)
    app.query()(test_flower.query)
    return app


def name_of(context: Context) -> str:
    return SITES[int(str(context.node_config["partition-id"]))]


@pytest.mark.parametrize("poisoned", [1, 3])
def test_the_error_of_a_poisoned_run_names_the_way_back_and_that_mends_it(tmp_path: Path, poisoned: int) -> None:
    """The same call fails for ever; from the round that its error names, without the client, the run learns."""
    initial = ArrayRecord({"w": Array(np.zeros(3, np.float32))})

    def begin(app: ClientApp, strategy: FedAvg, to: str = "run", **back: int) -> Result:
        folder = RunFolder(tmp_path / to, score=test_flower.SCORE, wait=False, **back)
        return folder.start(strategy, InProcessGrid(app, {}, len(SITES)), initial, ROUNDS)

    hostile = poisoning(poisoned)
    for _ in range(2):
        with pytest.raises(NothingLearnedError, match=r"take the run back .* training-clients") as refusal:
            begin(hostile, FedAvg(**NO_LIMIT))
    named = re.search(r"changed last in round (\d+), .* --from-round (\d+)", str(refusal.value))
    assert named is not None
    assert (int(named[1]), int(named[2])) == (poisoned, poisoned - 1)
    result = begin(hostile, FedAvg(**NO_LIMIT, training_clients=SITES[:3]), from_round=poisoned - 1)
    assert np.isfinite(result.arrays["w"].numpy()).all()
    rows = [row for row in table(tmp_path / "run" / "clients.csv") if row["participated"] == "1"]
    assert {row["client"] for row in rows if int(row["round"]) < poisoned} <= {*SITES}
    assert {row["client"] for row in rows if int(row["round"]) >= poisoned} == {*SITES[:3]}
    if poisoned == 1:
        begin(test_flower.app, FedAvg(**NO_LIMIT, training_clients=SITES[:3]), "honest")
        one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "honest"))
        assert one == other


def test_a_run_whose_clients_lack_something_from_the_first_has_nothing_to_go_back_to(tmp_path: Path) -> None:
    with pytest.raises(NothingLearnedError) as refusal:
        run(tmp_path / "run", **PLAIN, max_growth=1.0, enrolled_sizes=" ".join(f"client-{i}=1" for i in range(5)))
    assert "--from-round" not in str(refusal.value)
