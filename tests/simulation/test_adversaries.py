"""Hostile clients: what each attack makes of a reply, that a run continues, and what results leave
out."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import fairbloom
from fairbloom.client.app import app
from fairbloom.client.guard.accepted_settings import accepted_settings
from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.presentation import page_of
from fairbloom.protocol.attacks import ATTACKS, LABEL_FLIP, LOSS, attackers_of
from fairbloom.protocol.settings import RunSettings, SettingsError
from fairbloom.protocol.streams import generator
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.defences import MIXERS
from fairbloom.server.app import main
from fairbloom.simulation.adversaries import UPDATES, Sight
from fairbloom.simulation.grid import InProcessGrid

from .helpers import ROOT, Outcome, run, small, table

HOSTILE = "client-1"
TURNED: dict[str, Any] = {
    **{"attack": "sign-flip", "attack_strength": 0.5, "attackers": HOSTILE},
    **{"fraction": 1.0, "partition": "iid", "num_rounds": 4},
}


def sight(strength: float = 1.0, honest: FloatArray | None = None) -> Sight:
    random = np.random.default_rng(1)
    honest = random.normal(size=(4, 30)) + 1.0 if honest is None else honest
    return Sight(random.normal(size=30), honest, strength, 1, generator(1, "attack", 1, HOSTILE))


def test_each_attack_is_its_formula() -> None:
    seen = sight(2.0)
    mean = seen.honest.mean(axis=0)
    for name, due in {
        "sign-flip": -2.0 * seen.own,
        "scale": 2.0 * seen.own,
        "loss-scale": 2.0 * seen.own,
        "alie": mean + 2.0 * seen.honest.std(axis=0, ddof=1),
        "ipm": -2.0 * mean,
    }.items():
        np.testing.assert_allclose(UPDATES[name](seen), due, atol=1e-12, err_msg=name)
    assert np.linalg.norm(UPDATES["noise"](seen) - seen.own) == pytest.approx(
        2.0 * np.linalg.norm(seen.own)
    )
    np.testing.assert_array_equal(UPDATES["alie"](sight(5.0, np.ones((1, 30)))), np.ones(30))


def test_every_attack_is_known_once_and_on_the_page() -> None:
    assert set(ATTACKS) == {*UPDATES, LOSS, LABEL_FLIP}
    assert {
        name: row["`attack-strength` s"]
        for row in table(ROOT / "docs/data/attacks.csv")
        for name in re.findall(r"`([\w-]+)`", row["`attack`"])
    } == {name: "–" if strength is None else f"{strength:g}" for name, strength in ATTACKS.items()}
    page = (ROOT / "docs/runs.md").read_text()
    assert [name for name in MIXERS if f"`{name}`" not in page] == []


# Who attacks --------------------------------------------------------------------------------------


def test_a_share_of_the_clients_is_drawn_from_the_seed() -> None:
    clients = [str(number) for number in range(10)]

    def drawn(attackers: str | float, seed: int = 1, times: int = 1) -> tuple[str, ...]:
        return attackers_of(
            RunSettings.of({"attack": "ipm", "attackers": attackers, "seed": seed}), clients * times
        )

    assert len(drawn("0.39")) == len(drawn(0.39)) == 3
    assert len(drawn(0.29, times=10)) == 29
    assert drawn("0.39") == drawn("0.39")
    assert len({drawn("0.39", seed) for seed in range(9)}) > 1
    assert drawn("2, 1") == ("1", "2")
    with pytest.raises(
        SettingsError,
        match=r"attackers = '0\.09': that share of 10 clients is less than one: raise it",
    ):
        drawn("0.09")


def test_false_losses_that_no_method_reads_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Table 7 of FedMGDA+: the run says so, and ends as without them."""
    honest = run(tmp_path / "honest", method="fedmgda")
    attack = {"attack": "loss", "attackers": HOSTILE}
    run(tmp_path / "read", method="qfedavg", **attack)
    assert "has no effect" not in caplog.text
    attacked = run(tmp_path / "attacked", method="fedmgda", **attack)
    assert "attack = 'loss' has no effect on FedMGDA, which reads no losses" in caplog.text
    models = [(folder / "model.safetensors").read_bytes() for folder in (honest, attacked)]
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"attack": "scale", "attackers": ",".join(f"client-{k}" for k in range(5))},
            r"attackers = 'client-0,.*' are all clients",
        ),
        (
            {"defence": "nnm", "defence_tolerance": 2, "fraction": 0.8},
            "defence-tolerance = 2: .* 4 clients.* to 1",
        ),
        (
            {"defence": "nnm", "defence_tolerance": 0, "fraction": 0.4},
            "defence-tolerance = 0: .* needs three",
        ),
        (
            {"attack": "scale", "attackers": HOSTILE, "training_clients": "client-0,client-2"},
            "attackers = 'client-1'",
        ),
        (
            {"attack": f"{__name__}:two", "attackers": HOSTILE, "fraction": 1.0},
            r"client-1 something of shape \(2,\)",
        ),
    ],
)
def test_attacks_without_sense_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(FairbloomError, match=words):
        run(tmp_path / "run", **changes)


# Runs ---------------------------------------------------------------------------------------------


def half(seen: Sight) -> FloatArray:
    """An attack of the user's own."""
    return seen.own / 2.0


def two(seen: Sight) -> FloatArray:
    return seen.own[:2]


def test_an_attack_of_the_users_own_changes_the_reply(tmp_path: Path) -> None:
    own: dict[str, Any] = {"attack": f"{__name__}:half", "attackers": HOSTILE}
    runs = [
        run(tmp_path / str(bool(more)), num_rounds=1, fraction=1.0, **more) for more in ({}, own)
    ]
    assert Outcome.of(runs[0]).differences(Outcome.of(runs[1]))


