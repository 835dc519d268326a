"""Where a run is written, and what a run on deployed clients records of who was there."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

import fairbloom
from fairbloom.client.app import app
from fairbloom.rounds.quorum import QuorumError
from fairbloom.server import polling
from fairbloom.server.app import choose_run_folder, main
from fairbloom.server.run_folder.files import BEST, KNOWN
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import simulate
from tests.simulation.helpers import table


def test_settings_that_may_change_do_not_move_the_run_folder() -> None:
    changes: dict[str, Any] = {
        **{
            "enrolled-sizes": "client-0=80",
            "max-growth": 20.0,
            "loss-limit": float("inf"),
            "unused-rounds": 0,
        },
        **{"min-clients": 3, "wait-for-clients": 60.0, "num-rounds": 51, "method": "FedAvg"},
    }
    assert choose_run_folder(Settings.of(changes)) == choose_run_folder(Settings.of({}))
    others: tuple[dict[str, Any], ...] = ({"seed": 1}, {"method": "fedfv"}, {"learning-rate": 0.05})
    assert choose_run_folder(Settings.of({})) not in [
        choose_run_folder(Settings.of(each)) for each in others
    ]


def test_a_setting_at_its_default_does_not_change_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a run keeps its name when a setting is added to Fairbloom."""
    named = choose_run_folder(Settings.of({"momentum": 0.5}))
    run_config = Settings.run_config
    monkeypatch.setattr(
        Settings,
        "run_config",
        lambda self: {k: v for k, v in run_config(self).items() if k != "weight-decay"},
    )
    assert choose_run_folder(Settings.of({"momentum": 0.5})) == named


# Who was there ------------------------------------------------------------------------------------


class Coming(InProcessGrid):
    """Its nodes are online in some looks: `online` gives, look by look, how many of the first
    are."""

    def __init__(self, settings: Settings, online: Iterator[int]) -> None:
        super().__init__(app, settings.run_config(), settings.clients)
        self.online = online
        self.last = 0

    def get_node_ids(self) -> list[int]:
        self.last = next(self.online, self.last)
        return [*super().get_node_ids()][: self.last]


def deployed(out: Path, online: Mapping[int, int], **changes: Any) -> list[dict[str, str]]:
    """Return rounds.csv of a run; `online` has the number of clients online from each look on."""
    plain: dict[str, Any] = {
        "clients": 4,
        "num-rounds": 4,
        "fraction": 1.0,
        "device": "cpu",
        "out": str(out),
    }
    settings = Settings.of(plain | changes)
    looks = (
        max((at, many) for at, many in online.items() if at <= look)[1] for look in range(100_000)
    )
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings.run_config()
    )
    main(Coming(settings, looks), context)
    return table(out / "rounds.csv")


def test_a_run_records_its_first_clients_and_who_was_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # in place of a minute for the reply of whoever goes offline
    monkeypatch.setattr(polling, "GRACE_SECONDS", 0.5)
    rows = deployed(tmp_path / "run", {0: 4, 12: 3})
    assert KNOWN.read(tmp_path / "run").began == ("client-0", "client-1", "client-2", "client-3")
    offline = [row["offline"] for row in rows]
    assert offline[0] == ""
    assert offline[-1] == "client-3"
    assert [row["participants"] for row in rows] == ["3" if gone else "4" for gone in offline]


def test_a_newcomer_is_known_but_not_one_of_the_first_clients(
    tmp_path: Path,
) -> None:
    rows = deployed(
        tmp_path / "run", {0: 3, 12: 4, 24: 3}, **{"wait-for-clients": 0.0, "num-rounds": 6}
    )
    known = KNOWN.read(tmp_path / "run")
    assert (len(known.began), len(known.known)) == (3, 4)
    assert [rows[0]["offline"], rows[-1]["offline"]] == ["", "client-3"]


def test_a_run_ended_by_its_quorum_continues_to_the_same_bits(
    tmp_path: Path,
) -> None:
    with pytest.raises(QuorumError, match="awaited: client-1, client-2, client-3"):
        deployed(tmp_path / "run", {0: 4, 14: 1}, **{"wait-for-clients": 0.0})
    assert not (tmp_path / "run" / "model.safetensors").exists()
    with pytest.raises(
        QuorumError, match="1 of 4 clients is online; awaited: client-1, client-2, client-3"
    ):
        deployed(tmp_path / "run", {0: 1}, **{"wait-for-clients": 0.0})
    rows = deployed(tmp_path / "run", {0: 4})
    whole = deployed(tmp_path / "whole", {0: 4})
    assert (
        [row["replies_used"] for row in rows] == [row["replies_used"] for row in whole] == ["4"] * 4
    )
    there, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")
    )
    assert there == other


def test_a_finished_run_waits_for_nobody(tmp_path: Path) -> None:
    rows = deployed(tmp_path / "run", {0: 4})
    assert deployed(tmp_path / "run", {0: 0}) == rows


def test_the_best_model_may_be_that_of_the_worst_clients(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """On validation examples, and without them on test examples."""
    shared = {"clients": 10, "learning-rate": 0.3, "num-rounds": 8, "seed": 4, "device": "cpu"}
    for share, split in ((0.2, "validation"), (0.0, "test")):
        rounds = {}
        for measure in ("mean", "worst-10"):
            out = tmp_path / f"{split}-{measure}"
            settings = {"validation-share": share, "best-model": measure, "out": str(out)}
            found = fairbloom.load(simulate(Settings.of({**shared, **settings})))
            column = f"{split}_accuracy_of_global_model_{measure.replace('-', '_')}"
            rounds[measure] = BEST.read_about(found.folder)["round"]
            with subtests.test(split=split, measure=measure):
                values = found.rounds.set_index("round")[column]
                assert rounds[measure] == values.idxmax()
        with subtests.test(split=split):
            assert rounds["mean"] != rounds["worst-10"]


def test_early_stopping_may_go_by_the_worst_clients(tmp_path: Path) -> None:
    settings = {"clients": 10, "num-rounds": 30, "early-stopping": 2, "validation-share": 0.2}
    chosen = {"best-model": "worst-10", "learning-rate": 1.0, "out": str(tmp_path / "run")}
    found = fairbloom.load(simulate(Settings.of({**settings, **chosen, "device": "cpu"})))
    values = found.rounds["validation_accuracy_of_global_model_worst_10"].tolist()
    assert "accuracy of the worst 10 % of clients was best in round" in found.stopped
    assert max(values) == max(values[:-2]) == values[len(values) - 3]


def test_deployed_clients_stop_early_as_those_in_process_do(tmp_path: Path) -> None:
    early = {"validation-share": 0.3, "learning-rate": 1.0, "early-stopping": 2, "num-rounds": 30}
    rows = deployed(tmp_path / "run", {0: 4}, **early)
    assert len(rows) < 30
    settings = Settings.of(
        {"clients": 4, "fraction": 1.0, "device": "cpu", **early, "out": str(tmp_path / "here")}
    )
    here = fairbloom.load(simulate(settings))
    found = fairbloom.load(tmp_path / "run")
    assert (found.state, found.rounds_done, found.stopped) == (
        "finished",
        here.rounds_done,
        here.stopped,
    )
    assert "early-stopping = 2" in found.stopped
    assert len(deployed(tmp_path / "run", {0: 4}, **early)) == len(rows)
