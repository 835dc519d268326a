"""The folders that predict: of any run, of earlier versions, and of a device.

Predictions for new rows of a table equal what the clients measured, to the row.
"""

import gzip
import re
import shutil
import stat
from codecs import BOM_UTF8
from collections.abc import Callable
from itertools import product
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
from fairbloom.prediction.predictor import Predictor, find_own_file, load_predictor
from fairbloom.protocol.scores import ACCURACY
from fairbloom.server.checkpoint import load_model, save_model
from fairbloom.server.run_folder.files import DATA
from fairbloom.strategies import FedAvg
from fairbloom.tables.preprocessing import Preprocessing
from fairbloom.tables.schema import SchemaFile
from tests.experiments.helpers import captured, fairbloom as command
from tests.server.run_folder import test_flower
from tests.simulation.helpers import table
from tests.tables.workbooks import write_workbook

from .made import CLASSES, COLUMNS, HOSPITALS, Changes, Rows, patients, train, written


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
    assert captured(capsys, *words, out).out == f"10 predictions: {out}\n"
    assert [row["predicted_outcome"] for row in table(out)] == list(
        run.predict(frame(), client="north", model="personal")["predicted_outcome"]
    )
    assert (
        f"{out} is there already: name another file by --out"
        in captured(capsys, *words, out, code=2).err
    )
    new.write_text("[red]")  # which is not read
    assert (
        "nowhere is not a folder: make it"
        in captured(capsys, *words, out.parent / "nowhere" / "out.csv", code=2).err
    )


# Folders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["last", "personal"])
def test_the_hospitals_files_are_not_needed(copied: Path, run: fairbloom.Run, model: str) -> None:
    (copied / "config.toml").write_text(
        (copied / "config.toml")
        .read_text()
        .replace(str(run.folder.parent / "data"), "/no/longer/there")
    )
    pandas.testing.assert_frame_equal(
        fairbloom.load(copied).predict(frame(), client="north", model=model),
        run.predict(frame(), client="north", model=model),
    )


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


def test_stacked_clients_keep_what_is_each_ones_own(tmp_path: Path, run: fairbloom.Run) -> None:
    made = train(tmp_path, engine="stacked")
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
    words = ConfigRecord({"server-round": 2, **config})
    content = RecordDict({"config": words, "arrays": ArrayRecord(run.model("north").state_dict())})
    return Message(content, dst_node_id=2, message_type=kind)


@pytest.mark.parametrize("name", ["north", "west"])
def test_a_device_predicts_with_its_own_preprocessing(
    tmp_path: Path, run: fairbloom.Run, name: str
) -> None:
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
    pandas.testing.assert_frame_equal(predictor.predict(frame()), run.predict(frame(), client=name))
    assert list(
        load_predictor(state, client=name, model="personal").predict(frame()).columns
    ) == list(predictor.predict(frame()).columns)
    with pytest.raises(FairbloomError, match=rf"is that of client {name}: leave the client out"):
        load_predictor(state, client="south")


