"""The apps in docs/apps do what the page on Flower apps says of them.

A device refuses none of the work that pages and recipes ask for.
"""

import ast
import copy
import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from fairbloom import load
from fairbloom.client.guard.disclosure import check_influence
from fairbloom.client.guard.limits import DEFAULT_MIN_ROWS
from fairbloom.client.plan import global_work
from fairbloom.errors import FairbloomError
from fairbloom.experiments.recipe import load_recipe, names
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.settings import Settings
from tests.commands import forked

from .pages import PAGES, ROOT, blocks
from .reader import follow

APPS = ROOT / "docs" / "apps"
START = """
import sys
import {app} as module
from digits_app import net
from fairbloom import RunFolder
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FedFV
from flwr.app import ArrayRecord
model = module.Lit() if hasattr(module, "Lit") else net()
grid = InProcessGrid(module.app, {{}}, clients=4)
folder = RunFolder(sys.argv[1], score="eval_acc")
folder.start(FedFV(), grid, ArrayRecord(model.state_dict()), num_rounds=int(sys.argv[2]))
"""

needs_libraries = pytest.mark.skipif(
    not (find_spec("opacus") and find_spec("pytorch_lightning")),
    reason="Opacus or Lightning is not installed",
)
needs_transformers = pytest.mark.skipif(
    not (find_spec("transformers") and find_spec("peft")),
    reason="transformers or peft is not installed",
)


@pytest.fixture
def apps(tmp_path: Path) -> Path:
    """A folder with the apps."""
    shutil.copytree(APPS, tmp_path, dirs_exist_ok=True)
    return tmp_path


def train(apps: Path, app: str, out: str, rounds: int) -> str:
    """Run an app; return what it has logged where it fails."""
    command = [sys.executable, "-c", START.format(app=app), out, str(rounds)]
    done = subprocess.run(command, cwd=apps, capture_output=True, text=True, timeout=600)
    return done.stderr if done.returncode else ""


@pytest.mark.slow
@needs_libraries
def test_opacus_and_lightning_train_fair_clients(apps: Path, subtests: pytest.Subtests) -> None:
    """A run by Lightning that goes on ends as one in one go; noise of Opacus must not be seeded."""
    for app in ("lightning_app", "opacus_app"):
        with subtests.test(app=app):
            assert train(apps, app, app, 10) == ""
            run = load(apps / app)
            assert min(run.final().values()) > 0.5
            assert run.rounds["clients_scored"].eq(4).all()
    for rounds in (4, 10):
        with subtests.test(rounds=rounds):
            assert train(apps, "lightning_app", "again", rounds) == ""
    assert load(apps / "again").final() == load(apps / "lightning_app").final()
    opacus = apps / "opacus_app.py"
    opacus.write_text(opacus.read_text().replace(", seeded=False", ""))
    assert "seeded=False" in train(apps, "opacus_app", "seeded", 1)


@pytest.mark.slow
@needs_libraries
@pytest.mark.filterwarnings("ignore::UserWarning:opacus")
def test_noise_of_opacus_hides_a_row_from_its_update(
    apps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(apps)
    app = importlib.import_module("opacus_app")
    row = torch.rand(1, 64)
    data = TensorDataset(row, torch.tensor([3]))
    loader = DataLoader(data, batch_size=1)

    def read(trained: nn.Linear, received: nn.Linear) -> float:
        """Return the error of a reading of the only row, relative to the row."""
        with torch.no_grad():
            bias = trained.bias - received.bias
            place = bias.abs().argmax()
            reading = (trained.weight - received.weight)[place] / bias[place]
            return float((reading - row).norm() / row.norm())

    received = nn.Linear(64, 10)
    plain = copy.deepcopy(received)
    optimizer = SGD(plain.parameters(), lr=0.5)
    cross_entropy(plain(row), data.tensors[1]).backward()
    optimizer.step()
    assert read(plain, received) < 1e-3
    private = copy.deepcopy(received)
    app.train_fn(private, loader)
    assert read(private, received) > 1.0


@pytest.mark.slow
@needs_transformers
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers
def test_an_adapters_round_takes_six_per_cent(
    apps: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    (block,) = (
        each
        for each in blocks("docs/flower.md")
        if each.section == "Adapters and frozen parameters"
    )
    (apps / "page.md").write_text(f"```sh\n{block.text}```\n")
    done = forked(apps, follow, str(apps / "page.md"))
    assert done.returncode == 0, done.stderr[-5000:]
    adapter = load(apps / "runs" / "adapter")
    whole = load(apps / "runs" / "whole")
    for column in ("bytes_sent", "bytes_received"):
        with subtests.test(column=column):
            assert ((adapter.rounds[column] / whole.rounds[column][0]).round(2) == 0.06).all()
    clinic = adapter.clients[adapter.clients["client"] == "clinic-1"].set_index("round")[
        adapter.score.column()
    ]
    assert clinic[6] > clinic[1]
    monkeypatch.syspath_prepend(apps)
    model = adapter.predictor(trust=True).module
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        outputs = model(input_ids=ids).logits
        merged = model.merge_and_unload()
        assert torch.allclose(merged(input_ids=ids).logits, outputs, atol=1e-5)
    assert type(merged).__name__ == "BertForSequenceClassification"


# Numbers of training rows, so that a last batch has any number of them.
ROWS = range(DEFAULT_MIN_ROWS, 80)

# The settings on which the limits depend, besides parameters of the method.
OF_STEPS = ("batch-size", "learning-rate", "momentum", "weight-decay", "optimizer", "method")


def check(config: dict[str, Any]) -> None:
    """Raise ReportableError if a device would refuse the work of a run with these settings."""
    settings = Settings.of(config)
    terms = settings.strategy().terms(1)
    work = global_work(RunSettings.of(settings.run_config()), terms)
    for rows in ROWS:
        check_influence(work, terms, rows, DEFAULT_MIN_ROWS)


def settings_of_page(page: str) -> Iterator[dict[str, Any]]:
    """Yield the settings of steps in each command of a page, one command at a time."""
    for line in re.findall(
        r"fairbloom [a-z][^\n`]*", re.sub(r"\\\n *", "", (ROOT / page).read_text())
    ):
        given = dict(re.findall(r"--set (\S+?)=([^\s`]+)", line))
        chosen = {key: value_of(given[key]) for key in OF_STEPS if key in given}
        if chosen and ":" not in "".join(map(str, chosen.values())):  # no import string
            yield chosen


def value_of(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@pytest.mark.parametrize("name", names())
def test_a_device_takes_the_work_of_recipes(name: str) -> None:
    recipe = load_recipe(name)
    for row in recipe.rows:
        for point in recipe.points(row):
            given = recipe.settings | row.settings | point
            method = str(given.get("method", "fedavg"))
            check(
                {
                    key: value
                    for key, value in given.items()
                    if key in OF_STEPS or key.startswith(f"{method}.")
                }
            )


def test_a_device_takes_the_work_of_pages(subtests: pytest.Subtests) -> None:
    found = 0
    for page in PAGES:
        for settings in settings_of_page(page):
            with subtests.test(page=page, settings=settings):
                found += 1
                check(settings)
    assert found > 3


def test_other_work_is_refused() -> None:
    with pytest.raises(FairbloomError, match=r"above 0\.5"):
        check({"method": "fedprox", "fedprox.mu": 6.0, "learning-rate": 0.1})
