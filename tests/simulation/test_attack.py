"""False reports: attacked runs equal a loop that scales by hand, and evaluations stay true."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import fairbloom
from fairbloom.client.guard.accepted_settings import accepted_settings
from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.presentation import page_of
from fairbloom.logs import log
from fairbloom.protocol.attacks import find_attackers
from fairbloom.protocol.names import LOSS_BEFORE, NUM_EXAMPLES, TRAIN_LOSS
from fairbloom.protocol.settings import RunSettings, SettingsError
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.server.settings import Settings
from fairbloom.simulation.choice import choose
from fairbloom.simulation.clients import LocalClients
from fairbloom.tasks import load_task
from fairbloom.tasks.models import arrays_of
from tests.strategies.reference import Seen, expected_step

from .helpers import model_bytes, run, small, table

LIAR = "client-1"
ATTACKED: dict[str, Any] = {"fraction": 1.0, "partition": "iid", "attackers": LIAR}
ROUNDS = 3


def engine_of(settings: Settings) -> LocalClients:
    return choose(settings).clients(settings.strategy(), settings)


def first_model(clients: LocalClients) -> Model:
    return arrays_of(load_task(clients.settings).model().state_dict())


def flat(model: Model) -> FloatArray:
    return np.concatenate([array.ravel() for array in model.values()]).astype(np.float64)


def shaped(vector: FloatArray, like: Model) -> Model:
    ends = np.cumsum([array.size for array in like.values()])[:-1]
    parts = np.split(vector, ends)
    return {
        name: part.reshape(array.shape).astype(array.dtype)
        for part, (name, array) in zip(parts, like.items(), strict=True)
    }


def scaled_by_hand(settings: Settings, factor: float, parameters: dict[str, float]) -> Model:
    """Return the model after ROUNDS rounds of honest clients, of which one's losses and update are
    multiplied here, and a step by the formula of the paper."""
    clients = engine_of(settings)
    method = settings.strategy()
    model = first_model(clients)
    history: list[Seen] = []
    for number in range(1, ROUNDS + 1):
        terms = replace(method.terms(number), measure=tuple(sorted(method.needs)), seed=method.seed)
        replies = clients.train(clients.online(1), model, terms)
        factors = {name: factor if name == LIAR else 1.0 for name in replies.names}
        rows = dict(zip(replies.names, np.array(replies.updates.matrix, np.float64), strict=True))
        seen = Seen(
            number,
            ROUNDS,
            {name: factors[name] * row for name, row in rows.items()},
            {
                name: factors[name] * each.get(LOSS_BEFORE, 1)
                for name, each in replies.metrics.items()
            },
            {name: each[NUM_EXAMPLES] for name, each in replies.metrics.items()},
        )
        history.append(seen)
        step = expected_step(settings.method, parameters, history)
        model = shaped(flat(model) - step, model)
    return model


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("method", "parameters", "is_harmed"),
    [
        ("fedmgdaplus", {"epsilon": 1.0, "server_lr": 1.0}, False),  # it normalises updates
        ("fedmgda", {"epsilon": 0.2}, True),
        ("qfedavg", {"q": 2.0, "lipschitz": 10.0}, True),
    ],
)
def test_loss_scale_equals_a_loop_that_scales_by_hand(
    tmp_path: Path, engine: str, method: str, parameters: dict[str, float], is_harmed: bool
) -> None:
    """Weights by the norms and products of the honest updates would be others."""
    own = {f"{method}.{key.replace('_', '-')}": value for key, value in parameters.items()}
    common = {"fraction": 1.0, "partition": "iid", "engine": engine, "method": method, **own}
    common |= {"num_rounds": ROUNDS}
    honest = load_file(run(tmp_path / "honest", **common) / "model.safetensors")
    for factor in (0.1, 3.0):
        due = scaled_by_hand(small(tmp_path / "hand", **common), factor, parameters)
        lies = {"attack": "loss-scale", "attackers": LIAR, "attack_strength": factor}
        found = load_file(run(tmp_path / str(factor), **common, **lies) / "model.safetensors")
        for name, array in due.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6)
            assert (np.abs(honest[name] - found[name]).max() > 1e-4) == is_harmed


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_bias_changes_reported_losses_alone(tmp_path: Path, engine: str) -> None:
    """What is recorded of evaluations stays true."""
    common = ATTACKED | {"engine": engine, "method": "qfedavg", "num_rounds": 1}
    lies = {"attack": "loss", "attack_strength": 9.0}
    honest = table(run(tmp_path / "honest", **common | {"attackers": ""}) / "clients.csv")
    lying = table(run(tmp_path / "lying", **common, **lies) / "clients.csv")
    for before, after in zip(honest, lying, strict=True):
        bias = 9.0 if after["client"] == LIAR else 0.0
        due = float(before["train_loss_before_round"]) + bias
        assert float(after["train_loss_before_round"]) == due
        assert before["test_examples"] == after["test_examples"]
    column = "test_loss_of_global_model"
    assert max(float(row[column]) for row in lying) < 9.0


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_the_probe_of_drfa_gets_false_losses(tmp_path: Path, engine: str) -> None:
    common = {"fraction": 1.0, "partition": "iid", "engine": engine, "method": "drfa"}
    honest, lying = (
        engine_of(small(tmp_path / "out", **common, **lies))
        for lies in ({}, {"attack": "loss", "attackers": LIAR, "attack_strength": 5.0})
    )
    model = first_model(honest)
    terms = Terms(server_round=1, measure=(TRAIN_LOSS,))
    names = honest.online(1)
    true = honest.probe(names, model, terms).metrics
    false = lying.probe(names, model, terms).metrics
    recorded = lying.evaluate(names, model, terms, names).metrics
    for name in names:
        bias = 5.0 if name == LIAR else 0.0
        assert false[name][TRAIN_LOSS] == true[name][TRAIN_LOSS] + bias
        assert recorded[name] == true[name]


def test_second_models_are_scaled_with_the_updates(tmp_path: Path) -> None:
    common = {"fraction": 1.0, "partition": "iid", "method": "drfa"}
    honest, lying = (
        engine_of(small(tmp_path / "out", **common, **lies))
        for lies in ({}, {"attack": "loss-scale", "attackers": LIAR, "attack_strength": 2.0})
    )
    model = first_model(honest)
    terms = replace(honest.method.terms(1), measure=tuple(honest.method.needs))
    names = honest.online(1)
    true, false = (clients.train(names, model, terms) for clients in (honest, lying))
    assert true.second is not None
    assert false.second is not None
    for before, after in ((true.updates, false.updates), (true.second, false.second)):
        for row, name in enumerate(names):
            factor = 2.0 if name == LIAR else 1.0
            np.testing.assert_array_equal(after.matrix[row], factor * before.matrix[row])


def test_a_scaled_update_beyond_numbers_is_refused(tmp_path: Path) -> None:
    lies = {"attack": "loss-scale", "attack_strength": 1e12, "learning_rate": 1e28}
    folder = run(tmp_path / "run", **ATTACKED, **lies, num_rounds=1, update_limit=np.inf)
    (row,) = table(folder / "rounds.csv")
    assert f"{LIAR}: its update is beyond the range" in row["refused"]


def test_false_losses_that_no_method_reads_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Table 7 of FedMGDA+, the run says so, and ends as without them."""
    caplog.set_level("INFO", log.name)
    honest = run(tmp_path / "honest", method="fedmgda")
    lies = {"attack": "loss", "attackers": LIAR}
    run(tmp_path / "read", method="qfedavg", **lies)
    assert "change nothing" not in caplog.text
    attacked = run(tmp_path / "attacked", method="fedmgda", **lies)
    assert "FedMGDA reads no losses: false losses change nothing" in caplog.text
    assert model_bytes(honest) == model_bytes(attacked)