def test_a_disk_that_is_full_costs_a_device_no_round(
    tmp_path: Path,
    run: fairbloom.Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fairbloom.client.states.write_private", full)
    reply = app(message(run), device(tmp_path, run, "north"))
    assert reply.content.metric_records["metrics"]["num-examples"]
    assert (
        "preprocessing.json cannot be written, so that nothing can be predicted by it: No space"
        " left" in caplog.text
    )


# The value ----------------------------------------------------------------------------------------


def test_a_preprocessing_is_read_as_it_was_written(
    run: fairbloom.Run, quantity: fairbloom.Run
) -> None:
    files = [file for each in (run, quantity) for file in each.folder.rglob("preprocessing.json")]
    written = [file.read_bytes() for file in files]
    assert [Preprocessing.decode_file(content).encode() for content in written] == written


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
            assert {
                column.name: column.scale == 0.0
                for column in shared.columns
                if column.kind == "number"
            } == {"age": apart, "dose": apart}
            assert {column.fill for column in shared.columns} == {not apart}
            if apart:
                with pytest.raises(FairbloomError, match="name the client"):
                    shared.inputs(values_of(table_of_frame(frame(), SchemaFile()), shared))


INPUTS = ("age", "dose", "ward", "smoker")


def predicted(
    predictor: Predictor, rows: Rows, folder: Path, columns: tuple[str, ...] = COLUMNS
) -> Rows:
    """Return what comes out for rows in a file."""
    (folder / "new.csv").write_text(written(rows, columns), encoding="utf-8")
    assert predictor.predict_file(folder / "new.csv", folder / "out.csv") == len(rows)
    return table(folder / "out.csv")


def recompute(run: fairbloom.Run, client: str, folder: Path, model: str = "last") -> None:
    """Recompute a client's score by the lines of docs/using.md, from a copy of its file."""
    copy = folder / f"of {client}, 2025.csv"
    shutil.copy(run.folder.parent / "data" / f"{client}.csv", copy)
    run.predictor(client, model).predict_file(copy, folder / client, "test")
    tested = pandas.read_csv(folder / client, dtype=str, keep_default_na=False)
    true = tested["true_outcome"]
    found = tested["predicted_outcome"]
    main = ACCURACY if ACCURACY in run.scores else run.score
    measured = run.final(main, "personal" if model == "personal" else "global")
    if main == ACCURACY:
        score = 100.0 * (true == found).mean()
    else:
        score = (true.astype(float) - found.astype(float)).abs().mean()
    assert score == pytest.approx(measured[client], rel=1e-5)
    assert len(tested) == run.test_examples()[client]


def test_scores_on_held_out_rows_are_those_of_the_run(
    run: fairbloom.Run,
    together: fairbloom.Run,
    quantity: fairbloom.Run,
    tmp_path: Path,
    subtests: pytest.Subtests,
) -> None:
    for trained, client, model in product(
        (run, together, quantity), HOSPITALS, ("last", "personal")
    ):
        with subtests.test(trained=trained, client=client, model=model):
            recompute(trained, client, tmp_path, model)


def test_a_run_without_some_clients_can_be_recomputed(tmp_path: Path) -> None:
    run = train(tmp_path, method="fedavg", held_out_clients=0.5)
    for client in run.final():
        recompute(run, client, tmp_path)


@pytest.mark.parametrize("client", HOSPITALS)
def test_the_rows_of_all_splits_are_the_clients_rows(
    run: fairbloom.Run, tmp_path: Path, client: str
) -> None:
    file = run.folder.parent / "data" / f"{client}.csv"
    words = ("predict", run.folder, file, "--client", client, "--split")
    found = []
    for split in ("test", "train"):
        assert command(*words, split, "--out", tmp_path / split) == 0
        found += [row["patient"] for row in table(tmp_path / split)]
    assert sorted(found) == [row["patient"] for row in table(file)]


TABLES: dict[str, tuple[dict[str, Any], Changes]] = {
    "spelled": (
        {"words": [("ill", "well", "well"), ("Krank", "WELL", "Well")]},
        [('["Krank", "ill", "well"]', '["ill", "well"]'), ("{well", '{ill = ["Krank"], well')],
    ),
    "numbers": ({"words": [("0", "1", "1"), ("0.0", "1.0", "1.0")]}, []),
    "numbers and words": ({"words": [("1", "2", "both"), ("1", "2", "2")]}, []),
    "no values to pandas": ({"words": [("None", "null.", "mild"), ("none", "null.", "mild")]}, []),
    "truth": ({"words": [("False", "True", "True"), ("FALSE", "true", "true")]}, []),
    "quantity": ({"level": 120.0}, []),
    "far from 0": ({"level": 2e8}, []),
    "units": (
        {"level": 0.0},
        [("[fields.age]", "[files.'south.csv'.fields.outcome]\nfactor = 0.01\n[fields.age]")],
    ),
    "formulas": ({"words": [("=a", "'=a", "@")]}, []),
    "signs": ({"words": [("+", "-", "-")]}, []),
}


@pytest.mark.parametrize(("rows", "changes"), TABLES.values(), ids=[*TABLES])
def test_any_clients_score_is_recomputed_from_a_copy(
    tmp_path: Path, rows: dict[str, Any], changes: Changes
) -> None:
    run = train(tmp_path, rows=rows, changes=changes)
    for client in HOSPITALS:
        recompute(run, client, tmp_path)


def test_a_quantity_that_cannot_be_read_is_empty(quantity: fairbloom.Run, tmp_path: Path) -> None:
    rows = [{**patients(1)[0], "outcome": cell} for cell in ("7.5", "n.d.")]
    assert [
        row["true_outcome"] for row in predicted(quantity.predictor("south"), rows, tmp_path)
    ] == ["7.50000", ""]


def test_a_file_is_its_clients_by_digest_or_by_name(
    copied: Path, run: fairbloom.Run, caplog: pytest.LogCaptureFixture
) -> None:
    file = run.folder.parent / "data" / "north.csv"
    digest = DATA.read(copied)[file.name]
    assert re.fullmatch("sha256 [0-9a-f]{64}", digest)
    DATA.write(copied, {"north.csv": digest, "south.csv": digest, "west.csv": "another"})
    for client in ("north", "south"):
        assert find_own_file(copied, file, client, "") == f"{client}.csv"
    for client in ("", "west"):
        with pytest.raises(FairbloomError, match="is the file of north, south: say which one by"):
            find_own_file(copied, file, client, "")
    assert "recorded no digests" not in caplog.text
    DATA.path_in(copied).unlink()
    assert [
        find_own_file(copied, file, *each) for each in (("south", ""), ("", ""), ("west", "site"))
    ] == ["south.csv", "north.csv", "north.csv"]
    assert re.search("recorded no digests .* are split as client south has them", caplog.text)


@pytest.mark.parametrize(
    ("make", "client", "split", "expected"),
    [
        (
            lambda file: file.read_bytes()[:-1],
            "north",
            "test",
            "not a file that the run in .* read",
        ),
        (lambda file: file.read_bytes() + b"\n", "", "test", "not a file that the run in .* read"),
        (lambda file: gzip.compress(file.read_bytes()), "north", "test", "not a file that"),
        (lambda file: written(patients(7)).encode(), "north", "train", "not a file that the run"),
        (Path.read_bytes, "north", "validation", "the run has no such rows"),
        (Path.read_bytes, "south", "test", "north.csv has no rows of client south"),
        (lambda file: None, "north", "test", "is no table: name a client's own table"),
    ],
)
def test_rows_of_a_split_are_only_those_of_a_file_of_the_run(
    together: fairbloom.Run,
    tmp_path: Path,
    make: Callable[[Path], bytes | None],
    client: str,
    split: str,
    expected: str,
) -> None:
    content = make(together.folder.parent / "data" / "north.csv")
    if content is not None:
        (tmp_path / "north.csv").write_bytes(content)
    with pytest.raises(FairbloomError, match=expected):
        together.predictor(client).predict_file(tmp_path / "north.csv", tmp_path / "out", split)
    assert not (tmp_path / "out").exists()


def test_common_means_need_no_client(together: fairbloom.Run) -> None:
    frame = pandas.DataFrame(patients(0, 20))
    pandas.testing.assert_frame_equal(
        together.predict(frame), together.predict(frame, client="north")
    )


def test_the_best_model_is_that_of_the_best_round(
    run: fairbloom.Run, caplog: pytest.LogCaptureFixture
) -> None:
    model = run.model("north", "best")
    assert "was chosen by the test examples" in caplog.text
    assert not model.training
    arrays, _ = load_model(run.folder / "model-best.safetensors")
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


def test_all_columns_come_out_in_their_order_then_predictions(
    run: fairbloom.Run,
    tmp_path: Path,
    subtests: pytest.Subtests,
) -> None:
    predictor = load_predictor(run.folder, client="west")
    rows = patients(2, 25)
    usual = predicted(predictor, [{**row, "outcome": "never seen"} for row in rows], tmp_path)
    assert {row["true_outcome"] for row in usual} == {""}
    added = ["predicted_outcome", *(f"probability_{name}" for name in sorted(CLASSES))]
    for columns in (
        COLUMNS,
        INPUTS,
        tuple(reversed(COLUMNS)),
        ("ward", "outcome", "age", "smoker", "dose"),
    ):
        with subtests.test(columns=columns):
            found = predicted(predictor, rows, tmp_path, columns)
            true = ["true_outcome"] if "outcome" in columns else []
            assert list(found[0]) == [*columns, *true, *added]
            assert [{name: row[name] for name in columns} for row in found] == [
                {name: row[name] for name in columns} for row in rows
            ]
            assert [[row[name] for name in added] for row in found] == [
                [row[name] for name in added] for row in usual
            ]
    for row in usual:
        with subtests.test(row=row):
            shares = {name: float(row[f"probability_{name}"]) for name in CLASSES}
            assert sum(shares.values()) == pytest.approx(1.0, abs=1e-5)
            assert max(shares, key=lambda name: shares[name]) == row["predicted_outcome"]


@pytest.mark.parametrize(
    ("delimiter", "decimal", "encoding", "mark"),
    [
        (";", ",", "cp1252", True),
        ("\t", ".", "utf-8", False),
        (";", ".", "utf-8-sig", True),
        (",", ".", "utf-16", True),
        (",", ".", "", True),
    ],
)
def test_predictions_have_the_dialect_of_their_input(
    together: fairbloom.Run, tmp_path: Path, delimiter: str, decimal: str, encoding: str, mark: bool
) -> None:
    """In UTF-8, with the mark that Excel needs if Excel may have written the input."""
    text = (together.folder / "schema.toml").read_text()
    stated = "cp1252" if encoding else "utf-8"
    predictor = together.predictor().reading_by(f'{text}\n[files."*"]\nencoding = "{stated}"\n')
    new = pandas.DataFrame(patients(1, 5)).astype({"age": float, "dose": float})
    file = tmp_path / ("new.csv" if encoding else "new.xlsx")
    if encoding:
        new.to_csv(file, sep=delimiter, decimal=decimal, encoding=encoding, index=False)
    else:
        write_workbook(file, {"Patients": [list(new), *new.astype(object).to_numpy().tolist()]})
    predictor.predict_file(file, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes().startswith(BOM_UTF8) == mark
    found = pandas.read_csv(tmp_path / "out.csv", sep=delimiter, dtype=str)
    assert [*found][: len(COLUMNS)] == [*COLUMNS]
    name = f"probability_{CLASSES[0]}"
    assert found[name].tolist() == [
        f"{value:.6g}".replace(".", decimal) for value in predictor.predict(new)[name]
    ]


def test_numbers_far_beyond_training_are_marked(
    together: fairbloom.Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = patients(1, 4)
    rows[1]["age"] = "1e9"
    rows[3] |= {"age": "-1e12", "dose": "3e8"}
    found = predicted(load_predictor(together.folder), rows, tmp_path)
    assert [row["far_beyond_training"] for row in found] == ["", "age", "", "age, dose"]
    assert "2 rows have numbers more than 1e+06 deviations away" in caplog.text
    assert "far_beyond_training" not in together.predict(pandas.DataFrame(patients(1, 4)))


def test_a_filled_column_that_new_data_lack_is_said(
    together: fairbloom.Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = patients(1, 4)
    predictor = load_predictor(together.folder)
    predicted(predictor, rows, tmp_path)
    assert "has no column" not in caplog.text
    predicted(predictor, rows, tmp_path, tuple(name for name in COLUMNS if name != "dose"))
    assert "has no column dose: it is missing in all rows" in caplog.text


@pytest.mark.parametrize("name", [*(f"probability_{each}" for each in CLASSES)])
def test_a_data_frame_is_predicted_as_its_file(
    run: fairbloom.Run, tmp_path: Path, name: str
) -> None:
    rows = patients(3, 40)
    by_file = predicted(load_predictor(run.folder, client="old town"), rows, tmp_path)
    frame = pandas.DataFrame(rows).astype({"age": float, "dose": float, "ward": "category"})
    frame.index = pandas.Index(range(100, 140))
    found = run.predict(frame, client="old town")
    assert list(found.index) == list(frame.index)
    assert list(found["predicted_outcome"]) == [row["predicted_outcome"] for row in by_file]
    alone = run.predict(frame.iloc[4:5], client="old town")
    assert list(frame.columns) == list(COLUMNS)
    np.testing.assert_allclose(
        found[name].to_numpy(), [float(row[name]) for row in by_file], rtol=1e-5
    )
    assert alone[name].iloc[0] == pytest.approx(found[name].iloc[4], rel=1e-5)


def test_a_category_that_the_schema_lacks_is_a_fault_by_row(run: fairbloom.Run) -> None:
    frame = pandas.DataFrame(patients(0, 4))
    frame["ward"] = ["A 1", "Ward 13", "Ward 13", "ward 14"]
    first, last = "row 1, column 'ward' holds 'Ward 13'", "row 3, column 'ward' holds 'ward 14'"
    with pytest.raises(FairbloomError, match=f"(?s){first}.*spellings.*{last}"):
        run.predict(frame, client="north")


def test_new_rows_may_be_read_by_another_schema(run: fairbloom.Run, tmp_path: Path) -> None:
    predictor = load_predictor(run.folder, client="north")
    rows = patients(0, 4)
    text = (run.folder / "schema.toml").read_text()
    found = predictor.reading_by(
        text.replace(
            'categories = ["no", "yes"]', 'categories = ["no", "yes"]\nspellings = {no = ["nein"]}'
        )
    ).predict(pandas.DataFrame(rows).replace({"smoker": {"no": "nein"}}))["predicted_outcome"]
    assert found.tolist() == predictor.predict(pandas.DataFrame(rows))["predicted_outcome"].tolist()
    with pytest.raises(FairbloomError, match="schema: smoker is not as in the run"):
        predictor.reading_by(text.replace('["no", "yes"]', '["yes", "no"]'))


def refused(run: fairbloom.Run, **chosen: str) -> str:
    with pytest.raises(FairbloomError) as caught:
        load_predictor(run.folder, **chosen)
    return str(caught.value)


def test_what_is_not_there_is_named_with_what_is(
    run: fairbloom.Run, together: fairbloom.Run
) -> None:
    assert (
        "own means and deviations, unless the schema states center and scale: name a client by"
        " --client" in (refused(run))
    )
    assert "did you mean north? there are north, old town, south and 1 more" in refused(
        run, client="nort"
    )
    assert "did you mean south?" in refused(together, client="souht")
    assert "did you mean personal? there are last, best, personal" in refused(
        run, client="north", model="persoal"
    )
    assert "a personal model: name a client by --client with one of north, old" in refused(
        together, model="personal"
    )


def test_a_damaged_personal_model_is_named(
    together: fairbloom.Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied = fairbloom.load(shutil.copytree(together.folder, tmp_path / "copied"))
    # on a slow machine there is an earlier one
    for file in (copied.folder / "clients").rglob("*.versions"):
        file.write_bytes(file.read_bytes()[:-9])
    said = refused(copied, model="personal", client="west")
    assert f"{file} is damaged" in caplog.text
    assert "has no personal model: " in said
    assert "personal-lambda" in said
    assert file.exists()
