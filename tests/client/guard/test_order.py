"""Which rows a device's steps have follows from its own secret, unless its owner rehearses.

With the public order, the rounds of one run are equations that give its rows: see
docs/nodes-trust.md.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

from fairbloom.client.app import app
from fairbloom.client.guard.accepted_settings import accepted_settings
from fairbloom.client.guard.disclosure import guarded
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import own_work, train_client
from fairbloom.client.plan import global_work, work_of_client
from fairbloom.client.states import StateDict
from fairbloom.client.work import batches
from fairbloom.protocol.terms import Terms
from fairbloom.server.settings import Settings
from fairbloom.system.versions import NAME, SIZE
from fairbloom.tasks import load_task

from ..hospital import RUN, write_hospital

ORDERED: dict[str, Any] = {"batch-size": 20, "learning-rate": 0.5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_hospital(tmp_path / "data")
    return tmp_path


def settings(**changes: Any) -> dict[str, Any]:
    return Settings.of({**RUN, **ORDERED, **changes}).run_config()


def reply(
    folder: Path,
    state: str = "state",
    number: int = 1,
    kept: RecordDict | None = None,
    run: dict[str, Any] | None = None,
    **node: Any,
) -> StateDict:
    """Return what a device with this state folder, "" for none, makes of the seed's model."""
    config = settings() if run is None else run
    place = {"state-dir": str(folder / state)} if state else {}
    context = Context(
        1,
        2,
        {"data-dir": str(folder / "data"), **place, **node},
        RecordDict() if kept is None else kept,
        accepted_settings(config),
    )
    arrays = ArrayRecord(load_task(config).model().state_dict())
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": number})})
    message = Message(content, dst_node_id=2, message_type=MessageType.TRAIN)
    return dict(app(message, context).content.array_records["arrays"].to_torch_state_dict())


def same(one: StateDict, other: StateDict) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_same_settings_have_the_same_order(folder: Path) -> None:
    """After a restart, and in a repeated run; another state folder, or other settings, have not."""
    first = reply(folder)
    assert same(reply(folder), first)
    assert same(reply(folder, run=settings(**{"num-rounds": 99})), first)  # a run that is continued
    assert not same(reply(folder, "other"), first)
    in_full = settings(**{"batch-size": 0})
    assert same(reply(folder, "other", run=in_full), reply(folder, run=in_full))
    path = folder / "state" / NAME
    assert path.stat().st_mode & 0o777 == 0o600
    secret = path.read_bytes()
    assert len(secret) == SIZE
    path.write_bytes(secret[:-1])  # a disk that lost its end
    assert not same(reply(folder), first)
    assert len(path.read_bytes()) == SIZE
    path.write_bytes(secret)
    assert same(reply(folder), first)


def test_each_setting_of_the_fingerprint_draws_another_order(folder: Path) -> None:
    """So no two runs show the same batches in two ways."""

    def order(**changes: Any) -> list[int]:
        config = settings(**changes) | {"data-dir": str(folder / "data"), "state-dir": str(folder)}
        local = guarded(LocalClient.of(config, 0, "lund"), 5)
        terms = Terms(server_round=1)
        work = own_work(local, global_work(local.settings, terms), terms)
        return torch.cat(list(batches(len(local.splits.train), work))).tolist()

    plain = order()
    assert order() == plain
    assert order(**{"learning-rate": 0.25}) != plain
    assert order(method="fedfv") != plain


def test_a_node_without_a_state_folder_keeps_it_in_its_context(folder: Path) -> None:
    kept = RecordDict()
    first = reply(folder, "", kept=kept)
    assert same(reply(folder, "", kept=kept), first)
    assert not same(reply(folder, ""), first)


@pytest.mark.parametrize("state", ["state", ""])
def test_an_owner_may_choose_the_order_of_one_process(folder: Path, state: str) -> None:
    config = settings(**{"smallest-batch": 5}) | {"data-dir": str(folder / "data")}
    here = LocalClient.of(config, 0, "lund")
    arrays = here.model.state_dict()
    expected = train_client(here, load_task(config).model().state_dict(), Terms(server_round=1))
    rehearsed = reply(folder, state, run=settings(), **{"limit-order": "run"})
    assert arrays.keys() == rehearsed.keys()
    assert same(rehearsed, dict(expected.arrays))
    assert not same(reply(folder, state), rehearsed)
    assert not (folder / "other" / NAME).exists()


def test_the_training_alone_has_the_secret_order_too(folder: Path) -> None:
    """EAGLE's baseline, of which a loss leaves."""
    asked = {"measure": ["loss-baseline"], "baseline-epochs": 3, "baseline-patience": 3}
    found = set[float]()
    for state in ("state", "other"):
        config = settings()
        context = Context(
            1,
            2,
            {"data-dir": str(folder / "data"), "state-dir": str(folder / state)},
            RecordDict(),
            accepted_settings(config),
        )
        words = ConfigRecord({"server-round": 1, "baseline-tolerance": 0.0, **asked})
        content = RecordDict(
            {"arrays": ArrayRecord(load_task(config).model().state_dict()), "config": words}
        )
        message = Message(content, dst_node_id=2, message_type=MessageType.TRAIN)
        found.add(float(app(message, context).content["metrics"]["loss-baseline"]))
    assert len(found) == 2


@pytest.mark.parametrize(("order", "solved"), [(0, True), (None, False)])
def test_the_rounds_of_a_run_are_no_equations(
    folder: Path, order: int | None, solved: bool
) -> None:
    """At a small rate each update is the sum of its batches' rows: with known batches, 250 rounds
    give each row's slope, and so its label. `order` 0 is the seed's, as in one process.
    """
    rounds = 250
    config = settings(**{"batch-size": 200, "learning-rate": 1e-4, "num-rounds": rounds})
    local = guarded(
        LocalClient.of({**config, "data-dir": str(folder / "data")}, 0, "lund"), 5, order
    )
    received = {
        name: each.double() for name, each in load_task(config).model().state_dict().items()
    }
    count = len(local.splits.train)
    shares = np.zeros((rounds, count))
    slopes = np.zeros(rounds)
    for number in range(1, rounds + 1):
        terms = Terms(server_round=number)
        update = train_client(local, {n: each.float() for n, each in received.items()}, terms)
        for batch in batches(
            count,
            work_of_client(global_work(local.settings, terms), local.settings, terms, local.key),
        ):
            shares[number - 1, batch.numpy()] += 1 / len(batch)
        change = update.arrays["1.bias"].double() - received["1.bias"].float().double()
        slopes[number - 1] = float(change[1] - change[0]) / 1e-4
    found = np.linalg.lstsq(shares, slopes, rcond=None)[0]
    right = float(np.mean((found > 0) == local.splits.train.all_targets.numpy()))
    assert (right > 0.9) == solved, right


def test_a_models_own_draws_follow_from_the_secret_too(folder: Path) -> None:
    """In a full batch a place is a row, and masks or shifts that are known would tell rows apart."""
    seeds = {}
    for state in ("state", "other"):
        config = settings(**{"batch-size": 0})
        place = {"data-dir": str(folder / "data"), "state-dir": str(folder / state)}
        local = guarded(LocalClient.of({**config, **place}, 0, "lund"), 5)
        terms = Terms(server_round=1)
        seeds[state] = own_work(local, global_work(local.settings, terms), terms).draws
    here = LocalClient.of({**config, "data-dir": str(folder / "data")}, 0, "lund")
    seeds["here"] = own_work(here, global_work(here.settings, terms), terms).draws
    assert len({*seeds.values()}) == 3
