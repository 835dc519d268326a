"""What the owner says now: a stricter budget is in force at once, a looser one never."""

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairbloom.client.guard.limits import Limits
from fairbloom.client.local import LocalClient
from fairbloom.client.private.account import Account
from fairbloom.client.private.opening import describe_account
from fairbloom.client.private.simulated import with_account
from fairbloom.deploy.operator import doctor
from fairbloom.errors import FairbloomError
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.settings import RunSettings

from .device import EVALUATE, SCHEMA, TRAIN, Device, opened


def spend(account: Account, units: int = 0, **about: Any) -> None:
    account.ledger.charge(f"train-{units}-{about}", units=units, **about)
    account.ledger.resume()


def status(device: Device) -> AccountStatus:
    found = AccountStatus.of(device.ask("query")["client"]["privacy"])
    assert found is not None
    return found


@pytest.mark.parametrize(("epsilon", "units"), [(1.0, 62), (2.0, 218), (3.0, 450), (8.0, 450)])
def test_a_stricter_budget_is_in_force_at_once(device: Device, epsilon: float, units: int) -> None:
    """The noise of a unit stays; back at what was opened, nothing is lost."""
    before = status(device)
    device.limits["epsilon"] = epsilon
    found = status(device)
    assert (found.units, found.sigma) == (units, before.sigma)
    assert found.epsilon == min(3.0, epsilon)
    assert "arrays" in device.ask()
    assert device.left == (units - 4, 1)
    device.limits["epsilon"] = 3.0
    assert device.left == (446, 1)
    device.limits.clear()
    device.own = {"limit-privacy": f'{{"ledger": "{device.folder / "accounts"}"}}'}
    assert device.left == (446, 1)


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({}, True),
        ({"epsilon": 100.0}, True),
        ({"epsilon": 100.5}, False),
        ({"epsilon": 1e9}, False),
        ({"epsilon": 0.0}, False),
        ({"epsilon": math.nan}, False),
        ({"delta": 1 / 400}, True),  # 1/(10 n), for 40 rows
        ({"delta": 1.001 / 400}, False),
        ({"delta": 0.9}, False),
        ({"delta": 1e-300}, True),
        ({"epsilon": 1e-200, "delta": 1e-300}, False),  # no noise can be computed
        ({"steps": 1_000_000, "tests": 1_000_000}, True),
        ({"steps": 1_000_001}, False),
        ({"tests": 1_000_001}, False),
        ({"steps": 0}, False),
    ],
)
def test_a_simulated_account_allows_what_a_device_allows(
    changes: dict[str, Any], allowed: bool, tmp_path: Path
) -> None:
    device = Device(tmp_path, **changes)

    def open_on_device() -> object:
        Limits.of({"privacy": device.limits})
        return device.open()

    def simulate() -> object:
        config = {
            **{"task": "csv", "data-dir": str(device.data), "schema": SCHEMA, "batch-size": 0},
            **{"privacy.mode": "simulated", "privacy.epsilon": "3"},
            **{f"privacy.{key}": value for key, value in changes.items()},
        }
        config["privacy.epsilon"] = str(config["privacy.epsilon"])
        settings = RunSettings.of(config)
        return with_account(LocalClient.of(settings, None, "site"), settings)

    for opened_by in (simulate, open_on_device):  # the data have no account before
        if allowed:
            opened_by()
            continue
        with pytest.raises(FairbloomError, match=f"privacy.*{next(iter(changes))[:4]}|ε = "):
            opened_by()


def test_mu_decides_not_epsilon_alone(device: Device) -> None:
    """ε of 2.9 at a δ of 10⁻³ is looser than 3 at 10⁻⁵."""
    device.limits |= {"epsilon": 2.9, "delta": 1e-3}
    assert device.left == (450, 1)
    assert "looser" in " ".join(device.account.warnings)
    device.limits |= {"epsilon": 3.0, "delta": 1e-6}
    assert device.left == (365, 1)
    assert status(device).delta == 1e-6


