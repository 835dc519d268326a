"""What the owner of a device allows, no run passes."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from fairbloom.client.guard.accepted_settings import SettingRefusedError, work_settings
from fairbloom.client.guard.disclosure import MAX_RATE
from fairbloom.client.guard.initial_weights import TOLERANCE, ULP
from fairbloom.client.guard.limits import Limits
from fairbloom.client.guard.questions import A_ROUND
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings
from fairbloom.tasks import TASKS
from tests.checkout import ROOT

OWNER = {
    "tasks": ["csv"],
    "settings": {"seed": [0, 1], "test-share": 0.2, "method": "fedavg", "csv": {"kind": "auto"}},
}

PASSED: dict[str, Any] = {
    "task": "digits",
    "method": "afl",
    "seed": 7,
    "test-share": 0.99,
    "csv.kind": "regression",
}


def run(**settings: Any) -> dict[str, Any]:
    return Settings.of({"task": "csv", **settings}).run_config()


@pytest.mark.parametrize(("key", "value"), PASSED.items())
def test_a_run_that_passes_a_limit_is_refused_by_name(key: str, value: Any) -> None:
    limits = Limits.of(OWNER)
    limits.check(run(seed=1))
    limits.check({"task": "csv"})  # what a run leaves out has its default
    with pytest.raises(SettingRefusedError, match=re.escape(f"{key} = {value!r}")):
        limits.check(run(**{key: value}))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        *(({"row": 5}, "row = 5"), ({"rows": 0}, "rows = 0"), ({"rows": "20"}, "rows = '20'")),
        *(
            ({"rows": True}, "rows = True"),
            ({"tasks": "csv"}, "tasks = 'csv'"),
            ({"schema": "all"}, "schema = 'all'"),
        ),
        *(({"round-seconds": -1}, "round-seconds = -1"), ({"settings": 3}, "settings = 3")),
        *(({"memory": -1}, "memory = -1"), ({"memory": "8 GB"}, "memory = '8 GB'")),
        *(({"settings": {"test-shar": 0.2}}, "test-shar"), ({"settings": {"csv": 1}}, "csv")),
    ],
)
def test_limits_that_make_no_sense_are_refused_with_their_key(
    bundle: Path, table: Any, words: Any
) -> None:
    with pytest.raises(FairbloomError, match=words):
        Limits.of(table)
    with pytest.raises(FairbloomError, match=words):
        ClientSettings.of({"limits": table}, bundle / "client.toml")


SETTABLE = sorted({key for task in TASKS for key in work_settings({"task": task})})


@given(key=st.sampled_from(SETTABLE), cut=st.none() | st.integers(0, 40))
@example(key="csv.missing", cut=5)
def test_a_limit_is_refused_or_enforced(key: str, cut: int | None) -> None:
    """Whether or not its key lacks a letter."""
    if cut is not None:
        key = key[:cut] + key[cut + 1 :]
    task = key.partition(".")[0] if "." in key else "digits"
    try:
        limits = Limits.of({"settings": {key: "another"}})
    except FairbloomError:
        assert key not in SETTABLE
        return
    with pytest.raises(SettingRefusedError, match=re.escape(f"{key} = ")):
        limits.check({"task": task})


def test_the_limits_of_the_page_are_taken() -> None:
    page = (ROOT / "docs/nodes-trust.md").read_text()
    (block,) = re.findall(r"^```toml\n(\[limits\].*?)^```", page, re.MULTILINE | re.DOTALL)
    limits = Limits.of(tomllib.loads(block)["limits"])
    limits.check(run(seed=0))
    with pytest.raises(SettingRefusedError, match=r"test-share = 0\.5"):
        limits.check(run(**{"test-share": 0.5}))


def test_limits_reach_the_worker(bundle: Path) -> None:
    given = {"limits": {"rows": 30, "tasks": ["csv"]}}
    reached = json.loads(ClientSettings.of(given, bundle / "client.toml").worker(3)[-1])
    assert reached["limits"] == {"rows": 30, "tasks": ["csv"]}
    assert reached["node"]["limit-rows"] == 30
    own = {"app": "json:loads", "node-config": {"limit-rows": 1}}
    with pytest.raises(DeployError, match="write it into the table limits"):
        ClientSettings.of({**given, **own}, bundle / "client.toml")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return enroll(Federation.init(tmp_path / "made", ["localhost"], 1), "lund")


def test_security_md_has_the_limits_of_a_device() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    table = text.partition("## Limits of a device")[2].partition("## What is installed")[0]
    limits = Limits()
    for words in (
        f"last step of an epoch | {limits.min_rows} |",
        f"own | {TOLERANCE:.0e} of".replace("1e-05", "1e-5"),
        f"answered | {limits.questions_a_day:,} a day, and {A_ROUND} for each",
        f"a learning rate | {MAX_RATE:g} |",
    ):
        assert words in table
    assert ULP == 2.0**-7  # the last of bfloat16's eight bits
