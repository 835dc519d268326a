"""The model that each device keeps: the last one that it evaluated, which is the final one after
the run."""

import filecmp
import json
import logging
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from fairbloom.client import app as client_app
from fairbloom.client.guard import evaluated_model
from fairbloom.client.guard.evaluated_model import find_model, keep_model
from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import load_predictor
from fairbloom.protocol.names import CLIENTS_FOLDER, DEPLOYED
from fairbloom.protocol.settings import RunSettings
from fairbloom.rounds.records import record_of
from fairbloom.server.app import main, release_model
from fairbloom.server.run_folder.files import BEST, CLIENTS, CONFIG, MODEL, ROUNDS
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.system.versions import Versions
from fairbloom.tasks import load_task
from fairbloom.tasks.models.weights import digest_weights
from tests.rounds.test_layers import Elsewhere

ARRAYS = {"weight": np.ones(3, np.float32)}


class Devices(InProcessGrid):
    """Clients that are deployed, each with a state folder of its own."""

    def __init__(self, settings: Settings, state: Path | None) -> None:
        super().__init__(client_app.app, settings.run_config(), 3)
        for place, context in enumerate(self.contexts.values()):
            folder = {} if state is None else {"state-dir": str(state / str(place))}
            context.node_config = {"partition-id": place, "limit-order": "run", **folder}


def settings_of(out: Path, **changes: Any) -> Settings:
    plain: dict[str, Any] = {
        "clients": 3,
        "num-rounds": 2,
        "fraction": 1.0,
        "smallest-batch": 5,
        "device": "cpu",
        "out": str(out),
    }
    return Settings.of(plain | changes)


def submit(settings: Settings, grid: InProcessGrid) -> None:
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings.run_config()
    )
    main(grid, context)


def read_kept(state: Path) -> tuple[bytes, int]:
    """Return the arrays that a state folder keeps, as bytes, and their round."""
    folder = find_model(state)
    arrays = MODEL.read(folder)
    return b"".join(arrays[name].tobytes() for name in sorted(arrays)), MODEL.read_about(folder)[
        "round"
    ]


def as_bytes(arrays: Any) -> bytes:
    return b"".join(np.asarray(arrays[name]).tobytes() for name in sorted(arrays))


# What is kept -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Ditto that is over, and the state folders of its three devices, in one folder."""
    folder = tmp_path_factory.mktemp("ended")
    settings = settings_of(folder / "run", method="ditto", **{"average-models": True})
    submit(settings, Devices(settings, folder))
    return folder


@pytest.mark.parametrize("place", range(3))
def test_each_device_keeps_the_final_model_for_its_owner_alone(ended: Path, place: int) -> None:
    expected = as_bytes(MODEL.read(ended / "run"))
    state = ended / str(place)
    assert read_kept(state) == (expected, 2)
    settings = CONFIG.read(state / "model").settings
    assert settings["task"] == "digits"
    assert not {"state-dir", "data-dir", "method"} & settings.keys()
    assert stat.S_IMODE((state / "model").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (state / "model").iterdir())
    assert not list(state.glob("model.*"))


@pytest.mark.parametrize("model", ["last", "personal"])
def test_the_state_folder_predicts_as_the_run_does(ended: Path, model: str) -> None:
    inputs = load_task(CONFIG.read(ended / "run").settings).splits("client-1").test.inputs
    found = load_predictor(ended / "1", model=model)
    beside = "the client's own beside " if model == "personal" else ""
    kept = "the model of round 2 of a trial, not released"
    assert found.describe(2) == f"2 predictions by {beside}{kept}"
    (own,) = (ended / "1").glob("*/client-1")
    assert Versions(own).last(json.dumps(["", "personal"]))
    of_run = load_predictor(ended / "run")
    assert (found.outputs(inputs) == of_run.outputs(inputs)).all() == (model == "last")


