"""Where a run is written, and what a run on deployed clients records of who was there.

How clients are to train, checked before any of them works; and what becomes of it over a whole
run.

How far a run is, as its folder shows the server's status.

What a run shows while it goes on: log lines.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

import fairbloom
from fairbloom.client.app import app
from fairbloom.errors import FairbloomError
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.names import ORDER_FOLDER, PLACE_FOLDER
from fairbloom.protocol.settings import Mark, SettingsError, marked
from fairbloom.rounds.compatibility import PLAIN_SGD
from fairbloom.rounds.quorum import QuorumError
from fairbloom.server import polling
from fairbloom.server.app import main
from fairbloom.server.plan import choose_run_folder, compare_budgets
from fairbloom.server.progress import announce, describe_progress, find_announced
from fairbloom.server.run_folder.csv_rows import parse_refusals
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import BEST, KNOWN
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.run import simulate
from fairbloom.strategies import METHODS
from tests.simulation.helpers import checkpoints_every, run, table


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
    assert choose_run_folder(Settings.of({})) not in [
        choose_run_folder(Settings.of(each))
        for each in ({"seed": 1}, {"method": "fedfv"}, {"learning-rate": 0.05})
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
    assert (
        [row["replies_used"] for row in rows]
        == [row["replies_used"] for row in deployed(tmp_path / "whole", {0: 4})]
        == ["4"] * 4
    )
    there, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")
    )
    assert there == other


def test_a_finished_run_waits_for_nobody(tmp_path: Path) -> None:
    assert deployed(tmp_path / "run", {0: 4}) == deployed(tmp_path / "run", {0: 0})


@pytest.mark.parametrize(("share", "split"), [(0.2, "validation"), (0.0, "test")])
def test_the_best_model_may_be_that_of_the_worst_clients(
    tmp_path: Path, subtests: pytest.Subtests, share: float, split: str
) -> None:
    """On validation examples, and without them on test examples."""
    shared = {"clients": 10, "learning-rate": 0.3, "num-rounds": 8, "seed": 4, "device": "cpu"}
    rounds = {}
    for measure in ("mean", "worst-10"):
        out = tmp_path / f"{split}-{measure}"
        settings = {"validation-share": share, "best-model": measure, "out": str(out)}
        found = fairbloom.load(simulate(Settings.of({**shared, **settings})))
        column = f"{split}_accuracy_of_global_model_{measure.replace('-', '_')}"
        rounds[measure] = BEST.read_about(found.folder)["round"]
        with subtests.test(split=split, measure=measure):
            assert rounds[measure] == found.rounds.set_index("round")[column].idxmax()
    with subtests.test(split=split):
        assert rounds["mean"] != rounds["worst-10"]


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


PLAIN_SGD_ALONE = {name for name, method in METHODS.items() if PLAIN_SGD in method.requires}

OTHER_STEPS: dict[str, Any] = {
    "optimizer": "adamw",
    "momentum": 0.9,
    "nesterov": True,
    "gradient-clip": 1.0,
    "client-rule": "my_rules:Mine",
}


@pytest.mark.parametrize(("key", "value"), OTHER_STEPS.items())
def test_methods_that_need_plain_sgd_refuse_other_steps(
    key: str, value: str | float | bool
) -> None:
    """The remedies are to leave it out, or to take another method."""
    assert {"fcfl", "qfedsgd"} == PLAIN_SGD_ALONE
    assert set(marked(Mark.CHANGES_STEP)) == set(OTHER_STEPS)
    given = {key: value} | ({"momentum": 0.9} if key == "nesterov" else {})
    first = "momentum" if key == "nesterov" else key
    with pytest.raises(SettingsError, match=rf"{first} = .*: QFedSGD .*: leave {first} out, or"):
        Settings.of({"method": "qfedsgd", **given})
    Settings.of({"method": "qfedavg", **given})
    Settings.of(
        {
            "method": "qfedsgd",
            "learning-rate-decay": 0.9,
            "schedule": "cosine",
            "weight-decay": 0.001,
        }
    )


def test_a_method_that_sets_momentum_needs_an_optimizer_with_one() -> None:
    with pytest.raises(
        SettingsError,
        match=r"optimizer = 'adam' has no momentum, .* set the method's momentum to 0",
    ):
        Settings.of({"method": "fedfa", "optimizer": "adam"})
    for remedy in (
        {"optimizer": "torch.optim:RMSprop"},
        {"optimizer": "adam", "fedfa.client-momentum": 0.0},
    ):
        Settings.of({"method": "fedfa", **remedy})


def test_an_optimizer_in_capitals_is_the_same_run() -> None:
    assert (
        Settings.of({"optimizer": "SGD", "method": "qfedsgd"}).run_config()
        == Settings.of({"method": "qfedsgd"}).run_config()
    )
    assert Settings.of({"optimizer": "AdamW"}).optimizer == "adamw"


# Over a whole run ---------------------------------------------------------------------------------


def test_a_run_with_a_schedule_over_rounds_cannot_be_extended(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"schedule": "cosine", "num_rounds": 2}
    run(tmp_path / "run", **chosen)
    with pytest.raises(
        FairbloomError, match="decay over 2 rounds, so it cannot be extended to 4: choose another"
    ):
        run(tmp_path / "run", **chosen | {"num_rounds": 4})


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"optimizer": "adam"}, True),
        ({"optimizer": "adam", "learning_rate": 0.01}, False),
        ({}, False),
    ],
)
def test_a_rate_that_is_sgds_default_is_remarked_with_adam(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], warned: bool
) -> None:
    with caplog.at_level(logging.WARNING, "flwr"):
        run(tmp_path / "run", num_rounds=1, **changes)
    assert ("learning-rate 0.1 suits SGD" in caplog.text) is warned


HEADER = "round,participants,replies_used,refused,missing,owing,seconds\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three rounds."""
    out = tmp_path_factory.mktemp("run") / "run"
    return simulate(
        Settings.of(
            {"clients": 2, "num-rounds": 3, "device": "cpu", "method": "fedfv", "out": str(out)}
        )
    )


