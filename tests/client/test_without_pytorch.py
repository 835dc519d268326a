"""The clients without PyTorch of docs/flower.md: what methods work with them, and what an error
tells the others."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

import fairbloom
from fairbloom import RunFolder, Score
from fairbloom.errors import FairbloomError
from fairbloom.rounds.round import Round
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import FairStrategy, FedFV, FedProx
from tests.docs.pages import ROOT

CLIENTS = 5
INITIAL = {
    "sklearn_client": {"coef": np.zeros((10, 64)), "intercept": np.zeros(10)},
    "numpy_client": {"w": np.zeros(3)},
}
FILES = {f"{name}.py": (ROOT / "docs" / "apps" / f"{name}.py").read_text() for name in INITIAL}
SCORES = {"sklearn_client": "accuracy", "numpy_client": Score("mae", higher_is_better=False)}


@pytest.fixture(params=sorted(INITIAL))
def module(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """The file of the page, imported."""
    name: str = request.param
    (tmp_path / f"{name}.py").write_text(FILES[f"{name}.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(name)
    del sys.modules[name]


def start(
    module: ModuleType, folder: Path, strategy: FairStrategy, rounds: int = 4, **given: Any
) -> fairbloom.Run:
    arrays = ArrayRecord({name: Array(values) for name, values in INITIAL[module.__name__].items()})
    RunFolder(folder, score=SCORES[module.__name__]).start(
        strategy, InProcessGrid(module.app, {}, CLIENTS), arrays, rounds, **given
    )
    return fairbloom.load(folder)


def test_the_loss_is_that_of_the_received_model_before_the_fit(
    module: ModuleType, tmp_path: Path
) -> None:
    """So in the first round that of the initial one, which is zero."""
    seen: list[Round] = []
    start(module, tmp_path / "run", FedFV(), rounds=2, on_round=seen.append)
    losses = [[report["loss-before"] for report in each.train_metrics.values()] for each in seen]
    if module.__name__ == "sklearn_client":
        np.testing.assert_allclose(losses[0], np.log(10))
    else:
        sites = [
            module.examples(context)
            for context in InProcessGrid(module.app, {}, CLIENTS).contexts.values()
        ]
        np.testing.assert_allclose(losses[0], [np.mean(y[:50] ** 2) for _, y in sites])
    assert max(losses[1]) < max(losses[0])


def test_a_term_is_taken_by_the_client_that_honours_it(module: ModuleType, tmp_path: Path) -> None:
    if module.__name__ == "sklearn_client":
        with pytest.raises(
            FairbloomError,
            match=r"proximal-mu = 1\.0.*lists 'proximal-mu' under 'honours'.*without PyTorch as"
            r" docs/flower\.md shows",
        ):
            start(module, tmp_path / "run", FedProx(mu=1.0, unused_rounds=1))
        return
    lengths = []
    for mu in (0.1, 10.0):
        run = start(module, tmp_path / f"{mu}", FedProx(mu=mu), rounds=1)
        lengths.append(float(np.linalg.norm(run.arrays()["w"])))
    assert lengths[1] < lengths[0]