def test_the_personal_model_predicts_without_a_global_model(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "run", method="local", **{"num-rounds": 1})
    submit(settings, Devices(settings, tmp_path))
    with pytest.raises(FairbloomError, match="model personal"):
        load_predictor(tmp_path / "0")
    assert load_predictor(tmp_path / "0", model="personal").model == "personal"


def test_a_device_keeps_frozen_parameters_with_its_model(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "run", model="tests.nets:Plain")
    elsewhere = Elsewhere({**settings.run_config(), DEPLOYED: True})

    class Apart(Devices):
        def _answer(self, message: Message) -> Message:
            away = message.metadata.dst_node_id == 3
            return elsewhere(message, super()._answer) if away else super()._answer(message)

    submit(settings, Apart(settings, tmp_path))
    assert {read_kept(tmp_path / str(place)) for place in range(3)} == {
        (as_bytes(MODEL.read(tmp_path / "run")), 2)
    }


def test_clients_without_a_state_folder_keep_nothing(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path / "run", **{"num-rounds": 1, "state-dir": str(tmp_path / "states")}
    )
    submit(settings, Devices(settings, None))
    assert {path.name for path in tmp_path.rglob("*")}.isdisjoint({"model", "model.draft"})


def test_the_last_evaluation_is_as_in_one_process(tmp_path: Path) -> None:
    """No further message changes the bits of a run, its rows or its best model."""
    there = settings_of(tmp_path / "there")
    here = settings_of(tmp_path / "here")
    submit(there, Devices(there, tmp_path))
    submit(here, Devices(here, None))
    files = [file.name for file in (MODEL, BEST, CLIENTS)]
    assert filecmp.cmpfiles(tmp_path / "there", tmp_path / "here", files, shallow=False)[0] == files


# What is released ---------------------------------------------------------------------------------


def test_the_best_model_is_released_with_its_round(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "run")
    submit(settings, Devices(settings, tmp_path))
    best = {name: each + 1.0 for name, each in BEST.read(tmp_path / "run").items()}
    BEST.write(tmp_path / "run", best, {"round": 1})
    for model, arrays, number in (
        ("best", best, 1),
        ("last", MODEL.read(tmp_path / "run"), 2),
    ):
        again = settings_of(tmp_path / "run", release=model)
        submit(again, Devices(again, tmp_path))
        assert read_kept(tmp_path / "0") == (as_bytes(arrays), number)


@pytest.mark.parametrize("changes", [{"method": "local"}, {"release": "best", "test-share": 0.0}])
def test_what_no_run_has_is_not_released(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = settings_of(tmp_path / "run", **{"num-rounds": 1, "release": "last", **changes})
    with pytest.raises(FairbloomError, match="has no such model for all clients"):
        submit(settings, Devices(settings, tmp_path))
    assert not (tmp_path / "0" / "released").exists()


def test_a_release_says_by_name_who_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(tmp_path / "run")
    submit(settings, Devices(settings, tmp_path))
    clients = tmp_path / "clients"
    clients.mkdir()
    for name, content in (("away", ""), ("gone", 'revoked = "2026"')):
        (clients / f"{name}.toml").write_text(content)
    monkeypatch.setenv(CLIENTS_FOLDER, str(clients))
    caplog.set_level(logging.INFO, logger="flwr")
    grid = Devices(settings, tmp_path)
    _, second, third = grid.contexts.values()
    second.node_config["limit-release"] = "ask"
    third.node_config["partition-id"] = 99
    release_model(tmp_path / "run", settings_of(tmp_path / "run", release="last"), grid)
    assert caplog.messages[-5:-1] == [
        "2 has taken it",
        "3 keeps it until its owner takes it (fairbloom client release take)",
        "4 does not take it: partition-id = 99 in the node config: with clients = 3 it must be an"
        " integer from 0 to 2: set clients higher, or give this client a partition that is free",
        "away is away",
    ]
    assert "gone" not in caplog.text


# What goes wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fails", ["write_private", "save_model", "rename", "rename again", "sync_folder"]
)
def test_whenever_a_device_is_killed_one_whole_model_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    task = load_task(settings_of(tmp_path / "run"))

    def keep(number: int) -> None:
        keep_model(
            tmp_path,
            RunSettings.of({"task": "digits", "num-rounds": number}),
            task,
            "client-0",
            {"weight": ARRAYS["weight"] * number},
            number,
            "global",
        )

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    keep(1)
    if fails.startswith("rename"):
        rename = Path.rename
        left = [None] * fails.count("again")
        monkeypatch.setattr(
            Path, "rename", lambda path, to: (left.pop() or rename(path, to)) if left else killed()
        )
    else:
        monkeypatch.setattr(evaluated_model, fails, killed)
    with pytest.raises(KeyboardInterrupt):
        keep(2)
    arrays, number = read_kept(tmp_path)
    assert (
        number
        == CONFIG.read(find_model(tmp_path)).settings["num-rounds"]
        == (2 if fails == "sync_folder" else 1)
    )
    assert arrays == as_bytes({"weight": ARRAYS["weight"] * number})
    monkeypatch.undo()
    keep(3)
    assert read_kept(tmp_path)[1] == 3
    assert not list(tmp_path.glob("model.*"))