def test_a_finished_run_tells_its_rounds(finished: Path) -> None:
    found = describe_progress(finished)
    assert (found["task"], found["method"], found["state"]) == ("digits", "fedfv", "finished")
    assert (found["round"], found["of-rounds"]) == (3, 3)
    assert found["seconds-a-round"] > 0
    assert found["seconds-since-round"] >= 0
    assert (found["refused"], found["missing"]) == ([], "")


def test_a_run_that_ends_during_the_look_is_not_interrupted(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    model = (folder / "model.safetensors").rename(tmp_path / "model.safetensors")

    def is_held(path: Path) -> bool:  # it has just written its model and given the folder back
        model.rename(folder / "model.safetensors")
        return False

    monkeypatch.setattr("fairbloom.server.run_folder.files.is_held", is_held)
    assert describe_progress(folder)["state"] == "finished"


def test_an_unfinished_run_lists_the_latest_refusals_first(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes((finished / "config.toml").read_bytes())
    rows = [
        "1,2,1,old: too large,,,2.0\n",
        "2,2,1,'a b': error 2: it said / no | other: not finite,,,4.0\n",
        "3,2,2,,,,3.0\n",
        "4,2,1,,site-c,site-d,5.0\n",
        "5,2,2,,si",  # is being written
    ]
    (tmp_path / "rounds.csv").write_text(HEADER + "".join(rows))
    found = describe_progress(tmp_path)
    assert (found["round"], found["state"], found["seconds-a-round"]) == (4, "interrupted", 3.5)
    assert (found["missing"], found["owing"]) == ("site-c", "site-d")
    assert found["refused"] == [
        {"round": 2, "client": "a b", "reason": "error 2: it said / no"},
        {"round": 2, "client": "other", "reason": "not finite"},
        {"round": 1, "client": "old", "reason": "too large"},
    ]


def test_a_run_that_has_no_round_yet_is_at_none(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes((finished / "config.toml").read_bytes())
    found = describe_progress(tmp_path)
    assert (found["round"], found["seconds-a-round"], found["seconds-since-round"]) == (
        0,
        None,
        None,
    )


def test_a_folder_that_holds_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="none holds no run yet: it waits for its clients"):
        describe_progress(tmp_path / "none")


@pytest.mark.parametrize(
    ("cell", "found"), [("", []), ("no colon", []), ("a: b: c", [("a", "b: c")])]
)
def test_a_cell_of_refusals_is_read_as_it_is_written(
    cell: str, found: list[tuple[str, str]]
) -> None:
    assert parse_refusals(cell) == found


def test_a_run_goes_on_where_its_word_cannot_be_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ORDER_FOLDER, str(tmp_path / "gone"))
    announce(tmp_path / "run")
    assert (
        f"will not show the rounds of this run: {tmp_path / 'gone'} cannot be written"
        in caplog.text
    )


def test_a_run_announces_its_folder_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(tmp_path / "unasked")
    monkeypatch.setenv(ORDER_FOLDER, str(tmp_path))
    assert find_announced(tmp_path) is None
    announce(tmp_path / "run é")
    assert find_announced(tmp_path) == tmp_path / "run é"


def test_an_announced_folder_is_found_after_both_were_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    order = old / "fed" / "state" / "runs" / "1"
    order.mkdir(parents=True)
    monkeypatch.setenv(ORDER_FOLDER, str(order))
    monkeypatch.setenv(PLACE_FOLDER, str(old))
    announce(old / "runs" / "a")
    assert find_announced(order) == old / "runs" / "a"
    new = old.rename(tmp_path / "new")
    moved = new / "fed" / "state" / "runs" / "1"
    assert find_announced(moved) == new / "runs" / "a"
    monkeypatch.setenv(ORDER_FOLDER, str(moved))
    monkeypatch.setenv(PLACE_FOLDER, str(new))
    announce(tmp_path / "elsewhere")
    new.rename(tmp_path / "third")
    third = tmp_path / "third" / "fed" / "state" / "runs" / "1"
    assert find_announced(third) == tmp_path / "elsewhere"


SMALL: dict[str, Any] = {"clients": 4, "num-rounds": 3, "device": "cpu"}


def test_a_run_logs_the_accuracy_of_evaluated_rounds(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    rounds: list[RecordedRound] = []
    with checkpoints_every(1):
        simulate(
            Settings.of({**SMALL, "evaluate-every": 2, "out": str(tmp_path / "run")}), rounds.append
        )
    messages = dict.fromkeys(said.messages)  # some come by the root's handler too
    lines = [message for message in messages if message.startswith("round")]
    mean, worst = (rounds[2].measures[over] for over in ("mean", "worst_10"))
    assert lines[0] == "round 1 is finished"
    assert lines[2:] == [
        f"round 3 is finished: test accuracy {mean:.1f} %, of the worst 10 % of clients"
        f" {worst:.1f} %"
    ]


def test_rounds_that_share_a_checkpoint_share_a_log_line(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    with checkpoints_every(3):
        simulate(Settings.of({**SMALL, "num-rounds": 8, "out": str(tmp_path / "run")}))
    lines = dict.fromkeys(line.split(" is")[0] for line in said.messages)
    assert [line for line in lines if line.startswith("round ")] == [
        "round 3",
        "round 6",
        "round 8",
    ]


# Privacy accounts ---------------------------------------------------------------------------------


def compare(settings: dict[str, Any], accounts: dict[str, tuple[float, float]]) -> None:
    """Compare accounts, by their units and reports, with what a new deployed run asks."""
    given = Settings.of({"num-rounds": 10, "fraction": 1.0, **settings})
    statuses = {
        name: AccountStatus(3.0, 1e-5, 90, 1, 14.7, 100, units, reports)
        for name, (units, reports) in accounts.items()
    }
    compare_budgets(given, given.strategy(), statuses, refuses=True)


@pytest.mark.parametrize(
    ("settings", "units"),
    [
        ({}, 40),
        ({"local-epochs": 2}, 80),
        ({"method": "term"}, 50),
        ({"method": "afl", "local-epochs": 3}, 130),
        ({"fraction": 0.5}, 20),
    ],
    ids=str,
)
def test_a_run_that_accounts_do_not_outlast_is_refused(
    settings: dict[str, Any], units: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One unit decides; the remedy, or any statement of what to spend, lets it begin."""
    fine = {"a": (float(units), 1.0), "b": (450.0, 1.0)}
    compare(settings, fine)
    assert not caplog.records
    with pytest.raises(SettingsError, match=r"last: a, c; that of a .*--spend lowest"):
        compare(settings, {**fine, "a": (units - 1.0, 1.0), "c": (units - 1.0, 1.0)})
    for spend in ("lowest", "all", "12"):
        compare({**settings, "privacy.spend": spend}, {**fine, "a": (units - 1.0, 1.0)})
        assert "do not last: a; that of a" in caplog.text
        caplog.clear()
    compare({**settings, "training-clients": "b"}, {**fine, "a": (0.0, 1.0)})
    assert not caplog.records


def test_an_account_without_a_rounds_units_refuses_no_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Lowering num-rounds would not help it, and any client may claim so."""
    compare({}, {"a": (0.0, 1.0), "b": (40.0, 1.0), "c": (3.0, 1.0)})
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith("a, c cannot train: the privacy account has too few units left")
    with pytest.raises(SettingsError, match=r"do not last: d; that of d lasts for 1\."):
        compare({}, {"a": (0.0, 1.0), "d": (4.0, 1.0)})


def test_who_will_have_no_score_is_said_before(caplog: pytest.LogCaptureFixture) -> None:
    compare({}, {"a": (450.0, 0.0), "b": (450.0, 1.0), "c": (450.0, 0.0)})
    assert [each.getMessage() for each in caplog.records] == [
        "a, c will have no score: no test report of the privacy account is left"
    ]
