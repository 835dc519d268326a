"""Clients that are not in training: how they are drawn, and that no round asks them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from fairbloom.errors import FairbloomError
from fairbloom.experiments.api import load
from fairbloom.protocol.scores import LOSS_SCORE
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator
from fairbloom.server.run_folder.files import HELD_OUT, MODEL
from fairbloom.server.settings import Settings
from fairbloom.simulation.clients import HeldOutClients, LocalClient, LocalClients
from fairbloom.simulation.run import simulate
from fairbloom.tasks import load_task


def config(**settings: Any) -> dict[str, Any]:
    given = {name.replace("_", "-"): value for name, value in settings.items()}
    return {"task": "digits", "clients": 8, "num-rounds": 2, "held-out-clients": 0.3, **given}


def write_sites(folder: Path, sites: list[str]) -> Path:
    folder.mkdir()
    for place, site in enumerate(sites):
        rows = [f"{10 * row + place},{site},{'yes' if row % 2 else 'no'}" for row in range(12)]
        Path(folder, f"{site}.csv").write_text("age,ward,target\n" + "\n".join(rows) + "\n")
    return folder


@pytest.mark.parametrize(("share", "number"), [(0.01, 1), (0.29, 29), (0.999, 99)])
def test_the_draw_is_the_documented_one(share: float, number: int) -> None:
    every = load_task(config(clients=100, held_out_clients=0.0)).clients
    task = load_task(config(clients=100, held_out_clients=share))
    places = generator(0, "held-out").permutation(100)[:number]
    assert task.held_out == tuple(every[place] for place in sorted(places))
    assert task.clients == tuple(name for name in every if name not in task.held_out)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"held_out_clients": 1.0}, r"held-out-clients = 1.0: allowed is float in \[0, 1\)"),
        ({"method": "local"}, "Local trains no whole common model.*leave it out"),
        ({"personal_parameters": "head"}, "FedAvg trains no whole common model.*leave it out"),
    ],
)
def test_what_has_no_common_model_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(FairbloomError, match=words):
        Settings.of(config(**given))


def test_a_client_must_be_left_and_devices_take_part() -> None:
    with pytest.raises(FairbloomError, match=r"held-out-clients = 0\.3.*only the client client-0"):
        load_task(config(clients=1))
    with pytest.raises(FairbloomError, match=r"held-out-clients = 0.3: .*training-clients"):
        Settings.of(config()).check_deployed()


def test_the_final_model_is_tested_as_by_hand(tmp_path: Path) -> None:
    simulate(Settings.of(config(out=str(tmp_path / "a"))))
    task = load_task(config())
    model = task.model()
    final = MODEL.read(tmp_path / "a")
    model.load_state_dict({name: torch.from_numpy(array) for name, array in final.items()})
    found = HELD_OUT.read(tmp_path / "a")
    assert [*found] == ["not in training"]
    assert tuple(found["not in training"]) == task.held_out
    for name, scores in found["not in training"].items():
        inputs, targets = task.splits(name).test[slice(0, None)]
        outputs = model.eval()(inputs).detach()
        right = 100.0 * (outputs.argmax(dim=1) == targets).double().mean()
        assert scores["accuracy"] == pytest.approx(float(right))
        assert scores["loss"] == pytest.approx(float(cross_entropy(outputs, targets)), rel=1e-5)
    assert not set(task.held_out) & set((tmp_path / "a/clients.csv").read_text().split(","))


def test_few_rows_are_fine_tuned_on(tmp_path: Path) -> None:
    simulate(Settings.of(config(fine_tune_epochs=2, out=str(tmp_path / "a"))))
    found = HELD_OUT.read(tmp_path / "a")
    assert [*found] == ["not in training", "not in training, 5 rows", "not in training, 20 rows"]
    assert len({json.dumps(each) for each in found.values()}) == 3


@pytest.mark.parametrize("single", [False, True])
def test_training_equals_that_of_the_others_alone(single: bool, tmp_path: Path) -> None:
    sites = [f"site{letter}" for letter in "abcde"]
    shared: dict[str, Any] = {"task": "csv", "clients": 0, "model": "logistic"}
    data = write_sites(tmp_path / "all", sites)
    held = load_task(config(**shared, data_dir=str(data))).held_out
    others = write_sites(tmp_path / "others", sites)
    for name in held:
        (others / f"{name}.csv").unlink()
    if single:
        shared["csv.client"] = "site"
        for folder in (data, others):
            rows = [
                f"{path.stem},{line}"
                for path in sorted(folder.glob("*.csv"))
                for line in path.read_text().splitlines()[1:]
            ]
            for path in folder.glob("*.csv"):
                path.unlink()
            text = "site,age,ward,target\n" + "\n".join(rows) + "\n"
            (folder / "all.csv").write_text(text)
    ends = []
    for folder, share in ((data, 0.3), (others, 0.0)):
        out = tmp_path / f"run-{folder.name}"
        given = config(
            **shared, data_dir=str(folder), held_out_clients=share, fraction=1.0, out=str(out)
        )
        simulate(Settings.of(given))
        ends.append(((out / "schema.toml").read_text().split("\n", 1)[1], MODEL.read(out)))
    assert ends[0][0] == ends[1][0]
    assert held
    assert not any(name in ends[0][0] for name in held)
    assert all((ends[0][1][name] == array).all() for name, array in ends[1][1].items())


def test_a_lost_run_scores_them_when_it_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [Settings.of(config(out=str(tmp_path / name))) for name in "ab"]
    simulate(settings[0])

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fairbloom.simulation.run.HeldOutClients", fail)
        with pytest.raises(KeyboardInterrupt):
            simulate(settings[1])
    assert not MODEL.exists_in(tmp_path / "b")
    simulate(settings[1])
    assert HELD_OUT.read(tmp_path / "b") == HELD_OUT.read(tmp_path / "a")


def test_without_the_setting_nothing_is_written(tmp_path: Path) -> None:
    simulate(Settings.of(config(held_out_clients=0.0, out=str(tmp_path / "a"))))
    assert not HELD_OUT.exists_in(tmp_path / "a")
    assert RunSettings.of({}).held_out_clients == 0.0


def test_no_round_asks_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.of(config(out=str(tmp_path / "a"), engine="loop"))
    held = load_task(settings).held_out
    asked = set[str]()
    local = LocalClients.local

    def check(pool: LocalClients, name: str) -> LocalClient:
        asked.add(name)
        assert isinstance(pool, HeldOutClients) == (name in held)
        return local(pool, name)

    monkeypatch.setattr(LocalClients, "local", check)
    simulate(settings)
    assert asked > {*held}


def test_a_few_rows_are_fine_tuned_on_as_by_hand(tmp_path: Path) -> None:
    given = config(model="logistic", fine_tune_epochs=2, learning_rate=0.1, out=str(tmp_path / "a"))
    simulate(Settings.of(given))
    for name, loss in load(tmp_path / "a").held_out("not in training, 5 rows", LOSS_SCORE).items():
        module = load_task(given).model()
        final = MODEL.read(tmp_path / "a")
        module.load_state_dict({key: torch.from_numpy(array) for key, array in final.items()})
        rows = load_task(given).splits(name)
        step = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            step.zero_grad()
            inputs, targets = rows.train[slice(0, 5)]
            cross_entropy(module(inputs), targets).backward()
            step.step()
        inputs, targets = rows.test[slice(0, None)]
        assert loss == pytest.approx(
            float(cross_entropy(module(inputs).detach(), targets)), rel=1e-4
        )