def evaluate(client: Context, arrays: Any, **config: Any) -> Message:
    records = {"config": ConfigRecord({"server-round": 7, **config}), "arrays": record_of(arrays)}
    return client_app.app(
        Message(RecordDict(records), dst_node_id=2, message_type=MessageType.EVALUATE), client
    )


def test_what_is_no_model_of_the_run_is_not_kept(ended: Path, subtests: pytest.Subtests) -> None:
    before = read_kept(ended / "0")
    model = MODEL.read(ended / "run")
    client = next(
        iter(Devices(settings_of(ended / "run", method="ditto"), ended).contexts.values())
    )
    for other in (
        {name: array[..., :3] for name, array in model.items()},
        {},
        model | {"more": np.ones(3)},
        {name: array * np.nan for name, array in model.items()},
    ):
        with subtests.test(other=other):
            with suppress(FairbloomError):
                evaluate(client, other)
            assert read_kept(ended / "0") == before


def test_a_disk_that_takes_no_model_changes_no_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, *_: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(evaluated_model, "save_model", refuse)
    settings = settings_of(tmp_path / "run", **{"num-rounds": 1})
    submit(settings, Devices(settings, tmp_path))
    assert len(CLIENTS.read(tmp_path / "run")) == 3
    assert len([line for line in caplog.messages if "No space left on device" in line]) == 3
    assert find_model(tmp_path / "0") == tmp_path / "0"


def test_a_run_names_the_digest_of_its_initial_weights(tmp_path: Path) -> None:
    """Before its first round; a run that continues needs neither the file nor the digest again."""
    plain = settings_of(tmp_path / "plain")
    submit(plain, Devices(plain, None))
    weights = tmp_path / "begin.safetensors"
    weights.write_bytes(MODEL.path_in(tmp_path / "plain").read_bytes())
    begin = {"initial-weights": str(weights)}
    settings = settings_of(tmp_path / "run", **begin)
    with pytest.raises(FairbloomError, match=r"set weights-digest = '[0-9a-f]{64}'"):
        submit(settings, Devices(settings, None))
    begin["weights-digest"] = digest_weights(str(weights))
    settings = settings_of(tmp_path / "run", **begin)
    accepted = Devices(settings, None)
    for context in accepted.contexts.values():
        context.node_config["weights"] = begin["weights-digest"]
    submit(settings, accepted)
    weights.unlink()
    longer = settings_of(tmp_path / "run", **{**begin, "num-rounds": 3})
    again = Devices(longer, None)
    for context in again.contexts.values():
        context.node_config["weights"] = begin["weights-digest"]
    submit(longer, again)
    assert {row["replies_used"] for row in ROUNDS.read(tmp_path / "run")} == {"3"}
