"""The folders that predict: of any run, of earlier versions, and of a device."""

import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

import fairbloom
from fairbloom.client.app import app
from fairbloom.errors import FairbloomError
from fairbloom.prediction.output_rows import table_of_frame, values_of
from fairbloom.prediction.predictor import load_predictor
from fairbloom.server.checkpoint import save_model
from fairbloom.strategies import FedAvg
from fairbloom.tables.preprocessing import Preprocessing
from tests.experiments.helpers import fairbloom as command
from tests.server.run_folder import test_flower
from tests.simulation.helpers import table

from .made import HOSPITALS, patients, train, written


@pytest.fixture
def copied(run: fairbloom.Run, tmp_path: Path) -> Path:
    """A copy of the run folder, without the hospitals' files."""
    return shutil.copytree(run.folder, tmp_path / "copied")


def frame(place: int = 0) -> pandas.DataFrame:
    return pandas.DataFrame(patients(place, 10))


# The command --------------------------------------------------------------------------------------


def test_the_command_writes_what_python_returns(
    run: fairbloom.Run, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new.write_text(written(patients(0, 10)), encoding="utf-8")
    out = new.with_name("predictions.csv")
    words = ("predict", run.folder, new, "--client", "north", "--model", "personal", "--out")
    assert command(*words, out) == 0
    assert capsys.readouterr().out == f"10 predictions: {out}\n"
    expected = list(run.predict(frame(), client="north", model="personal")["predicted_outcome"])
    assert [row["predicted_outcome"] for row in table(out)] == expected
    assert command(*words, out) == 2
    assert f"{out} is there already: name another file by --out" in capsys.readouterr().err
    new.write_text("[red]")  # which is not read
    assert command(*words, out.parent / "nowhere" / "out.csv") == 2
    assert "nowhere is not a folder: make it" in capsys.readouterr().err


# Folders ------------------------------------------------------------------------------------------


def test_the_hospitals_files_are_not_needed(copied: Path, run: fairbloom.Run) -> None:
    settings = (
        (copied / "config.toml")
        .read_text()
        .replace(str(run.folder.parent / "data"), "/no/longer/there")
    )
    (copied / "config.toml").write_text(settings)
    for model in ("last", "personal"):
        found = fairbloom.load(copied).predict(frame(), client="north", model=model)
        pandas.testing.assert_frame_equal(found, run.predict(frame(), client="north", model=model))


def test_an_interrupted_run_predicts_by_its_last_checkpoint(
    copied: Path, run: fairbloom.Run, caplog: pytest.LogCaptureFixture
) -> None:
    (copied / "model.safetensors").unlink()
    found = fairbloom.load(copied).predict(frame(), client="north")
    assert f"the run in {copied} is not finished: its last checkpoint predicts" in caplog.text
    pandas.testing.assert_frame_equal(found, run.predict(frame(), client="north"))
    shutil.rmtree(copied / "checkpoint")
    with pytest.raises(
        FairbloomError, match=r"has no model\.safetensors yet: no round is finished"
    ):
        load_predictor(copied, client="north")
    (copied / "model-best.safetensors").unlink()
    with pytest.raises(FairbloomError, match="no round was evaluated"):
        load_predictor(copied, client="north", model="best")
    with pytest.raises(FairbloomError, match=r"holds no run: name a run folder"):
        load_predictor(copied.parent)


def test_a_users_own_flower_app_has_no_task_to_build_a_model_by(tmp_path: Path) -> None:
    test_flower.start(tmp_path / "run", FedAvg(), rounds=1)
    run = fairbloom.load(tmp_path / "run")
    with pytest.raises(
        FairbloomError, match=r"your own Flower app.*fairbloom\.load\(run\)\.arrays\(\)"
    ):
        run.model()
    assert {*run.arrays()} == {"w"}


def test_what_a_run_folder_lacks_is_named(
    copied: Path,
    together: fairbloom.Run,
    tmp_path: Path,
    subtests: pytest.Subtests,
) -> None:
    (file,) = (copied / "clients").rglob("preprocessing.json")
    whole = file.read_bytes()
    for content in (
        b"",
        b"[]",
        b"{",
        b'{"format": 99}',
        b'{"format": 1, "form": "table"}',
        b"\xff\xfe",
    ):
        with subtests.test(content=content):
            file.write_bytes(content)
            with pytest.raises(
                FairbloomError,
                match=r"preprocessing\.json cannot be read: .*Restore it from a copy",
            ):
                load_predictor(copied, client="north")
    file.unlink()
    with pytest.raises(
        FairbloomError,
        match=r"deviations of client north are not in .*: predict on its own device, or",
    ):
        load_predictor(copied, client="north")
    file.write_bytes(whole)
    save_model(copied / "model.safetensors", {"other": np.zeros(3, np.float32)}, {})
    with pytest.raises(FairbloomError, match="arrays do not fit its model"):
        load_predictor(copied, client="south")
    earlier = shutil.copytree(together.folder, tmp_path / "together")
    (earlier / "preprocessing.json").unlink()  # the task says it again
    pandas.testing.assert_frame_equal(
        fairbloom.load(earlier).predict(frame()), together.predict(frame())
    )


def test_every_engine_keeps_what_is_each_clients_own(
    tmp_path: Path, run: fairbloom.Run, subtests: pytest.Subtests
) -> None:
    for engine in ("stacked", "workers"):
        with subtests.test(engine=engine):
            (tmp_path / engine).mkdir()
            made = train(tmp_path / engine, engine=engine)
            (file,) = (made.folder / "clients").rglob("preprocessing.json")
            (of_loop,) = (run.folder / "clients").rglob("preprocessing.json")
            assert file.read_bytes() == of_loop.read_bytes()
            assert {*Preprocessing.decode_file(file.read_bytes()).moments} == {*HOSPITALS}
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_methods_with_personal_models_predict_by_them(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for method in ("ditto", "local"):
        with subtests.test(method=method):
            (tmp_path / method).mkdir()
            made = train(
                tmp_path / method, method=method, state_dir=str(tmp_path / method / "state")
            )
            assert not (made.folder / "clients").exists()
            found = [made.predict(frame(), client=name, model="personal") for name in HOSPITALS]
            assert len({tuple(each.iloc[:, -1]) for each in found}) == len(HOSPITALS)
    with pytest.raises(FairbloomError, match="trains no global model: take model personal"):
        made.model("north")


# A device -----------------------------------------------------------------------------------------


def device(folder: Path, run: fairbloom.Run, name: str) -> Context:
    """Return the context of a deployed client that has one hospital's file."""
    (folder / "data").mkdir(parents=True)
    shutil.copy(run.folder.parent / "data" / f"{name}.csv", folder / "data")
    node = {"partition-id": 0, "data-dir": str(folder / "data"), "state-dir": str(folder / "state")}
    places = ("data-dir", "state-dir")
    config = {key: value for key, value in run.settings.items() if key not in places}
    return Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config=config)


def message(run: fairbloom.Run, kind: str = MessageType.TRAIN, **config: Any) -> Message:
    """Return what a server sends to a deployed client: the final model, to train it or to evaluate
    it."""
    words = ConfigRecord({"server-round": 1, **config})
    content = RecordDict({"config": words, "arrays": ArrayRecord(run.model("north").state_dict())})
    return Message(content, dst_node_id=2, message_type=kind)


def test_a_device_predicts_with_its_own_preprocessing(
    tmp_path: Path, run: fairbloom.Run, subtests: pytest.Subtests
) -> None:
    for name in ("north", "west"):
        with subtests.test(name=name):
            context = device(tmp_path / name, run, name)
            state = tmp_path / name / "state"
            app(message(run, **{"personal-lambda": 0.1}), context)
            app(message(run, MessageType.EVALUATE), context)
            kept = run.predictor(client=name).preprocessing
            for file in state.rglob("preprocessing.json"):
                assert stat.S_IMODE(file.stat().st_mode) == 0o600
                assert Preprocessing.decode_file(file.read_bytes()) == kept
            predictor = load_predictor(state)
            assert predictor.client == name
            pandas.testing.assert_frame_equal(
                predictor.predict(frame()), run.predict(frame(), client=name)
            )
            personal = load_predictor(state, client=name, model="personal").predict(frame())
            assert list(personal.columns) == list(predictor.predict(frame()).columns)
            with pytest.raises(
                FairbloomError, match=rf"is that of client {name}: leave the client out"
            ):
                load_predictor(state, client="south")


def test_a_disk_that_is_full_costs_a_device_no_round(
    tmp_path: Path,
    run: fairbloom.Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fairbloom.client.guard.evaluated_model.write_private", full)
    reply = app(message(run), device(tmp_path, run, "north"))
    assert reply.content.metric_records["metrics"]["num-examples"]
    assert (
        "preprocessing.json cannot be written, so that nothing can be predicted by it: No space"
        " left" in caplog.text
    )


# The value ----------------------------------------------------------------------------------------


def test_a_preprocessing_is_read_as_it_was_written(
    run: fairbloom.Run,
    quantity: fairbloom.Run,
    subtests: pytest.Subtests,
) -> None:
    for file in [
        *run.folder.rglob("preprocessing.json"),
        *quantity.folder.rglob("preprocessing.json"),
    ]:
        with subtests.test(file=file):
            there = Preprocessing.decode_file(file.read_bytes())
            assert there.encode() == file.read_bytes()


def test_the_runs_own_preprocessing_has_no_means_of_a_client(
    run: fairbloom.Run,
    together: fairbloom.Run,
    subtests: pytest.Subtests,
) -> None:
    for each, apart in ((run, True), (together, False)):
        with subtests.test(each=each, apart=apart):
            shared = Preprocessing.decode_file((each.folder / "preprocessing.json").read_bytes())
            assert shared.per_client == (("age", "dose") if apart else ())
            assert not shared.moments
            assert (shared.target, shared.ignored, shared.client) == ("outcome", (), "")
            numbers = {
                column.name: column.scale == 0.0
                for column in shared.columns
                if column.kind == "number"
            }
            assert numbers == {"age": apart, "dose": apart}
            assert {column.fill for column in shared.columns} == {not apart}
            if apart:
                with pytest.raises(FairbloomError, match="name the client"):
                    shared.inputs(values_of(table_of_frame(frame()), shared))
