"""The same rows have the same account, whatever their files are; others have none, or refuse."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairbloom.client.guard.log_files import open_log
from fairbloom.client.private import opening
from fairbloom.client.private.account import Account, Known
from fairbloom.client.private.opening import close_account, describe_account
from fairbloom.client.private.split import read_rows, split_by
from fairbloom.errors import FairbloomError

from .device import MARKER, SCHEMA, TRAIN, Device, opened, write_table


def by_lines(change: Callable[[list[str]], list[str]]) -> Callable[[str], str]:
    return lambda text: "\n".join([*change(text.splitlines()), ""])


def shuffle(lines: list[str]) -> list[str]:
    return [lines[0], *random.Random(0).sample(lines[1:], len(lines) - 1)]


def turn(lines: list[str]) -> list[str]:
    return [",".join(reversed(line.split(","))) for line in lines]


SAME: dict[str, Callable[[str], str]] = {
    "other line ends": lambda text: text.replace("\n", "\r\n"),
    "another order of rows": by_lines(shuffle),
    "another order of columns": by_lines(turn),
    "an empty line": lambda text: text + "\n",
}

OTHER: dict[str, Callable[[str], str]] = {
    "a row twice": by_lines(lambda lines: [*lines, lines[1]]),
    "a row less": by_lines(lambda lines: lines[:-1]),
    "a row in place of another": by_lines(lambda lines: [*lines[:-1], lines[1]]),
}


def rewrite(device: Device, change: Callable[[str], str], name: str = "site") -> None:
    file = device.data / "site.csv"
    text = change(file.read_text()).encode()
    file.rename(device.data / f"{name}.csv").write_bytes(text)


def sides(device: Device) -> tuple[list[list[float]], list[list[float]]]:
    """Return the rows of both sides, sorted."""
    _, splits = read_rows(device.node, str(device.data), SCHEMA)
    train, test = split_by(device.account, splits)
    return sorted(train[:][0].tolist()), sorted(test[:][0].tolist())


@pytest.mark.parametrize("has_marker", [True, False], ids=["named", "no marker"])
@pytest.mark.parametrize("change", SAME)
def test_the_same_rows_have_the_same_account(device: Device, change: str, has_marker: bool) -> None:
    """Each row stays on its side."""
    before = sides(device)
    rewrite(device, SAME[change], "renamed")
    if not has_marker:
        (device.data / MARKER).unlink()
    copy = shutil.copytree(
        device.data, device.folder / "copy", ignore=shutil.ignore_patterns(MARKER)
    )
    assert Known.of(device.node, str(copy)).has_account
    assert "arrays" in device.ask()
    assert (device.left, sides(device)) == ((446, 1), before)


def test_of_equal_rows_each_side_keeps_its_number(tmp_path: Path) -> None:
    device = Device(tmp_path)
    rewrite(device, by_lines(lambda lines: [*lines, *lines[1:21]]))
    account = device.open()
    before = sides(device)
    assert [len(side) for side in before] == [account.train, account.test]
    rewrite(device, by_lines(shuffle))
    assert sides(device) == before


@pytest.mark.parametrize("has_marker", [True, False], ids=["named", "no marker"])
@pytest.mark.parametrize("change", OTHER)
def test_other_rows_are_refused(device: Device, change: str, has_marker: bool) -> None:
    before = (device.data / "site.csv").read_text()
    rewrite(device, OTHER[change])
    if not has_marker:
        (device.data / MARKER).unlink()
    assert "not those" in str(device.ask())
    assert Known.of(device.node, str(device.data)).of_rows == []
    (device.data / "site.csv").write_text(before)
    assert device.left == (450, 1)
    assert "arrays" in device.ask()


def test_the_runs_schema_has_no_part_in_finding(device: Device) -> None:
    """A server that changes a center by 1e-9 is refused; a comment changes nothing."""
    (device.data / MARKER).unlink()
    rewrite(device, SAME["other line ends"])
    for other in (
        SCHEMA.replace("50.0", "50.000000001"),
        SCHEMA.replace("[fields", "\n[fields", 1),
    ):
        asked = device.ask(schema=other)
        assert ("arrays" in asked) is ("000000001" not in other)
    assert "arrays" in device.ask(TRAIN, {"server-round": 2}, schema=f"# corrected\n{SCHEMA}")
    head, age, dose, outcome = SCHEMA.split("[fields")
    turned = "[fields".join([head, dose, age, outcome])
    assert "schema does not read" in str(device.ask(schema=turned))
    assert device.left == (442, 1)


@pytest.mark.parametrize("change", [lambda text: text, SAME["other line ends"]])
def test_another_schema_counts_the_earlier_account(
    device: Device, change: Callable[[str], str]
) -> None:
    first = device.account
    (device.data / MARKER).unlink()
    shutil.move(device.data, device.folder / "moved")
    device.data = device.folder / "moved"
    rewrite(device, change)
    schema = SCHEMA.replace("50.0", "51.0")
    for same in (SCHEMA, f"# other words\n{SCHEMA}"):
        with pytest.raises(FairbloomError, match="is for these data"):
            opening.open_account(device.node, device.limits, same, test_share=0.25, seed=0)
    second = opening.open_account(device.node, device.limits, schema, test_share=0.25, seed=0)
    assert [*second.earlier] == [first.number]
    assert device.account.number == second.number
    assert "schema does not read" in str(device.ask())
    assert "arrays" in device.ask(schema=schema)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "an empty account": lambda place: (place / "account.toml").write_bytes(b""),
    "a later format": lambda place: (place / "account.toml").write_text(
        (place / "account.toml").read_text().replace("format = 2", "format = 3")
    ),
    "no rows": lambda place: (place / "rows").unlink(),
    "damaged rows": lambda place: (place / "rows").write_bytes(b"?"),
    "another type": lambda place: (place / "account.toml").write_text("format = 2\ntrain = []"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_account_touches_no_other(tmp_path: Path, damage: str) -> None:
    """Those of other rows, of no account, and, without their marker, those of the same machine."""
    there = {"ledger": str(tmp_path / "accounts")}
    damaged = opened(tmp_path / "a", **there)
    other = opened(tmp_path / "b", **there, rows=50)
    free = Device(tmp_path / "c", rows=60)
    free.limits = {}
    (other.data / MARKER).unlink()
    rewrite(other, SAME["other line ends"])
    place = damaged.account.place
    DAMAGES[damage](place)
    assert "must restore its folder" in str(damaged.ask())
    if damage == "a later format":
        with pytest.raises(FairbloomError, match="of format 3, and this version reads format 2"):
            Account.read(place / "account.toml")
    assert other.left == (450, 1)
    free.own = {"limit-privacy": ""}
    assert free.ask().keys() == {"arrays", "metrics"}


def test_a_copy_of_an_account_is_not_used(device: Device) -> None:
    place = device.account.place
    shutil.copytree(place, place.with_name(f"{place.name}-copy"))
    device.ask()
    assert device.left == (446, 1)


def test_a_lost_account_counts_as_spent(device: Device) -> None:
    first = device.account
    shutil.rmtree(device.folder / "accounts")
    assert "must restore its folder" in str(device.ask())
    second = device.open()
    assert second.earlier == {first.number: first.mu}
    assert device.account == second
    with pytest.raises(FairbloomError, match="counts one that is lost"):
        close_account(device.node)


def test_an_account_of_which_nothing_is_spent_is_closed(device: Device) -> None:
    first = close_account(device.node)
    assert not first.place.exists()
    assert not (device.data / MARKER).exists()
    device.limits["steps"] = 30
    assert device.open().earlier == {}
    assert device.left == (150, 1)
    device.ask()
    with pytest.raises(FairbloomError, match="has been charged"):
        close_account(device.node)
    assert device.left == (146, 1)


def test_a_closed_account_leaves_the_earlier_one(device: Device) -> None:
    first = device.account
    before = (device.data / "site.csv").read_text()
    write_table(device.data / "site.csv", 50, seed=2)
    device.open()
    close_account(device.node)
    assert "not those" in str(device.ask())
    (device.data / "site.csv").write_text(before)
    assert device.account.number == first.number


@pytest.mark.parametrize("has_earlier", [True, False])
def test_an_account_is_closed_where_its_data_are(device: Device, has_earlier: bool) -> None:
    """They have moved, and others with an account lie in their place, or none."""
    other = opened(device.folder / "other", ledger=device.limits["ledger"], rows=50)
    schema = SCHEMA.replace("50.0", "51.0")
    if has_earlier:
        opening.open_account(device.node, device.limits, schema, test_share=0.25, seed=0)
    old = device.data
    device.data = old.rename(device.folder / "moved")
    if not has_earlier:
        other.data.rename(old)
    close_account(device.node)
    assert (device.data / MARKER).exists() is has_earlier
    assert (old / MARKER).exists() is not has_earlier
    assert Known.of(device.node, str(device.data)).lost == []


@pytest.mark.parametrize("file", ["{}/rows.csv", "{}.csv"])
def test_clients_of_one_folder_have_accounts_of_their_own(tmp_path: Path, file: str) -> None:
    """A client does not answer by the rows, or the kept reply, of another one."""
    north, south = Device(tmp_path / "north"), Device(tmp_path / "south")
    for rows, device in ((40, north), (50, south)):
        device.own = {"name": device.folder.name, "state-dir": str(device.state)}
        device.limits["ledger"] = str(tmp_path / "accounts")
        device.data = tmp_path / "data"
        path = device.data / file.format(device.folder.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(path, rows)
    first = north.open()
    assert "arrays" in north.ask()
    assert isinstance(south.ask(), str)
    second = south.open()
    assert (first.train, second.train) == (30, 38)
    assert "arrays" in south.ask()
    assert (north.left, south.left) == ((446, 1), (446, 1))


def test_exact_replies_before_leave_no_epsilon(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.own = {"state-dir": str(device.state), "limit-privacy": ""}
    for kind in (TRAIN, "evaluate", "query"):
        device.ask(kind)
    device.own.pop("limit-privacy")
    text = "\n".join(describe_account(device.open()))
    assert "2 replies without noise had left this device before: no epsilon holds" in text
    assert "lifetime" not in text
    for _ in range(2):
        device.ask()
        device.ask("evaluate", {"server-round": 2})
    assert opening.count_exact(device.state) == 2


@pytest.mark.parametrize(
    ("entry", "count"),
    [
        ({"asked": "train"}, 1),
        ({"asked": "train.mine"}, 1),
        ({"asked": "evaluate.x", "times": 3}, 3),
        ({"asked": "train.mine", "refused": "why"}, 0),
        ({"asked": "train.mine", "sent": {"client": {"privacy": [1.0]}}}, 0),
        ({"asked": "query"}, 0),
        ({"asked": "query.train"}, 0),
        ({"asked": "table"}, 0),
    ],
    ids=str,
)
def test_exact_replies_of_named_handlers_count(
    tmp_path: Path, entry: dict[str, Any], count: int
) -> None:
    open_log(tmp_path).note({"run": 1, "sent": {"metrics": {"loss": 0.1}}, **entry}, {})
    assert opening.count_exact(tmp_path) == count


def test_a_cut_short_opening_changes_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    device = Device(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr("fairbloom.system.lock.fcntl.flock", refuse)
    with pytest.raises(FairbloomError, match="cannot be locked"):
        device.open()
    monkeypatch.undo()
    assert [path.name for path in device.data.iterdir()] == ["site.csv"]
    device.open()
    monkeypatch.setattr("fairbloom.system.lock.fcntl.flock", refuse)
    assert "cannot be locked" in str(device.ask())
