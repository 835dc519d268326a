"""What deployed clients are given when a run is over: the final model, whoever was away, whatever they answer."""

import logging
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.client import app as client_app
from fairbloom.client import kept
from fairbloom.client.kept import MAX_RUNS, About, find_kept, forget_oldest, keep_model
from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import load_predictor
from fairbloom.protocol.names import CLIENT, DEPLOYED, KEPT, NAME
from fairbloom.rounds.records import record_of
from fairbloom.server.app import main
from fairbloom.server.run_folder.files import CONFIG, DELIVERED, MODEL, read_delivered
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.system.sealed import load_model
from tests.rounds.test_frozen import Elsewhere

CLIENTS = ("client-0", "client-1", "client-2")


class Devices(InProcessGrid):
    """Clients that are deployed, each with a state folder of its own; only those of `there` are online.

    Attributes
    ----------
    given
        The clients that were sent a final model, in order.
    """

    def __init__(
        self,
        settings: Settings,
        state: Path | None,
        there: Iterable[int] = range(3),
        app: ClientApp = client_app.app,
    ) -> None:
        super().__init__(app, settings.run_config(), 3)
        self.there = tuple(there)
        self.given: list[str] = []
        for place, context in enumerate(self.contexts.values()):
            folder = {} if state is None else {"state-dir": str(state / str(place))}
            context.node_config = {"partition-id": place, **folder}
            context.run_config = {**context.run_config, "state-dir": ""}

    def get_node_ids(self) -> list[int]:
        return [node for place, node in enumerate(self.contexts) if place in self.there]

    def _answer(self, message: Message) -> Message:
        content = message.content
        if message.metadata.message_type == MessageType.QUERY and content.array_records:
            self.given.append(CLIENTS[message.metadata.dst_node_id - 2])
        return super()._answer(message)


def settings_of(out: Path, **changes: Any) -> Settings:
    plain: dict[str, Any] = {"clients": 3, "num-rounds": 2, "fraction": 1.0, "device": "cpu", "out": str(out)}
    return Settings.of(plain | changes)


def submit(settings: Settings, grid: InProcessGrid) -> None:
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings.run_config())
    main(grid, context)


def kept_folder(state: Path, place: int) -> Path:
    (found,) = (state / str(place)).glob(f"*/{CLIENTS[place]}")
    return found


def asking(client: Context, about: dict[str, Any], arrays: Any = None) -> dict[str, Any]:
    """Return what a client says to a question about a final model."""
    records = {"config": ConfigRecord({"server-round": 2, **about})} | ({} if arrays is None else {"arrays": arrays})
    message = Message(RecordDict(records), dst_node_id=2, message_type=MessageType.QUERY)
    return dict(client_app.app(message, client).content.config_records[CLIENT])


# What is kept -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Ditto that is over, and the state folders of its three devices, in one folder."""
    folder = tmp_path_factory.mktemp("delivered")
    settings = settings_of(folder / "run", method="ditto")
    submit(settings, Devices(settings, folder))
    return folder


