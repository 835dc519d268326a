"""Client-side rules: what SCAFFOLD's and FedDyn's clients do and keep, and a user's own rule."""

import errno
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

from fairbloom.client.app import app
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import Update, train_client
from fairbloom.client.rules.base import Corrector
from fairbloom.client.rules.registry import RULES
from fairbloom.client.states import RULE, serialize
from fairbloom.client.work import descend
from fairbloom.errors import FairbloomError, ReportableError, reportable
from fairbloom.protocol.names import MIN_ROWS
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import RULES as REQUESTS, Terms
from fairbloom.server.settings import Settings
from fairbloom.system import retry
from fairbloom.system.versions import Point, VersionEntry, Versions

from .helpers import ask, context, run_config, work
from .quadratic import COUNTS, CURVATURES, MINIMA

Vector = np.ndarray[Any, np.dtype[np.float64]]
Changes = dict[str, Any]

RATE = 0.1
PLAIN: Changes = {
    "task": "tests.client.quadratic:task",
    "clients": 2,
    "batch_size": 0,
    "learning_rate": RATE,
}
OWN = "tests.client.own_rules:"


def config_of(**changes: Any) -> dict[str, Any]:
    return run_config(**{**PLAIN, **changes})


def client(name: str = "a", **changes: Any) -> LocalClient:
    return LocalClient.of(RunSettings.of(config_of(**changes)), list(COUNTS).index(name))


def split(vector: Sequence[float] | Vector) -> dict[str, torch.Tensor]:
    whole = torch.tensor(np.array(vector), dtype=torch.float64)
    return {"x": whole[:2], "bias": whole[2]}


def joined(arrays: Mapping[str, torch.Tensor]) -> Vector:
    return torch.cat([arrays["x"], arrays["bias"][None]]).detach().numpy().copy()


def reply(
    local: LocalClient, model: Vector, control: Vector | None = None, number: int = 1, **terms: Any
) -> tuple[Vector, Update]:
    sent = {} if control is None else {"control": split(control)}
    update = train_client(
        local, split(model), Terms(server_round=number, measure=("step-sum",), **terms), sent
    )
    return joined(update.arrays), update


def gradient(name: str, at: Vector) -> Vector:
    return np.array(CURVATURES[name]) * (at - MINIMA[name])


def kept(local: LocalClient, number: int) -> Vector:
    state = local.states.at("rule", number)
    assert state is not None
    return joined(state)


# SCAFFOLD's and FedDyn's local work ---------------------------------------------------------------


@pytest.mark.parametrize(("mu", "decay"), [(0.0, 0.0), (0.3, 0.2)])
def test_control_variates_correct_each_step_by_mean_gradients(mu: float, decay: float) -> None:
    """Against NumPy: y ← y − η_s (g + μ(y − w) + λy − c_k + c), c_k ← c_k − c + u / Σ η_s."""
    local = client(local_epochs=5, weight_decay=decay)
    own = np.zeros(3)
    model = np.array([0.5, -1.0, 2.0])
    for number, control in enumerate(
        ([0.0, 0.0, 0.0], [0.3, -0.2, 0.1], [-1.0, 0.5, 0.0]), start=1
    ):
        y = model.copy()
        for _ in range(5):
            y -= RATE * (gradient("a", y) + mu * (y - model) + decay * y - own + np.array(control))
        terms = {"control_variates": True, "proximal_mu": mu, "state_round": number - 1}
        trained, update = reply(local, model, np.array(control), number, **terms)
        np.testing.assert_allclose(trained, y, rtol=1e-12)
        own = own - control + (model - y) / (5 * RATE)
        np.testing.assert_allclose(kept(local, number), own, rtol=1e-12, atol=1e-14)
        assert update.metrics["step-sum"] == pytest.approx(5 * RATE, rel=1e-15)
        assert update.metrics["state-round"] == number - 1
        model = y + 0.1


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_the_dynamic_regularizer_is_beside_a_proximal_term(mu: float) -> None:
    """Against NumPy: x ← x − η (g − h + (α + μ)(x − w)), h ← h + α u."""
    alpha = 0.7
    local = client(local_epochs=4)
    h = np.zeros(3)
    model = np.array([0.5, -1.0, 2.0])
    for number in (1, 2, 3):
        x = model.copy()
        for _ in range(4):
            x -= RATE * (gradient("a", x) - h + (alpha + mu) * (x - model))
        trained, _ = reply(
            local,
            model,
            number=number,
            dynamic_alpha=alpha,
            proximal_mu=mu,
            state_round=number - 1,
        )
        np.testing.assert_allclose(trained, x, rtol=1e-12)
        h = h + alpha * (model - x)
        np.testing.assert_allclose(kept(local, number), h, rtol=1e-12, atol=1e-14)
        model = x - 0.2