def test_false_losses_are_what_the_tables_have(tmp_path: Path, subtests: pytest.Subtests) -> None:
    honest, lying = (
        table(
            run(tmp_path / str(bool(lie)), method="qfedavg", fraction=1.0, num_rounds=1, **lie)
            / "clients.csv"
        )
        for lie in ({}, {"attack": "loss", "attackers": HOSTILE, "attack_strength": 9.0})
    )
    for row, due in zip(lying, honest, strict=True):
        with subtests.test(row=row, due=due):
            assert float(row["train_loss_before_round"]) == float(
                due["train_loss_before_round"]
            ) + (9.0 if row["client"] == HOSTILE else 0.0)
            assert row["hostile"] == str(int(row["client"] == HOSTILE))


def test_loss_scale_multiplies_update_and_losses(tmp_path: Path) -> None:
    chosen = {"num_rounds": 1, "fraction": 1.0, "method": "qfedavg", "attackers": HOSTILE}
    once, thrice = (
        table(
            run(tmp_path / str(s), attack="loss-scale", attack_strength=s, **chosen) / "clients.csv"
        )
        for s in (1.0, 3.0)
    )
    for row, due in zip(thrice, once, strict=True):
        assert float(row["train_loss_before_round"]) == pytest.approx(
            (3.0 if row["client"] == HOSTILE else 1.0) * float(due["train_loss_before_round"])
        )


def test_before_its_first_round_an_attack_changes_nothing(tmp_path: Path) -> None:
    plain, attacked = (
        table(run(tmp_path / str(bool(more)), num_rounds=2, fraction=1.0, **more) / "clients.csv")
        for more in ({}, {"attack": "scale", "attackers": HOSTILE, "attack_from": 2})
    )
    first = [
        [{k: v for k, v in row.items() if k != "hostile"} for row in rows[:5]]
        for rows in (plain, attacked)
    ]
    assert first[0] == first[1]
    assert attacked[5]["test_loss_of_global_model"] != plain[5]["test_loss_of_global_model"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("method", ["fedfv", "fedmgda", "fedmgdaplus"])
def test_nnm_keeps_accuracy_under_plausible_attacks(tmp_path: Path, method: str, seed: int) -> None:
    """Methods of shortest mixtures need a bound on weights: the shortest one is the attacker's."""
    plain = TURNED | {
        "clients": 4,
        "num_rounds": 50,
        "method": method,
        "batch_size": 32,
        "learning_rate": 0.05,
    }
    plain |= {"seed": seed, "engine": "stacked"}
    defended = {"defence": "nnm"} | ({} if method == "fedfv" else {f"{method}.epsilon": 0.125})
    flipped = defended | {"attack": "label-flip", "attack_strength": 0.0}
    flipped |= {"fedmgdaplus.server-lr": 0.3} if method == "fedmgdaplus" else {}
    honest = {
        "attack": "",
        "attack_strength": 0.0,
        "attackers": "",
        "training_clients": "client-0,client-2,client-3",
    }

    def mean(name: str, **changes: Any) -> float:
        final = fairbloom.load(run(tmp_path / name, **plain | changes)).final()
        return float(np.mean([value for client, value in final.items() if client != HOSTILE]))

    without = mean("without", **honest)
    assert mean("defended", **defended) >= without - 5.0
    assert mean("ipm", attack="ipm", attack_strength=2.0, **defended) >= without - 5.0
    assert mean("flipped", **flipped) >= without - 2.0
    assert mean("undefended") < without - 20.0


# Results ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("runs") / "turned", **TURNED)


def test_results_leave_the_attacker_out_and_say_so(turned: Path) -> None:
    loaded = fairbloom.load(turned)
    assert loaded.attackers == {HOSTILE}
    assert set(loaded.final()) == {f"client-{k}" for k in range(5)} - {HOSTILE}
    assert set(loaded.final(hostile=True)) == {f"client-{k}" for k in range(5)}
    last = table(turned / "rounds.csv")[-1]
    assert float(last["test_accuracy_of_global_model_mean"]) == pytest.approx(
        float(np.mean([*loaded.final().values()]))
    )
    words = "client-1 attacks by sign-flip, as set: all measures are over the honest clients."
    assert words in str(page_of(loaded))


def test_the_rounds_that_a_defence_left_clients_out_of_count(tmp_path: Path) -> None:
    loaded = fairbloom.load(
        run(tmp_path / "run", **TURNED | {"method": "fedavg", "defence": "nnm"})
    )
    assert dict(loaded.left_out())[HOSTILE] == 4
    assert "Left out by the defence nnm, in rounds of 4: client-1 4" in str(page_of(loaded))
    plain = fairbloom.load(run(tmp_path / "plain", **TURNED | {"method": "fedavg"}))
    assert (plain.left_out(), "left_out" in plain.rounds) == ([], False)


def test_deployed_clients_do_not_attack(tmp_path: Path) -> None:
    words = (
        "attack: clients attack on one machine only: leave it out with deployed clients, or use"
        " fairbloom run"
    )
    assert not {"attack", "attackers"}.intersection(
        accepted_settings({"attack": "label-flip", "attackers": HOSTILE})
    )
    settings = dict(small(tmp_path / "run", attack="scale", attackers=HOSTILE).run_config())
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings)
    with pytest.raises(SettingsError, match=words):
        main(InProcessGrid(app, settings, 5), context)