def test_each_client_keeps_the_final_model_beside_its_personal_ones_for_its_owner_alone(delivered: Path) -> None:
    expected = MODEL.read(delivered / "run")
    for place in range(3):
        folder = kept_folder(delivered, place)
        found, about = load_model(folder / "model.safetensors")
        assert about == {
            "run": "run",
            "round": 2,
            "checksum": MODEL.read_checksum(delivered / "run"),
            "serves": "global",
        }
        assert found.keys() == expected.keys()
        assert all(found[name].tobytes() == array.tobytes() for name, array in expected.items())
        assert (folder / "2.safetensors").exists()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for name in ("model.safetensors", "config.toml"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_the_settings_that_are_kept_name_none_of_the_devices_places(delivered: Path) -> None:
    text = (kept_folder(delivered, 0) / "config.toml").read_text()
    assert 'task = "digits"' in text
    assert "state-dir" not in text
    assert "data-dir" not in text


def test_the_run_folder_notes_who_keeps_the_model(delivered: Path) -> None:
    noted = DELIVERED.read(delivered / "run")
    assert noted.keeping == CLIENTS
    assert (noted.round, noted.model) == (2, MODEL.read_checksum(delivered / "run"))


def test_with_average_models_the_mean_is_kept(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "run", **{"average-models": True})
    submit(settings, Devices(settings, tmp_path))
    found, _ = load_model(kept_folder(tmp_path, 1) / "model.safetensors")
    for name, array in MODEL.read(tmp_path / "run").items():
        np.testing.assert_array_equal(found[name], array)


def test_of_a_run_without_a_global_model_the_personal_one_predicts(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "run", method="local")
    submit(settings, Devices(settings, tmp_path))
    folder = kept_folder(tmp_path, 0)
    with pytest.raises(FairbloomError, match="trains no global model: take model personal"):
        load_predictor(folder)
    assert load_predictor(folder, model="personal").model == "personal"


def test_a_run_that_is_extended_replaces_the_model_and_what_was_noted(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "run")
    submit(settings, Devices(settings, tmp_path))
    longer = settings_of(tmp_path / "run", **{"num-rounds": 3})
    submit(longer, Devices(longer, tmp_path))
    about = find_kept(kept_folder(tmp_path, 0))
    assert about is not None
    assert (about.round, about.checksum) == (3, MODEL.read_checksum(tmp_path / "run"))
    assert DELIVERED.read(tmp_path / "run").round == 3


def test_two_runs_do_not_mix(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        settings = settings_of(tmp_path / name, seed=seed)
        submit(settings, Devices(settings, tmp_path))
    runs = {about.run: about.checksum for path in (tmp_path / "0").iterdir() if (about := find_kept(path / CLIENTS[0]))}
    assert runs == {name: MODEL.read_checksum(tmp_path / name) for name in "ab"}


def test_the_models_of_the_last_runs_are_kept_and_personal_models_stay(tmp_path: Path) -> None:
    arrays = {"weight": np.ones(3, np.float32)}
    for number in range(MAX_RUNS + 2):
        folder = tmp_path / f"run-{number}" / "site-a"
        keep_model(folder, {"task": "csv"}, arrays, About(f"run-{number}", 1, "x"))
        forget_oldest(tmp_path, "site-a")
        (folder / "1.safetensors").write_bytes(b"personal")
    kept_runs = {path.parent.parent.name for path in tmp_path.glob("*/site-a/model.safetensors")}
    assert kept_runs == {f"run-{number}" for number in range(2, MAX_RUNS + 2)}
    assert len(list(tmp_path.glob("*/site-a/1.safetensors"))) == MAX_RUNS + 2


# Who was away, and what was interrupted -----------------------------------------------------------------------------


def test_who_was_offline_is_given_the_model_when_the_finished_run_is_submitted_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="flwr")
    settings = settings_of(tmp_path / "run")
    submit(settings, Devices(settings, tmp_path))
    (kept_folder(tmp_path, 2) / "model.safetensors").unlink()
    DELIVERED.write(tmp_path / "run", DELIVERED.absent)
    first = Devices(settings, tmp_path, there=(0, 1))
    submit(settings, first)
    assert first.given == []  # they have it
    assert read_delivered(tmp_path / "run").keeping == CLIENTS[:2]
    assert "client-2; once they are, the same command gives it to them" in caplog.text
    second = Devices(settings, tmp_path)
    submit(settings, second)
    assert second.given == [CLIENTS[2]]
    assert read_delivered(tmp_path / "run").keeping == CLIENTS
    assert "is finished; nothing to run" in caplog.text


def test_who_comes_after_the_run_is_not_given_its_model(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "run", patience=0.0, **{"min-clients": 2})
    submit(settings, Devices(settings, tmp_path, there=(0, 1)))
    grid = Devices(settings, tmp_path)
    submit(settings, grid)
    assert grid.given == []
    assert read_delivered(tmp_path / "run").keeping == CLIENTS[:2]
    assert not (tmp_path / "2").exists()


def test_a_model_that_is_damaged_on_a_device_is_given_again(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "run")
    submit(settings, Devices(settings, tmp_path))
    file = kept_folder(tmp_path, 1) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    grid = Devices(settings, tmp_path)
    submit(settings, grid)
    assert grid.given == [CLIENTS[1]]
    assert find_kept(file.parent) is not None


class Falling(Devices):
    """Its server is lost once a client has been given the model, before it knows."""

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if self.given:
            raise KeyboardInterrupt
        return reply


def test_a_delivery_that_was_interrupted_goes_on_with_the_others(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        submit(settings, Falling(settings, tmp_path))
    assert read_delivered(tmp_path / "run").keeping == ()
    grid = Devices(settings, tmp_path)
    submit(settings, grid)
    assert grid.given == list(CLIENTS[1:])
    assert read_delivered(tmp_path / "run").keeping == CLIENTS


@pytest.mark.parametrize("name", ["model.safetensors", "config.toml"])
def test_a_write_that_fails_leaves_the_old_model_or_none_and_never_a_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    old, new = ({"weight": np.full(3, value, np.float32)} for value in (1.0, 2.0))
    keep_model(tmp_path / "r" / "site", {"task": "csv", "schema": "old\n"}, old, About("r", 1, "old"))

    def refuse(path: Path, *_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept, "save_model" if name == "model.safetensors" else "write_private", refuse)
    with pytest.raises(OSError, match="No space"):
        keep_model(tmp_path / "r" / "site", {"task": "csv", "schema": "new\n"}, new, About("r", 2, "new"))
    assert find_kept(tmp_path / "r" / "site") is None
    monkeypatch.undo()
    keep_model(tmp_path / "r" / "site", {"task": "csv", "schema": "new\n"}, new, About("r", 2, "new"))
    assert find_kept(tmp_path / "r" / "site") == About("r", 2, "new")
    assert CONFIG.read(tmp_path / "r" / "site").settings["schema"] == "new\n"


# Clients that keep nothing ------------------------------------------------------------------------------------------


def test_clients_without_a_state_dir_keep_nothing_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(tmp_path / "run")
    grid = Devices(settings, None)
    submit(settings, grid)
    assert grid.given == []
    assert set(read_delivered(tmp_path / "run").clients.values()) == {"it has no state-dir, so it keeps no models"}
    said = [each for each in caplog.messages if "client-1" in each and "the final model is not kept" in each]
    where = "client-0, client-1, client-2: the final model is not kept: it has no state-dir, so it keeps no models"
    assert said == [where]


def older(answer: Callable[[], RecordDict]) -> ClientApp:
    """Return our app as it was before: to what it does not know it gives another answer."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        if "keep" in message.content.config_records.get("config", {}):
            return Message(answer(), reply_to=message)
        return client_app.query(message, context)

    app.train()(client_app.train)
    app.evaluate()(client_app.evaluate)
    return app


def says(**about: Any) -> RecordDict:
    return RecordDict({CLIENT: ConfigRecord(about)})


def fail() -> RecordDict:
    raise RuntimeError("what is this?")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: says(**{NAME: "client-1", "num-examples": 9}), "its app does not know of kept models"),
        (RecordDict, "its app does not know of kept models"),
        (lambda: says(**{KEPT: 7}), "its app does not know of kept models"),
        (lambda: says(**{KEPT: "another"}), "it does not keep this model"),
        (lambda: says(**{KEPT: "", "keeps-none": "no\x1b[2J " + "x" * 9999}), "no\ufffd[2J xxx"),
        (fail, "what is this?"),
    ],
    ids=["a name", "nothing", "a number", "another checksum", "a flood", "an error"],
)
def test_an_older_client_or_an_absurd_one_is_noted_and_breaks_nothing(
    tmp_path: Path, answer: Callable[[], RecordDict], words: str
) -> None:
    settings = settings_of(tmp_path / "run", **{"num-rounds": 1})
    submit(settings, Devices(settings, tmp_path, app=older(answer)))
    noted = read_delivered(tmp_path / "run")
    assert noted.keeping == ()
    assert all(words in reason and len(reason) < 3000 for reason in noted.clients.values())
    assert len(noted.clients) == 3


def test_a_client_whose_disk_takes_nothing_says_so_and_the_run_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gets to know the reason, and no place on the device."""

    def refuse(path: Path, *_: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(kept, "save_model", refuse)
    settings = settings_of(tmp_path / "run", **{"num-rounds": 1})
    submit(settings, Devices(settings, tmp_path / "devices"))
    noted = read_delivered(tmp_path / "run")
    assert set(noted.clients) == set(CLIENTS)
    for reason in noted.clients.values():
        assert "the final model cannot be written to its state-dir: No space left on device" in reason
        assert "devices" not in reason
    monkeypatch.undo()
    submit(settings, Devices(settings, tmp_path / "devices"))
    assert read_delivered(tmp_path / "run").keeping == CLIENTS


def test_a_run_is_over_whatever_becomes_of_the_delivery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = settings_of(tmp_path / "run", **{"num-rounds": 1})
    submit(settings, Devices(settings, tmp_path))
    (tmp_path / "run" / "delivered.json").write_text("{")
    submit(settings, Devices(settings, tmp_path))
    assert "the final model is not delivered: " in caplog.text
    assert "or delete it" in caplog.text
    (tmp_path / "run" / "delivered.json").unlink()
    submit(settings, Devices(settings, tmp_path))
    assert read_delivered(tmp_path / "run").keeping == CLIENTS


# What a client refuses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "change", "words"),
    [
        ({"keep": "x", "run": "r"}, lambda model: {name: array[..., :3] for name, array in model.items()}, "not fit"),
        ({"keep": "x", "run": "r"}, lambda model: {}, "not fit"),
        ({"keep": "x", "run": "r"}, lambda model: model | {"more": np.ones(3)}, "more differ"),
        (
            {"keep": "x", "run": "r"},
            lambda model: {name: array * np.nan for name, array in model.items()},
            "not finite",
        ),
        ({"keep": 7, "run": "r"}, lambda model: model, "does not say"),
        ({"keep": "x"}, lambda model: model, "does not say"),
        ({"keep": "x", "run": "r", "server-round": "two"}, lambda model: model, "does not say"),
        ({"keep": "x", "run": "r", "fairbloom-protocol": 99}, lambda model: model, "upgrade fairbloom"),
    ],
    ids=["shapes", "empty", "more", "nan", "checksum", "no run", "round", "protocol"],
)
def test_what_is_no_final_model_is_refused_with_the_reason_and_the_old_one_stays(
    delivered: Path, about: dict[str, Any], change: Callable[[Any], Any], words: str
) -> None:
    folder = kept_folder(delivered, 0)
    before = (folder / "model.safetensors").read_bytes()
    settings = settings_of(delivered / "run", method="ditto")
    context = next(iter(Devices(settings, delivered).contexts.values()))
    with pytest.raises(ValueError, match=words):
        asking(context, about, record_of(change(MODEL.read(delivered / "run"))))
    assert (folder / "model.safetensors").read_bytes() == before


def test_the_name_of_a_run_is_no_path_and_is_cut(delivered: Path) -> None:
    settings = settings_of(delivered / "run", method="ditto")
    context = next(iter(Devices(settings, delivered).contexts.values()))
    before = {path for path in delivered.parent.rglob("*") if path.is_file()}
    model = record_of(MODEL.read(delivered / "run"))
    said = asking(context, {"keep": "x", "run": "\x1b[2J" + "../../../" * 100}, model)
    assert said[KEPT] == "x"
    about = find_kept(kept_folder(delivered, 0))
    assert about is not None
    assert len(about.run) == 200
    assert about.run.startswith("\ufffd[2J../")
    assert {path for path in delivered.parent.rglob("*") if path.is_file()} == before


def test_all_keep_the_whole_model_with_frozen_parameters(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "run", model="tests.rounds.adapted:Plain")
    elsewhere, brought = Elsewhere({**settings.run_config(), DEPLOYED: True}), list[tuple[int, set[str]]]()

    class Noting(Devices):
        def _answer(self, message: Message) -> Message:
            content, place = message.content, message.metadata.dst_node_id - 2
            if message.metadata.message_type == MessageType.QUERY and content.array_records:
                brought.append((place, {*content.array_records, *content.array_records["arrays"]}))
            return elsewhere(message, super()._answer) if place == 1 else super()._answer(message)

    submit(settings, Noting(settings, tmp_path))
    assert sorted(place for place, _ in brought) == [0, 1, 2]
    assert all("second.weight" in names for _, names in brought)
    expected = MODEL.read(tmp_path / "run")
    for place in range(3):
        found, _ = load_model(kept_folder(tmp_path, place) / "model.safetensors")
        assert {name: array.tobytes() for name, array in found.items()} == {
            name: array.tobytes() for name, array in expected.items()
        }