@pytest.mark.parametrize("terms", [{"control_variates": True}, {"dynamic_alpha": 0.5}])
def test_without_a_step_the_state_stays_as_it_is(terms: dict[str, Any]) -> None:
    model = np.ones(3)
    control = np.array([0.1, 0.2, 0.3])
    local = client()
    reply(local, model, control, 1, **terms, state_round=0)
    first = kept(local, 1)
    trained, update = reply(local, model, control, 2, **terms, state_round=1, local_steps=0)
    assert trained.tobytes() == model.tobytes()
    assert update.metrics["step-sum"] == 0.0
    np.testing.assert_array_equal(kept(local, 2), first)
    assert first.any()


X = torch.zeros(2)
BIAS = torch.zeros(())


@pytest.mark.parametrize(
    ("control", "words"),
    [
        ({"x": X}, "'bias' is missing"),
        ({"x": X, "bias": BIAS, "theirs": torch.zeros(1)}, "'theirs' is none of them"),
        (
            {"x": torch.zeros(3), "bias": BIAS},
            r"shape \(2,\) for 'x', got torch.float32 of shape \(3,\)",
        ),
        ({"x": X.long(), "bias": BIAS}, "got torch.int64"),
    ],
)
def test_a_control_variate_of_other_arrays_is_refused_by_name(
    control: dict[str, torch.Tensor], words: str
) -> None:
    with pytest.raises(FairbloomError, match=f"the record 'control' .*{words}"):
        train_client(
            client(),
            split([0, 0, 0]),
            Terms(server_round=1, control_variates=True),
            {"control": control},
        )


# The round of the state ---------------------------------------------------------------------------


def test_a_client_goes_on_from_the_state_that_was_used_last(subtests: pytest.Subtests) -> None:
    model = np.ones(3)
    control = np.array([0.1, 0.2, 0.3])
    once = client()
    again = client()
    for local, rounds in (
        (once, ((1, 0), (5, 1))),
        (again, ((1, 0), (2, 1), (3, 1), (4, 1), (5, 1))),
    ):
        with subtests.test(local=local, rounds=rounds):
            for number, origin in rounds:
                _, update = reply(
                    local, model, control, number, control_variates=True, state_round=origin
                )
                assert update.metrics["state-round"] == origin
    assert kept(once, 5).tobytes() == kept(again, 5).tobytes()


# Flower's messages --------------------------------------------------------------------------------


def where(**node: Any) -> Context:
    return context(0, config_of(), **{MIN_ROWS: 1, **node})  # its clients have few rows


def tell(
    place: Context, number: int, state_round: int, lives: float = 0.5, **asked: Any
) -> RecordDict:
    """Return what a client replies to a round of SCAFFOLD."""
    terms = {
        "server-round": number,
        "control-variates": True,
        "state-round": state_round,
        "measure": ["step-sum"],
    }
    content = RecordDict(
        {
            "arrays": ArrayRecord(split([1.0, 1.0, 1.0])),
            "config": ConfigRecord({**terms, **asked}),
            "control": ArrayRecord(split([0.1, 0.2, 0.3])),
        }
    )
    message = Message(content, dst_node_id=2, message_type=MessageType.TRAIN, ttl=lives)
    return app(message, place).content


