"""The model that an operator has released: its owner's rule, and what a hostile server gains."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MessageType, RecordDict

from fairbloom.client.guard.evaluated_model import (
    KEPT,
    MODEL,
    RELEASED,
    RELEASED_BEFORE,
    find_model,
)
from fairbloom.client.guard.initial_weights import ACCEPTED, FOLDER
from fairbloom.client.guard.released_model import (
    DRAFT,
    WAITING,
    choose,
    describe_models,
    read_scores,
)
from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import load_predictor
from fairbloom.protocol.codec import digest_arrays
from fairbloom.protocol.names import RELEASE, RELEASE_LIMIT
from fairbloom.server.settings import Settings
from fairbloom.system.sealed import DamagedFileError
from fairbloom.tasks import load_task
from fairbloom.tasks.models import arrays_of
from tests.experiments.helpers import fairbloom

from ..hospital import RUN, SCHEMA, Device, crash_at, write_hospital

State = dict[str, torch.Tensor]


@pytest.fixture
def device(tmp_path: Path) -> Device:
    write_hospital(tmp_path / "data")
    return Device(tmp_path)


def model_of(shift: float = 0.0, **settings: Any) -> State:
    state = load_task(Settings.of({**RUN, **settings}).run_config()).model().state_dict()
    return {name: each + shift for name, each in state.items()}


def ask(device: Device, kind: str, arrays: State, about: dict[str, Any], **settings: Any) -> Any:
    config = ConfigRecord({"server-round": 1, **about})
    content = RecordDict({"arrays": ArrayRecord(arrays), "config": config})
    return device.ask(kind, settings, content)


def release(device: Device, run: str, shift: float, **settings: Any) -> Any:
    about = {"run": run, "method": "fedfv", "day": "2026-01-31"}
    reply = ask(device, RELEASE, model_of(shift, **settings), about, **settings)
    assert {name: {*record} for name, record in reply.items()} == {"client": {RELEASE_LIMIT}}
    return reply["client"][RELEASE_LIMIT]


def runs(device: Device) -> list[str]:
    """Return the run of the used model, of the one that waits and of the one before."""
    words = ("predictions use ", "take would use ", "back would use ")
    lines = [*describe_models(device.state)]
    return [
        next(
            (line.partition(" of ")[2].split(":")[0] for line in lines if word in line), ""
        ).partition(" of ")[2]
        for word in words
    ]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("take", ["b", "", "a"]),
        ("ask", ["a trial, not released", "b", ""]),
        ("off", ["a trial, not released", "", ""]),
    ],
)
def test_a_release_is_what_the_owner_says(tmp_path: Path, rule: str, expected: list[str]) -> None:
    write_hospital(tmp_path / "data")
    device = Device(tmp_path, limit_release=rule)
    device.evaluate()
    assert load_predictor(device.state).describe(1).endswith("of a trial, not released")
    for run, shift in (("a", 1.0), ("b", 2.0)):
        assert release(device, run, shift) == rule
    assert runs(device) == expected
    device.evaluate(seed=2)
    assert runs(device) == expected
    assert ("seed 0, released on 2026-01-31" in load_predictor(device.state).describe(1)) == (
        rule == "take"
    )
    if rule == "take":
        kept = device.state / RELEASED
        assert {path.stat().st_mode & 0o077 for path in (kept, *kept.iterdir())} == {0}


def test_an_owner_goes_back_and_a_release_does_not_undo_it(device: Device) -> None:
    words = ("client", "release")
    with pytest.raises(FairbloomError, match="fairbloom deploy release"):
        choose(device.state, "take", "take")
    release(device, "a", 1.0)
    with pytest.raises(FairbloomError, match=f"remove {RELEASED}"):
        choose(device.state, "back", "take")
    release(device, "b", 2.0)
    assert fairbloom(*words, "back", device.state) == 0
    assert runs(device) == ["a", "b", ""]
    assert release(device, "b", 2.0) == "ask"
    assert release(device, "a", 1.0) == "take"
    assert runs(device) == ["a", "b", ""]
    assert fairbloom(*words, "take", device.state) == 0
    assert runs(device) == ["b", "", "a"]
    assert release(device, "c", 1.0) == "take"
    assert runs(device) == ["c", "", "b"]


@pytest.mark.parametrize("moved", [RELEASED, DRAFT])
def test_a_killed_release_leaves_a_whole_model(
    device: Device, monkeypatch: pytest.MonkeyPatch, moved: str
) -> None:
    release(device, "a", 1.0)
    crash_at(monkeypatch, moved)
    with pytest.raises(SystemExit):
        release(device, "b", 2.0)
    monkeypatch.undo()
    assert runs(device)[0] == "a"
    load_predictor(device.state)
    release(device, "b", 2.0)
    assert runs(device) == ["b", "", "a"]
    assert not (device.state / DRAFT).exists()


@pytest.mark.parametrize(
    "arrays",
    [
        model_of(schema=SCHEMA.replace('"hospice", ', "")),
        {},
        {**model_of(), "more": torch.ones(1)},
        model_of(float("nan")),
        model_of(float("inf")),
    ],
)
def test_a_model_that_does_not_fit_is_refused(device: Device, arrays: State) -> None:
    release(device, "a", 1.0)
    with pytest.raises(FairbloomError, match="release the model of another run"):
        ask(device, RELEASE, arrays, {"run": "b"})
    assert runs(device) == ["a", "", ""]


def test_a_damaged_release_is_sent_again(device: Device) -> None:
    release(device, "a", 1.0)
    release(device, "b", 2.0)
    file = device.state / RELEASED / MODEL
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedFileError):
        load_predictor(device.state)
    release(device, "b", 2.0)
    assert "of b" in load_predictor(device.state).describe(1)
    with pytest.raises(DamagedFileError):  # it became the one before
        choose(device.state, "back", "take")
    assert runs(device)[0] == "b"


def test_what_a_server_calls_a_run_is_no_command(device: Device) -> None:
    release(device, "a\x1b[2J", 1.0)
    release(device, "b" * 10_000, 2.0)
    assert "\x1b" not in "".join(describe_models(device.state))
    assert max(map(len, describe_models(device.state))) < 300


def test_a_released_run_may_have_begun_with_a_file(device: Device) -> None:
    """No data are used with these weights."""
    weights = {"initial-weights": "w.safetensors", "weights-digest": "0" * 64}
    assert release(device, "a", 1.0, **weights) == "take"
    with pytest.raises(FairbloomError, match="not accepted"):
        device.evaluate(**weights)


def test_the_owner_sees_the_scores_of_the_used_model(device: Device) -> None:
    device.evaluate(seed=5)
    reported = device.evaluate()
    release(device, "a", 0.0)
    device.evaluate(seed=6)
    ((number, scores),) = read_scores(device.state)
    assert (number, scores["accuracy"]) == (1, reported["accuracy"])


# Weights that a run may begin with ----------------------------------------------------------------


def begins(device: Device, arrays: State) -> bool:
    """Return whether a run may begin with a model."""
    weights = {"initial-weights": "w", "weights-digest": digest_arrays(arrays_of(arrays))}
    try:
        ask(device, MessageType.TRAIN, arrays, {}, **weights)
    except FairbloomError as error:
        return "not accepted" not in str(error)
    return True


@pytest.mark.parametrize(
    ("trained", "number", "known"),
    [({"seed": 0}, 2, True), (None, 2, False), ({"seed": 1}, 2, False), ({"seed": 0}, 1, False)],
)
def test_a_run_may_begin_with_the_final_model_of_an_own_run(
    device: Device, trained: dict[str, Any] | None, number: int, known: bool
) -> None:
    final = model_of(0.5)
    if trained is not None:
        device.train(**trained, **{"num-rounds": 2})
    ask(device, MessageType.EVALUATE, final, {"server-round": number}, **{"num-rounds": 2})
    assert begins(device, final) == known
    assert not begins(device, model_of(0.6))


def test_a_disk_that_takes_no_note_costs_no_round(device: Device) -> None:
    (device.state / FOLDER).touch()
    assert device.train()["num-examples"]


@pytest.mark.parametrize(("rule", "known"), [("ask", True), ("take", False)])
def test_a_taken_model_is_accepted_by_an_owner_alone(
    tmp_path: Path, rule: str, known: bool
) -> None:
    """Planted weights that a server releases, trained before or not, are not accepted by that."""
    write_hospital(tmp_path / "data")
    device = Device(tmp_path, limit_release=rule)
    device.train()
    release(device, "a", 1.0)
    release(device, "b", 2.0)
    assert not begins(device, model_of(1.0))
    assert not begins(device, model_of(2.0))
    if rule == "take":
        choose(device.state, "back", rule)
    choose(device.state, "take", rule)
    assert begins(device, model_of(2.0)) == known
    assert (device.state / FOLDER / ACCEPTED).exists() == known


def test_a_crash_while_going_back_keeps_a_model(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(device, "a", 1.0)
    release(device, "b", 2.0)
    crash_at(monkeypatch, RELEASED_BEFORE)
    with pytest.raises(SystemExit):
        choose(device.state, "back", "take")
    assert find_model(device.state) == device.state / RELEASED_BEFORE
    assert (device.state / WAITING).exists()
    assert not (device.state / KEPT).exists()
