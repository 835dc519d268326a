"""What was charged stays spent: killed at any line, torn, on a full disk, and by two processes."""

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairbloom.client.local import LocalClient
from fairbloom.client.private import ledger as ledgers, noise, opening
from fairbloom.client.private.account import FAILED, Account, Known
from fairbloom.client.private.budget import UNITS
from fairbloom.client.private.ledger import FILE, INTENT, NOTHING, Ledger
from fairbloom.client.private.mechanism import Mechanism
from fairbloom.client.private.simulated import with_account
from fairbloom.errors import FairbloomError
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.settings import RunSettings

from .device import EVALUATE, MARKER, SCHEMA, TRAIN, Device, opened, write_table

QUANTITY = 'type = "number"\ncenter = 0.0\nscale = 1.0'


def in_forks(*works: Callable[[], object]) -> list[int]:
    """Return how child processes ended, which run at once and may be killed at any line."""
    children = list[int]()
    for work in works:
        children.append(os.fork())
        if children[-1] == 0:
            torch.set_num_threads(1)
            try:
                work()
            finally:
                os._exit(0)
    return [os.waitpid(child, 0)[1] for child in children]


def kill(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


KILLED = {
    "before the line": (Ledger, "charge", 450, False),
    "after the line": (Mechanism, "mean_gradient", 446, True),
    "before the reply is kept": (Ledger, "keep_reply", 446, True),
}


@pytest.mark.parametrize("moment", KILLED)
def test_a_killed_client_has_spent_what_it_wrote(
    device: Device, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    owner, name, left, halted = KILLED[moment]
    monkeypatch.setattr(owner, name, kill)
    assert in_forks(device.ask) == [signal.SIGKILL]
    monkeypatch.undo()
    ledger = device.account.ledger
    assert (device.left, ledger.is_halted) == ((left, 1), halted)
    assert ("halted" in str(device.ask())) is halted
    assert device.left == (446, 1)
    if halted:
        ledger.resume()
        assert "arrays" in device.ask()
        assert device.left == (442, 1)


def test_a_reply_that_was_kept_is_sent_after_a_kill(device: Device) -> None:
    assert in_forks(device.ask) == [0]
    kept = next(device.folder.glob("accounts/*/replies/train-*")).read_bytes()
    reply = device.ask()
    assert device.left == (446, 1)
    assert next(iter(reply["arrays"].values())).data in kept


def test_a_charge_is_on_the_disk_before_the_noise(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = device.account.place
    seen = list[str]()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        seen.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    def draw(count: int) -> np.ndarray:
        seen.append("noise")
        return np.zeros(count)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(noise, "draw_noise", draw)
    device.ask()
    assert seen[seen.index("noise") - 1] == str(place / FILE)


def test_a_process_that_is_stopped_finishes_charged_work(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Mechanism.mean_gradient

    def stop(*args: Any) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return work(*args)

    monkeypatch.setattr(Mechanism, "mean_gradient", stop)
    assert in_forks(device.ask) == [signal.SIGTERM]
    assert not device.account.ledger.is_halted


def test_a_torn_line_is_spent_wherever_it_ends(tmp_path: Path, subtests: Any) -> None:
    (tmp_path / FILE).touch()
    ledger = Ledger(tmp_path)
    ledger.charge("train-a", units=8, run=1)
    ledger.charge("train-b", units=45, reports=1, run=2)
    content = (tmp_path / FILE).read_bytes()
    intent = (tmp_path / INTENT).read_bytes()
    start = content.index(b"\n") + 1
    for end in range(start + 1, len(content)):
        with subtests.test(end=end):
            (tmp_path / FILE).write_bytes(content[:end])
            (tmp_path / INTENT).write_bytes(intent)
            assert [line[UNITS] for line in ledger.lines()] == [8, 45]
            assert ledger.is_halted
            ledger.resume()
            assert [line[UNITS] for line in ledger.lines()] == [8, 45, 0]
            assert not ledger.is_halted


@pytest.mark.parametrize("rest", [b"\0" * 150, b'{"uni'])
def test_a_torn_line_without_an_intent_is_nothing(device: Device, rest: bytes) -> None:
    """A power cut leaves zeros, for example; the next line takes their place, also the first."""
    (device.account.place / FILE).write_bytes(rest)
    for number in (1, 2):
        device.ask(TRAIN, {"server-round": number})
        file = device.account.place / FILE
        file.write_bytes(file.read_bytes() + rest)
        assert (device.left, device.account.ledger.is_halted) == ((450 - 4 * number, 1), False)


def test_a_ledger_that_is_torn_in_the_middle_is_spent(device: Device) -> None:
    device.ask()
    file = device.account.place / FILE
    file.write_bytes(b'{"units": 4,\n' + file.read_bytes())
    assert device.left == (0, 0)
    assert device.code(TRAIN, {"server-round": 2}) == ErrorCode.BUDGET_SPENT
    assert "is damaged" in "\n".join(opening.describe_account(device.account))


def test_a_line_of_a_long_ledger_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps({"key": "train-a", **NOTHING, UNITS: 4})] * 1_000
    (tmp_path / FILE).write_text("\n".join([*lines, ""]))
    ledger = Ledger(tmp_path)
    assert len(ledger.lines()) == 1_000
    parsed = list[bytes]()
    parse = ledgers.parse_line
    monkeypatch.setattr(ledgers, "parse_line", lambda line: parsed.append(line) or parse(line))
    ledger.charge("train-b", units=5)
    assert sum(each[UNITS] for each in ledger.lines()) == 4_005
    assert len(parsed) == 1
    (tmp_path / FILE).write_text("\n".join([*lines[1:], ""]))  # another in its place
    assert sum(each[UNITS] for each in ledger.lines()) == 3_996


def test_two_processes_charge_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices with equal data share one account, and its budget of one step."""
    device = opened(tmp_path, steps=1)
    charge = Ledger.charge

    def charge_late(*args: Any, **about: Any) -> None:
        time.sleep(0.3)  # meanwhile, the others ask
        charge(*args, **about)

    monkeypatch.setattr(Ledger, "charge", charge_late)
    assert in_forks(*[lambda seed=seed: device.ask(seed=seed) for seed in range(3)]) == [0, 0, 0]
    assert device.left == (1, 1)
    assert [line[UNITS] for line in device.account.ledger.lines()] == [4]


def test_a_full_disk_costs_at_most_what_is_charged(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, which says nothing of the disk."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(ledgers.os, "fsync", full)
    monkeypatch.setattr("fairbloom.client.private.serving.deadline", lambda _: -1.0)
    assert device.ask() == FAILED
    monkeypatch.undo()
    assert device.left[0] in (446, 450)
    assert "arrays" in device.ask()


def test_a_charge_that_is_tried_again_is_one(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses to sync a line that is written already."""
    fsync = os.fsync
    synced = list[str]()

    def refuse_once(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        if synced[-1] == FILE and synced.count(FILE) == 2:  # the first removes a torn line
            raise OSError(errno.EIO, "input/output error")
        fsync(descriptor)

    monkeypatch.setattr(ledgers.os, "fsync", refuse_once)
    assert "arrays" in device.ask()
    assert synced.count(FILE) > 2
    assert device.left == (446, 1)


OTHERS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "weights": ({}, (442, 1)),
    "terms": ({"terms": {"server-round": 2}}, (442, 1)),
    "settings": ({"learning_rate": 0.2}, (442, 1)),
    "kind": ({"kind": EVALUATE}, (446, 0)),
}


@pytest.mark.parametrize("change", OTHERS)
def test_each_part_of_a_question_is_in_the_key(device: Device, change: str) -> None:
    question, left = OTHERS[change]
    state = device.model().state_dict()
    for _ in range(2):
        assert "arrays" in device.ask(weights=state)
    if change == "weights":
        next(iter(state.values())).view(-1)[0] += 1e-6
    device.ask(weights=state, **question)
    assert device.left == left


def test_a_devices_folders_are_not_in_the_key(device: Device) -> None:
    """A fleet's client puts its own folders among the settings; others may share the account."""
    question = (TRAIN, None, device.model().state_dict())
    for place in ("data-dir", "state-dir"):
        context = device.context()
        context.run_config[place] = str(device.data)
        assert "arrays" in device.ask_in(context, *question)
    assert device.left == (446, 1)


def test_the_state_that_work_resumes_from_is_in_the_key(device: Device) -> None:
    for number in (2, 1, 2):  # the last one resumes from the state of round 1
        assert "arrays" in device.ask(TRAIN, {"server-round": number, "control-variates": True})
    assert device.left == (438, 1)


def test_a_second_test_report_is_held_back(device: Device) -> None:
    report = device.ask(EVALUATE)["metrics"]
    assert "accuracy" in report
    assert report["num-examples"] == device.account.test == 10
    assert "accuracy" in device.ask(EVALUATE)["metrics"]  # the same question: its kept reply
    assert [*device.ask(EVALUATE, {"server-round": 2})["metrics"]] == ["num-examples"]


@pytest.mark.parametrize("change", [{"seed": 7}, {"test_share": 0.5}], ids=str)
def test_the_split_is_the_accounts(device: Device, change: dict[str, Any]) -> None:
    """Another seed or share of the run neither refuses it, nor changes who is trained on."""
    assert device.ask(**change)["metrics"]["num-examples"] == device.account.train == 30


def test_changed_rows_stay_under_their_account(device: Device) -> None:
    device.data = device.data.rename(device.folder / "moved")
    write_table(device.data / "site.csv", 40, seed=1)
    assert "not those" in str(device.ask())


@pytest.mark.parametrize("node", [{}, {"num-partitions": 1}])
def test_a_run_that_names_the_data_works_by_the_account(
    device: Device, node: dict[str, int]
) -> None:
    """A stock node of Flower's may have no data-dir, and then the run's is read."""
    device.own = {"data-dir": "", "limit-privacy": "", **node}
    context = device.context()
    context.run_config["data-dir"] = str(device.data)
    assert "privacy" in device.ask_in(context)["client"]
    device.own = {}
    assert device.left == (446, 1)


def test_data_that_are_no_table_need_no_account(device: Device) -> None:
    """Another device of the machine has an account for its own data."""
    images = device.folder / "images"
    images.mkdir()
    (images / "one.png").touch()
    assert not Known.of(device.node, str(images)).has_account


@pytest.mark.parametrize("content", [b"", b"damaged"])
def test_a_damaged_reply_is_not_sent(device: Device, content: bytes) -> None:
    device.ask()
    next(device.folder.glob("accounts/*/replies/train-*")).write_bytes(content)
    assert "halted" in str(device.ask())
    assert device.code(TRAIN) == ErrorCode.ACCOUNT_HALTED
    device.account.ledger.resume()
    assert "arrays" in device.ask()
    assert device.left == (442, 1)


def test_a_reply_is_kept_though_the_clock_was_set_back(device: Device) -> None:
    for number in range(1, 5):
        assert "arrays" in device.ask(TRAIN, {"server-round": number})
        kept = [*device.folder.glob("accounts/*/replies/train-*")]
        assert len(kept) == min(number, 2)
        for each in kept:
            os.utime(each, (4e9, 4e9))


def test_many_rows_need_no_delta_of_the_owner(tmp_path: Path) -> None:
    """Above 10,000 rows, 1/(10 n) is below the usual δ: on a device, and in one process."""
    device = Device(tmp_path, rows=10_400)
    config = {"task": "csv", "data-dir": str(device.data), "schema": SCHEMA, "batch-size": 0}
    client = LocalClient.of(config, None, "site")
    account = device.open()
    assert account.delta == pytest.approx(1 / 104_000)
    _, simulated = with_account(
        client, RunSettings.of({**config, "privacy.mode": "simulated", "privacy.epsilon": "3"})
    )
    assert simulated.delta == account.delta


def test_a_missing_ledger_is_no_full_budget(device: Device) -> None:
    account = device.account
    (account.place / FILE).unlink()
    assert "must restore its folder" in str(device.ask())
    with pytest.raises(FairbloomError, match="cannot be read"):
        account.ledger.resume()


@pytest.mark.parametrize("harm", ["missing", "another place", "a link to nothing"])
def test_an_account_that_is_gone_is_no_free_data(device: Device, harm: str) -> None:
    """The file among the data says that there was one."""
    shutil.rmtree(device.folder / "accounts")
    if harm != "missing":
        device.limits = {}
    if harm == "a link to nothing":
        (device.data / MARKER).unlink()
        (device.data / MARKER).symlink_to("nothing")
    assert "must restore its folder" in str(device.ask())


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into read-only folders")
def test_a_read_only_account_does_no_work(device: Device) -> None:
    place = device.account.place
    place.chmod(0o500)
    assert "cannot be written" in str(device.ask())
    place.chmod(0o700)


def test_data_that_are_gone_ask_for_no_new_account(device: Device) -> None:
    moved = device.data.rename(device.folder / "moved")
    assert "there is no table in its data-dir: bring the data back" in str(device.ask())
    moved.rename(device.data)
    assert "arrays" in device.ask()


def test_a_budget_without_an_account_refuses(tmp_path: Path) -> None:
    assert "no account is open" in str(Device(tmp_path).ask())


def test_a_new_month_is_a_new_account_that_adds(device: Device) -> None:
    first = device.account
    write_table(device.data / "site.csv", 50, seed=2)
    second = device.open()
    assert [*second.earlier] == [first.number]
    assert second.lifetime_epsilon == pytest.approx(4.46, abs=0.02)
    with pytest.raises(FairbloomError, match="is for these data"):
        device.open()
    assert device.account == second


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"delta": 0.01}, "at most 1/"), ({"epsilon": 0.0}, "must be above 0")],
)
def test_a_budget_that_promises_nothing_is_refused(
    tmp_path: Path, limits: dict[str, float], words: str
) -> None:
    device = Device(tmp_path, **limits)
    with pytest.raises(FairbloomError, match=words):
        device.open()
    assert not [*device.data.glob("*.toml")]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[fields.age]", 'unit = "id"\n[fields.age]', "has unit"),
        ("[fields.age]", 'groups = ["age>=60"]\n[fields.age]', "has groups"),
        ("center = 50.0\nscale = 20.0\n", "", "no center and scale for age"),
        ('type = "string"\ncategories = ["well", "ill"]', QUANTITY, "is a quantity"),
    ],
)
def test_a_schema_that_needs_the_rows_is_refused(
    device: Device, old: str, new: str, words: str
) -> None:
    with pytest.raises(FairbloomError, match=words):
        opening.check_schema(SCHEMA.replace(old, new))


def test_two_openings_at_once_make_one_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = opening.write_account

    def write_late(*args: Any) -> Account:
        time.sleep(0.3)
        return write(*args)

    device = Device(tmp_path)
    monkeypatch.setattr(opening, "write_account", write_late)
    in_forks(device.open, device.open)
    assert len([*device.folder.glob("accounts/*/account.toml")]) == 1


def test_what_the_owner_is_shown(device: Device) -> None:
    text = "\n".join(opening.describe_account(device.account))
    assert "30 training rows, 10 test rows" in text
    assert "noise of a step 14.75 times" in text
    assert "6.71 if it is replaced" in text
    assert "training alone, without federation, may serve better" in text
    assert "1 test report: noise of the next one 1.4 rows" in text
    assert "left: 450 of 450 units" in text
    device.ask("evaluate")
    assert "\n1 test report\n" in "\n".join(opening.describe_account(device.account))
