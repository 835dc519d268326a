"""Clients that are not in training: how they are drawn, and that no round asks them."""

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import Mock

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

from .helpers import table


def config(**settings: Any) -> dict[str, Any]:
    given = {name.replace("_", "-"): value for name, value in settings.items()}
    return {"task": "digits", "clients": 8, "num-rounds": 2, "held-out-clients": 0.3, **given}


def run(out: Path, **settings: Any) -> Path:
    return simulate(Settings.of(config(out=str(out), **settings)))


SITES = ("sitea", "siteb", "sitec", "sited", "sitee")

FINISHED: dict[str, Any] = {"fine_tune_epochs": 2, "batch_size": 20, "learning_rate": 0.1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run; no test changes it."""
    return run(tmp_path_factory.mktemp("run") / "a", **FINISHED)


def write_sites(folder: Path, sites: Iterable[str], single: bool) -> Path:
    """Write a table of each site, or a single one; each site has a category of its own."""
    folder.mkdir()
    tables = {
        site: [
            f"{site},{site if row % 3 else 'any'},{10 * row + SITES.index(site)},"
            f"{'yes' if row % 2 else 'no'}\n"
            for row in range(12)
        ]
        for site in sites
    }
    if single:
        tables = {"all": [*chain(*tables.values())]}
    for name, rows in tables.items():
        (folder / f"{name}.csv").write_text("site,ward,age,target\n" + "".join(rows))
    return folder


@pytest.mark.parametrize(("share", "number"), [(0.01, 1), (0.29, 29), (0.999, 99)])
def test_the_draw_is_the_documented_one(share: float, number: int) -> None:
    every = load_task(config(clients=100, held_out_clients=0.0)).clients
    task = load_task(config(clients=100, held_out_clients=share))
    assert task.held_out == tuple(
        every[place] for place in sorted(generator(0, "held-out").permutation(100)[:number])
    )
    assert task.clients == tuple(name for name in every if name not in task.held_out)


@pytest.mark.parametrize(
    ("given", "check", "words"),
    [
        (
            *({"held_out_clients": 1.0}, Settings.of),
            r"held-out-clients = 1.0: allowed is float in \[0, 1\)",
        ),
        ({"method": "local"}, Settings.of, "Local trains no whole common model.*leave it out"),
        (
            *({"personal_parameters": "head"}, Settings.of),
            "FedAvg trains no whole common model.*leave it out",
        ),
        ({"clients": 1}, load_task, r"held-out-clients = 0\.3.*only the client client-0"),
        (
            *({}, lambda settings: Settings.of(settings).check_deployed()),
            r"held-out-clients = 0.3: .*training-clients",
        ),
    ],
)
def test_clients_that_cannot_be_held_out_are_refused(
    given: dict[str, Any], check: Callable[[Any], object], words: str
) -> None:
    with pytest.raises(FairbloomError, match=words):
        check(config(**given))


# By kind of scores, the rows that the final model is fine-tuned on: a batch at most.
KINDS = {"not in training": 0, "not in training, 5 rows": 5, "not in training, 20 rows": 20}


@pytest.mark.parametrize("kind", KINDS)
def test_the_final_model_is_tested_as_by_hand(finished: Path, kind: str) -> None:
    task = load_task(config(**FINISHED))
    found = HELD_OUT.read(finished)
    assert [*found] == [*KINDS]
    assert tuple(found[kind]) == task.held_out
    losses = load(finished).held_out(kind, LOSS_SCORE)
    final = {name: torch.from_numpy(array) for name, array in MODEL.read(finished).items()}
    for name, scores in found[kind].items():
        model = task.model()
        model.load_state_dict(final)
        step = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, targets = task.splits(name).train[slice(0, KINDS[kind])]
        for _ in range(2 if KINDS[kind] else 0):
            step.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            step.step()
        inputs, targets = task.splits(name).test[slice(0, None)]
        outputs = model.eval()(inputs).detach()
        assert scores["accuracy"] == pytest.approx(
            float(100.0 * (outputs.argmax(dim=1) == targets).double().mean())
        )
        assert losses[name] == pytest.approx(float(cross_entropy(outputs, targets)), rel=1e-5)


@pytest.mark.parametrize("given", [{}, {"csv.client": "site"}], ids=["files", "one file"])
def test_training_equals_that_of_the_others_alone(given: dict[str, Any], tmp_path: Path) -> None:
    shared = {"task": "csv", "clients": 0, "model": "logistic", "fraction": 1.0, **given}
    data = write_sites(tmp_path / "all", SITES, bool(given))
    held = load_task(config(**shared, data_dir=str(data))).held_out
    others = write_sites(
        tmp_path / "others", [site for site in SITES if site not in held], bool(given)
    )
    runs = [
        run(tmp_path / f"run-{share}", **shared, data_dir=str(folder), held_out_clients=share)
        for folder, share in ((data, 0.3), (others, 0.0))
    ]
    schemas = [(run / "schema.toml").read_text().split("\n", 1)[1] for run in runs]
    assert schemas[0] == schemas[1]
    assert HELD_OUT.read(runs[0])["not in training"].keys() == {*held} != set()
    assert load(runs[0]).held_out() == {}  # each has a category of its own
    assert not any(name in schemas[0] for name in held)
    models = [MODEL.read(run) for run in runs]
    assert all((models[0][name] == array).all() for name, array in models[1].items())


def test_a_lost_run_scores_them_when_it_is_continued(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.of(config(**FINISHED, out=str(tmp_path / "b")))
    lost = Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch:
        patch.setattr("fairbloom.simulation.run.HeldOutClients", lost)
        with pytest.raises(KeyboardInterrupt):
            simulate(settings)
    assert not MODEL.exists_in(tmp_path / "b")
    simulate(settings)
    assert HELD_OUT.read(tmp_path / "b") == HELD_OUT.read(finished)


def test_without_the_setting_nothing_is_written(tmp_path: Path) -> None:
    assert not HELD_OUT.exists_in(run(tmp_path / "a", held_out_clients=0.0))
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
    assert [*HELD_OUT.read(tmp_path / "a")] == ["not in training"]
    assert not {*held} & {row["client"] for row in table(tmp_path / "a/clients.csv")}