@pytest.mark.parametrize(
    ("spent", "epsilon"), [(150, 1.62057), (300, 2.38616), (400, 2.80633), (0, 0.0)]
)
def test_what_is_spent_is_shown(device: Device, spent: int, epsilon: float) -> None:
    spend(device.account, spent)
    assert device.account.epsilon_spent == pytest.approx(epsilon, abs=1e-5)
    assert f"spent: {epsilon:.3g}" in "\n".join(describe_account(device.account))
    device.ask(EVALUATE)  # its rows are others
    assert device.account.epsilon_spent == pytest.approx(3.0)


@pytest.mark.parametrize("kind", [TRAIN, EVALUATE])
def test_more_than_the_owner_allows_now_ends_all(device: Device, kind: str) -> None:
    spend(device.account, 63)
    device.limits["epsilon"] = 1.0
    assert device.left == (0, 0)
    reply = device.ask(kind)
    if kind == TRAIN:
        assert device.code(kind) == ErrorCode.BUDGET_SPENT
    else:
        assert [*reply["metrics"]] == ["num-examples"]
    device.limits["epsilon"] = 3.0
    assert device.left == (387, 1)


def test_test_reports_share_what_is_left(tmp_path: Path) -> None:
    device = opened(tmp_path, tests=3)
    mu = device.account.mu
    assert device.account.test_sigma == pytest.approx(3.0**0.5 / mu)
    device.ask(EVALUATE)
    assert device.account.spent("mu2") == pytest.approx(mu**2 / 3.0)
    assert device.account.test_sigma == pytest.approx(3.0**0.5 / mu)
    device.limits["epsilon"] = 2.0
    stricter = device.account.in_force.mu
    assert device.account.test_sigma == pytest.approx((2.0 / (stricter**2 - mu**2 / 3.0)) ** 0.5)
    for number in (2, 3):
        device.ask(EVALUATE, {"server-round": number})
    assert device.account.spent("mu2") == pytest.approx(stricter**2)
    assert device.left == (218, 0)
    device.limits["epsilon"] = 1.9
    assert device.left == (0, 0)


def test_test_reports_may_pass_their_share_by_rounding(device: Device) -> None:
    share = math.nextafter(device.account.mu**2, math.inf)
    spend(device.account, reports=1, mu2=share)
    assert device.left == (450, 0)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"epsilon": 4.0}, "looser than the account"),
        ({"steps": 91}, "steps = 91: the account was opened with 90"),
        ({"tests": 2}, "tests = 2: the account was opened with 1"),
    ],
)
def test_what_is_said_in_vain_is_reported(device: Device, said: dict[str, Any], words: str) -> None:
    assert device.account.warnings == []
    device.limits |= said
    assert words in "\n".join(describe_account(device.account))
    assert device.left == (450, 1)
    assert "arrays" in device.ask()


def test_a_run_without_a_cap_may_spend_all(tmp_path: Path) -> None:
    device = opened(tmp_path, steps=4)
    for number in range(1, 6):
        assert "arrays" in device.ask(TRAIN, {"server-round": number})
    assert device.left == (0, 1)
    assert device.code(TRAIN, {"server-round": 6}) == ErrorCode.BUDGET_SPENT


def test_a_run_spends_no_more_than_its_cap(device: Device) -> None:
    device.limits["units-a-run"] = 9
    for number in (1, 2):
        assert "arrays" in device.ask(TRAIN, {"server-round": number})
    assert device.code(TRAIN, {"server-round": 3}) == ErrorCode.BUDGET_SPENT
    assert device.account.left(7) == {"units": 9, "reports": 1}
    assert device.left == (442, 1)
    device.limits["units-a-run"] = 12
    assert "arrays" in device.ask(TRAIN, {"server-round": 3})


def test_doctor_reports_the_account(device: Device) -> None:
    def check() -> tuple[str, str]:
        client = SimpleNamespace(data_dir=str(device.data), node=lambda: device.node)
        found = doctor.check_account(client)
        return found.verdict, found.words

    assert check() == ("ok", "450 of 450 units are left")
    device.limits |= {"epsilon": 4.0, "steps": 91}
    assert check()[0] == "warning"
    assert "steps = 91" in check()[1]
    device.account.ledger.charge("train-a")
    assert "It is halted" in check()[1]
    shutil.rmtree(device.account.place)
    assert check()[0] == "fault"
    (device.data / "fairbloom-account.toml").unlink()
    device.own = {"limit-privacy": ""}
    assert check() == ("ok", "none is open for these data")