def states(content: RecordDict) -> tuple[float, dict[str, bytes]]:
    arrays = {name: array.data for name, array in content.array_records["arrays"].items()}
    return float(str(content.metric_records["metrics"]["state-round"])), arrays


def test_states_travel_through_flowers_context_and_a_record(subtests: pytest.Subtests) -> None:
    place = where()
    local = client()
    for number in (1, 2, 3):
        with subtests.test(number=number):
            said = states(tell(place, number, number - 1))
            _, update = reply(
                local,
                np.ones(3),
                np.array([0.1, 0.2, 0.3]),
                number,
                control_variates=True,
                state_round=0,
            )
            if number == 1:
                received = ArrayRecord(update.arrays)
                assert said == (0.0, {name: array.data for name, array in received.items()})
            assert said[0] == number - 1
    records = sorted(name for name in place.state.array_records if name.startswith("kept:"))
    assert records == ["kept:rule:2", "kept:rule:3"]


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-30] ^= 4
    file.write_bytes(content)


def of_another_model(**arrays: Any) -> Callable[[Path], None]:
    state = serialize({name: torch.zeros(shape) for name, shape in arrays.items()})
    kept = VersionEntry(json.dumps(["", RULE]), Point(2), state)
    return lambda file: Versions(file.parent).write([kept])