# Who attacks --------------------------------------------------------------------------------------


def test_a_share_of_the_clients_is_drawn_from_the_seed() -> None:
    clients = [str(number) for number in range(10)]

    def drawn(attackers: str | float, seed: int = 1, times: int = 1) -> frozenset[str]:
        settings = RunSettings.of({"attack": "loss", "attackers": attackers, "seed": seed})
        return find_attackers(settings, clients[:10] if times == 1 else [*map(str, range(100))])

    assert len(drawn("0.39")) == len(drawn(0.39)) == 3
    assert len(drawn(0.29, times=10)) == 29
    assert drawn("0.39") == drawn("0.39")
    assert len({drawn("0.39", seed) for seed in range(9)}) > 1
    assert drawn("2, 1") == {"1", "2"}
    with pytest.raises(
        SettingsError,
        match=r"attackers = '0\.09': that share of 10 clients is less than one: raise it",
    ):
        drawn("0.09")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attack": "sign-flip"}, "attack = 'sign-flip'.*loss-scale"),
        ({"attack": "loss", "attackers": ""}, "attack = 'loss' has no effect: say who attacks"),
        ({"attack": "", "attackers": LIAR}, "attackers = 'client-1' has no effect: name an attack"),
        ({"attack": "", "attackers": "", "attack_strength": 2.0}, "attack-strength.*no effect"),
        ({"attackers": "1.0"}, "attackers = '1.0': a share must be above 0 and below 1"),
        ({"attackers": "0.0"}, "attackers = '0.0': a share must be above 0 and below 1"),
        ({"attackers": "client-9"}, "attackers names 'client-9', which is not a client"),
        ({"training_clients": "client-0,client-2"}, "client-1: none of them trains"),
        ({"pooled": True, "fraction": 0.0}, "attack = 'loss': with pooled = true"),
    ],
)
def test_attacks_without_sense_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(FairbloomError, match=words):
        run(tmp_path / "run", **ATTACKED | {"attack": "loss"} | changes)


def test_accounts_and_deployed_clients_do_not_attack(tmp_path: Path) -> None:
    lies = {"attack": "loss", "attackers": LIAR}
    account = {"privacy.mode": "simulated", "privacy.epsilon": "3"}
    with pytest.raises(SettingsError, match="attack = 'loss': what a privacy account releases"):
        small(tmp_path / "run", **lies, **account)
    with pytest.raises(SettingsError, match="attack = 'loss': clients attack in one process only"):
        small(tmp_path / "run", **lies).check_deployed()
    assert not {"attack", "attackers"}.intersection(accepted_settings(lies))


@pytest.mark.parametrize(
    ("lies", "words"),
    [
        ({"attack": "loss", "attack_strength": 10_000.0}, "client-1: losses + 10,000"),
        ({"attack": "loss-scale"}, "client-1: losses and updates × 10"),
        ({"attack": "loss-scale", "attackers": "0.25", "seed": 3}, ": losses and updates × 10"),
        ({"attackers": ""}, ""),
    ],
)
def test_show_says_who_reports_falsely(tmp_path: Path, lies: dict[str, Any], words: str) -> None:
    folder = run(tmp_path / "run", **ATTACKED | {"num_rounds": 1} | lies)
    page = page_of(fairbloom.load(folder))
    facts = dict(page.facts)
    assert ("false reports" in facts) == bool(words)
    assert facts.get("false reports", "").endswith(words)
