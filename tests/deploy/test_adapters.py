"""Adapters of a transformer on eight real clients give the run in process, in 6 % of the bytes.

One client builds another frozen base than the others, as another machine's random numbers may.
"""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from benchmarks.deployment import Deployment, federation, rounds, wait_for_rounds
from tests.docs.pages import ROOT
from tests.simulation.helpers import assert_same_model

pytestmark = [
    pytest.mark.federation,
    pytest.mark.skipif(
        not (find_spec("transformers") and find_spec("peft")),
        reason="transformers or peft is not installed",
    ),
]

CLINICS = [f"clinic-{number}" for number in range(1, 9)]
ELSEWHERE = CLINICS[-1]
SETTINGS: dict[str, Any] = {
    "task": "my_task:task",
    "model": "my_models:adapter",
    "clients": 8,
    "fraction": 1.0,
    "num-rounds": 3,
    "learning-rate": 0.3,
    "device": "cpu",
}
OTHER_BASE = """

import os

same = whole


def whole(outputs):
    model = same(outputs)
    if os.environ.get("OTHER_BASE"):
        with torch.no_grad():
            model.bert.pooler.dense.weight.add_(0.5)
    return model
"""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation of eight clients with the modules of the page, which their owners allow."""
    home = tmp_path_factory.mktemp("adapters") / "home"
    with federation(home) as runtime:
        for name in ("my_models.py", "my_task.py"):
            shutil.copy(ROOT / "docs" / "apps" / name, home)
        with (home / "my_models.py").open("a") as module:
            module.write(OTHER_BASE)
        runtime.enroll(*CLINICS)
        for name in CLINICS:
            start(runtime, name)
        runtime.wait_for_clients(*CLINICS)
        yield runtime


def start(runtime: Deployment, name: str) -> None:
    (runtime.bundle(name) / "owner.toml").write_text(
        'allow = ["my_task:task", "my_models:adapter"]\n'
    )
    runtime.environment |= {"OTHER_BASE": "1"} if name == ELSEWHERE else {}
    runtime.start_client(name)
    runtime.environment.pop("OTHER_BASE", None)


def in_process(there: Deployment, settings: dict[str, Any], out: Path) -> Path:
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    there.fairbloom("run", *words, "--out", str(out))
    return out


@pytest.mark.parametrize(
    "changes", [{"method": "fedmgdaplus"}, {"method": "qfedavg", "personal-lambda": 0.5}], ids=str
)
def test_eight_clients_with_adapters_give_the_run_in_process(
    there: Deployment, changes: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**SETTINGS, **changes}
    there.submit({**settings, "out": str(tmp_path / "deployed")})
    here = in_process(there, settings, tmp_path / "here")
    assert_same_model(tmp_path / "deployed", here)
    found = rounds(tmp_path / "deployed")
    expected = rounds(here)
    assert {(row["refused"], row["missing"], row["replies_used"]) for row in found} == {
        ("", "", "8")
    }
    assert [row["bytes_received"] for row in found] == [row["bytes_received"] for row in expected]
    assert [row["bytes_sent"] for row in found][1:] == [row["bytes_sent"] for row in expected][1:]
    whole = in_process(
        there, {**settings, "model": "my_models:whole", "num-rounds": 1}, tmp_path / "whole"
    )
    of_all = rounds(whole)[0]
    page = (ROOT / "docs" / "data" / "benchmarks" / "adapters.csv").read_text()
    for column in ("bytes_sent", "bytes_received"):
        assert f"{int(of_all[column]):,}" in page
        assert int(found[1][column]) / int(of_all[column]) == pytest.approx(0.06, abs=0.005)
    model = load_file(tmp_path / "deployed" / "model.safetensors")
    assert "base_model.model.classifier.original_module.weight" in model


def test_another_base_is_replaced_once_and_again_after_a_kill(
    there: Deployment, tmp_path: Path
) -> None:
    there.kill(there.clients[ELSEWHERE])
    start(there, ELSEWHERE)
    there.wait_for_clients(ELSEWHERE)
    out = tmp_path / "run"
    submitted = there.submitting(
        {**SETTINGS, "method": "fedmgdaplus", "num-rounds": 16, "out": str(out)}
    )
    wait_for_rounds(out, 3)
    there.kill(there.clients[ELSEWHERE])
    start(there, ELSEWHERE)
    there.wait_for_clients(ELSEWHERE)
    there.wait_for_end(submitted)
    found = rounds(out)
    refused = {row["refused"] for row in found} - {""}
    # a client that was killed has lost the base, and misses a round
    assert all("offline" in each or "frozen parameters" in each for each in refused)
    used = [int(row["replies_used"]) for row in found]
    assert (used[0], used[-1]) == (8, 8), found
    least = min(int(row["bytes_sent"]) / int(row["participants"]) for row in found)
    with_base = [
        number for number, row in enumerate(found) if int(row["bytes_sent"]) > 8 * 2 * least
    ]
    assert len(with_base) == 2, [
        (row["bytes_sent"], row["participants"], row["replies_used"]) for row in found
    ]
    assert with_base[0] == 0