HARM: dict[str, Callable[[Path], None]] = {
    "its folder is lost": Path.unlink,
    "a file is damaged": flip_a_bit,
    "arrays of shapes that broadcast": of_another_model(x=1, bias=()),
    "arrays of other names": of_another_model(y=2),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_a_device_without_its_state_says_that_it_began_again(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    folder = {"state-dir": str(tmp_path / "state")}
    first = states(tell(where(**folder), 1, 0))
    states(tell(where(**folder), 2, 1))
    (file,) = (tmp_path / "state").glob("*/*/2.versions")
    harm(file)
    assert states(tell(where(**folder), 3, 2)) == first


def test_a_failing_disk_is_told_to_the_server_with_a_remedy(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Something else lies in the place of the folder, or of the file."""
    folder = {"state-dir": str(tmp_path)}
    aside = tmp_path / "aside"
    expected = [states(tell(where(**folder), number, number - 1)) for number in (1, 2, 3)]
    (kept,) = filter(Path.is_dir, tmp_path.glob("*/*"))
    for place, number, words, harm, mend in (
        (kept / "2.versions", 3, "cannot be read from its state-dir", Path.mkdir, Path.rmdir),
        (kept, 1, "cannot be written to its state-dir", Path.touch, Path.unlink),
    ):
        with subtests.test(place=place, number=number):
            place.rename(aside)
            harm(place)
            with pytest.raises(ReportableError, match=f"{words} .* give it a folder") as refused:
                tell(where(**folder), number, number - 1)
            assert str(tmp_path) not in reportable(refused.value)
            mend(place)
            aside.rename(place)
            assert states(tell(where(**folder), number, number - 1)) == expected[number - 1]


def test_a_disk_that_is_full_for_a_while_costs_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third write succeeds; to the write that fails last, the file is there, as on NFS."""
    here, there = (where(**{"state-dir": str(tmp_path / name)}) for name in ("here", "there"))
    expected = [states(tell(here, number, number - 1)) for number in (1, 2, 3, 4)]
    refusals = iter(range(2))
    replace = Path.replace

    def refuse(draft: Path, target: Path) -> Path:
        if target.suffix == ".versions" and (refusal := next(refusals, None)) is not None:
            if refusal == 1:
                replace(draft, target)
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return replace(draft, target)

    waits: list[float] = []
    monkeypatch.setattr(
        retry, "time", SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append)
    )
    assert states(tell(there, 1, 0)) == expected[0]
    monkeypatch.setattr(Path, "replace", refuse)
    for number in (2, 3, 4):
        assert states(tell(there, number, number - 1, lives=10.0)) == expected[number - 1]
    assert len(waits) == 2


def test_a_round_that_fails_leaves_no_state_behind() -> None:
    place = where()
    tell(place, 1, 0)
    expected = states(tell(place, 2, 1))
    with pytest.raises(ValueError, match="unknown"):
        tell(place, 3, 2, **{"loss-transform": "cubed"})
    assert states(tell(place, 2, 1)) == expected


# A user's own rule --------------------------------------------------------------------------------


def own(name: str, partition: str = "a", **changes: Any) -> LocalClient:
    return client(partition, client_rule=f"{OWN}{name}", **changes)


def test_an_own_rule_corrects_each_step_from_what_it_has_kept() -> None:
    local = own("Momentum", local_epochs=3)
    model = np.zeros(3)
    velocity = np.zeros(3)
    for number in (1, 2, 3):
        y = model.copy()
        for _ in range(3):
            velocity = 0.9 * velocity + gradient("a", y)
            y -= RATE * velocity
        trained, _ = reply(local, model, number=number)
        np.testing.assert_allclose(trained, y, rtol=1e-12)
        np.testing.assert_allclose(kept(local, number), velocity, rtol=1e-12)
        model = y


def test_its_reply_is_what_it_makes_of_the_trained_model() -> None:
    model = np.ones(3)
    local = own("Half", local_epochs=2)
    trained, _ = reply(client(local_epochs=2), model)
    update = train_client(local, split(model), Terms(server_round=1, measure=("update-norm",)))
    np.testing.assert_allclose(joined(update.arrays), 0.5 * (model + trained), rtol=1e-12)
    assert update.metrics["update-norm"] == pytest.approx(
        0.5 * np.linalg.norm(trained - model), rel=1e-12
    )
    assert local.states.at("rule", 1) == {"steps": torch.tensor(2)}
    reply(local, model, number=2)  # it may keep other arrays than the model's
    assert local.states.at("rule", 2) == {"steps": torch.tensor(4)}


def test_a_rule_that_does_nothing_is_plain_sgd_to_the_bit() -> None:
    model = np.array([0.5, -1.0, 2.0])
    config = run_config(model="mlp", client_rule=f"{OWN}Plain", weight_decay=0.1)
    expected = ask(MessageType.TRAIN, {}, context(config={**config, "client-rule": ""}))
    assert ask(MessageType.TRAIN, {}, context(config=config))["arrays"] == expected["arrays"]
    assert reply(own("Plain"), model)[0].tobytes() == reply(client(), model)[0].tobytes()


def test_a_rule_that_changes_what_it_is_given_harms_nobody(subtests: pytest.Subtests) -> None:
    local = own("Greedy")
    received = split([1.0, 1.0, 1.0])
    control = split([0.1, 0.2, 0.3])
    for number in (1, 2):
        with subtests.test(number=number):
            terms = Terms(server_round=number, measure=("update-norm",), state_round=number - 1)
            assert math.isfinite(
                train_client(local, received, terms, {"control": control}).metrics["update-norm"]
            )
    assert [kept(local, number).tolist() for number in (1, 2)] == [[2.0] * 3, [3.0] * 3]
    assert [joined(arrays).tolist() for arrays in (received, control)] == [
        [1.0] * 3,
        [0.1, 0.2, 0.3],
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NoSuch", "has no NoSuch"),
        ("function", "must be a class"),
        ("Lacking", "with the functions start, correct, finish"),
        ("Asking", "it cannot be made without arguments"),
        ("WithoutBias", "correct returns .*: 'bias' is missing"),
        ("Flat", r"correct returns .* shape \(2,\) for 'x', got torch.float64 of shape \(\)"),
        ("Numbers", r"correct returns .* shape \(2,\) for 'x', got float"),
        ("Nothing", "correct returns must be tensors by name, got NoneType"),
        ("Alone", "finish must return two"),
        ("Stranger", "finish has the client reply .*: 'theirs' is none of them"),
        ("Endless", "finish has the client reply is not finite: 'x' is not"),
        ("KeepsWords", "finish has the client keep must be tensors by name"),
        ("KeepsNaN", "finish has the client keep is not finite: 'sum' is not"),
        ("KeepsByNumber", "finish has the client keep must have words for names"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said_by_its_name(name: str, words: str) -> None:
    with pytest.raises(FairbloomError, match=f"client-rule = '{OWN}{name}': .*{words}"):
        reply(own(name), np.ones(3))
    with pytest.raises(FairbloomError, match=r"client-rule = 'mine': .* my_module:MyRule"):
        reply(client(client_rule="mine"), np.ones(3))
    with pytest.raises(
        FairbloomError, match=f"client-rule = '{OWN}Plain': the run's settings name ''"
    ):
        reply(client(), np.ones(3), client_rule=f"{OWN}Plain")
    reply(own("Plain"), np.ones(3), client_rule=f"{OWN}Plain")


def test_a_rule_corrects_no_personal_model() -> None:
    personal = {"personal_lambda": 0.5, "personal_epochs": 2}
    plain = client()
    ruled = own("Momentum")
    for local in (plain, ruled):
        for number in (1, 2):
            reply(local, np.ones(3), number=number, **personal)
    models = [local.personal(before=3).state for local in (plain, ruled)]
    assert all(models)
    assert joined(models[0]).tobytes() == joined(models[1]).tobytes()


def test_an_unused_parameter_has_a_gradient_of_zero() -> None:
    """It moves by the correction alone, where without one it stays as it is."""
    for correct, expected in (
        (None, 1.0),
        (lambda gradients: [each + 2.0 for each in gradients], 0.8),
    ):
        other = torch.ones(3)
        descend([torch.ones(2), other], [torch.zeros(2), None], [], [], work(), correct=correct)
        torch.testing.assert_close(other, torch.full((3,), expected))


PLAIN_RULE = f"{OWN}Plain"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client-rule": PLAIN_RULE, "momentum": 0.9}, "leave out momentum = 0.9"),
        (
            {"client-rule": PLAIN_RULE, "method": "scaffold"},
            "control-variates = True and client-rule = .* each",
        ),
        (
            {"client-rule": PLAIN_RULE, "method": "feddyn"},
            "dynamic-alpha = 0.01 and client-rule = .* each",
        ),
        ({"client-rule": PLAIN_RULE, "method": "qfedsgd"}, "QFedSGD .* leave client-rule out"),
        ({"client-rule": PLAIN_RULE, "method": "fedfa"}, "leave out client-momentum = 0.9"),
        ({"method": "scaffold", "gradient-clip": 1.0}, "leave out gradient-clip = 1.0"),
        ({"method": "feddyn", "optimizer": "adam"}, "leave out optimizer = 'adam'"),
    ],
)
def test_what_does_not_fit_is_refused_before_round_1(settings: Changes, words: str) -> None:
    with pytest.raises(FairbloomError, match=words):
        Settings.of(settings).check_training()
    last = list(settings)[-1]
    Settings.of({key: value for key, value in settings.items() if key != last}).check_training()


def test_at_most_one_rule_changes_the_loss() -> None:
    assert [rule.__name__ for rule in RULES if "loss" in rule.hooks()] == ["PropFairLoss"]


def test_each_request_has_a_rule() -> None:
    assert {rule.reads for rule in RULES} >= {*REQUESTS}


def test_only_a_corrector_starts_corrects_and_finishes() -> None:
    hooks = {"start", "correct", "finish"}
    assert [
        rule for rule in RULES if rule.hooks() & hooks and not issubclass(rule, Corrector)
    ] == []
