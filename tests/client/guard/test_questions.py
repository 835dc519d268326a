"""How many messages with a model a device answers in a day, and in a run."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fairbloom.client.guard import questions
from fairbloom.client.guard.accepted_settings import SettingRefusedError, accepted_settings
from fairbloom.client.guard.limits import Limits
from fairbloom.client.guard.questions import Asking, Questions
from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings
from fairbloom.system import retry


def refused(limits: Limits, place: Path, question: str, **settings: Any) -> str:
    """Return the reason, "" if the question is answered."""
    config = accepted_settings(Settings.of(settings).run_config())
    try:
        Questions(place).count(Asking.of(config, config), question, limits)
    except SettingRefusedError as error:
        return str(error)
    return ""


def test_a_run_of_r_rounds_asks_four_questions_a_round(tmp_path: Path) -> None:
    limits = Limits()
    for number in range(8):
        assert not refused(limits, tmp_path, f"train {number}", **{"num-rounds": 2})
    assert "8 messages with a model (questions-a-run)" in refused(
        limits, tmp_path, "train 8", **{"num-rounds": 2}
    )
    assert not refused(limits, tmp_path, "train 7", **{"num-rounds": 2})  # it is the same again
    assert not refused(limits, tmp_path, "train 8", **{"num-rounds": 3})  # a run that is extended
    assert not refused(limits, tmp_path, "train 9", **{"num-rounds": 1})  # or begun again, shorter
    assert not refused(limits, tmp_path, "train 0", **{"num-rounds": 2, "seed": 1})  # another run


@given(
    asked=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=40),
    most=st.integers(1, 6),
)
def test_each_question_of_a_run_counts_once(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[int, int]], most: int
) -> None:
    place = tmp_path_factory.mktemp("state")
    limits = Limits(questions_a_run=most)
    known: dict[int, set[int]] = {}
    for seed, number in asked:
        answered = known.setdefault(seed, set())
        is_new = number not in answered
        reason = refused(limits, place, f"evaluate {number}", seed=seed)
        assert bool(reason) == (is_new and len(answered) >= most)
        if not reason:
            answered.add(number)


def test_a_day_has_its_limit_over_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [datetime(2026, 11, 28, 23, 59, tzinfo=UTC)]
    monkeypatch.setattr(questions, "datetime", SimpleNamespace(now=lambda zone: now[0]))
    limits = Limits(questions_a_day=3)
    for seed in range(3):
        assert not refused(limits, tmp_path, "train", seed=seed)
    assert "(questions-a-day)" in refused(limits, tmp_path, "train", seed=3)
    assert not refused(limits, tmp_path, "train", seed=2)
    now[0] += timedelta(minutes=2)
    assert not refused(limits, tmp_path, "train", seed=3)


@pytest.mark.parametrize("key", ["questions-a-day", "questions-a-run"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True])
def test_impossible_limits_are_refused(key: str, value: object) -> None:
    with pytest.raises(FairbloomError, match=key):
        Limits.of({key: value})
    assert Limits.of({key: 1})


def test_a_damaged_count_is_named_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / questions.FILE).write_bytes(b"nonsense" * 1000)
    assert "questions.sqlite in this client's state-dir cannot be used" in refused(
        Limits(), tmp_path, "train 1"
    )
    (tmp_path / questions.FILE).unlink()
    assert not refused(Limits(), tmp_path, "train 1")


@pytest.mark.parametrize("failures", [0, 2, 40])
def test_a_count_is_written_again_while_a_message_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """A disk may be full for a while only; here for as many seconds, of 30."""
    waits: list[float] = []
    connect = questions.sqlite3.connect

    def refuse(place: Path, timeout: float) -> Any:
        if len(waits) < failures:
            raise questions.sqlite3.OperationalError("database or disk is full")
        return connect(place, timeout=timeout)

    monkeypatch.setattr(
        retry, "time", SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append)
    )
    monkeypatch.setattr(questions.sqlite3, "connect", refuse)
    config = accepted_settings(Settings.of({}).run_config())
    with (
        pytest.raises(SettingRefusedError, match=r"\(database or disk is full\)")
        if failures == 40
        else nullcontext(),
        retry.retrying_writes(30.0),
    ):
        Questions(tmp_path).count(Asking.of(config, config), "train 1", Limits())
    assert len(waits) == failures if failures < 40 else 25 < len(waits) <= 30


def test_an_owners_number_holds_for_a_run_of_unknown_length(tmp_path: Path) -> None:
    config = accepted_settings(Settings.of({}).run_config())
    del config["num-rounds"]
    other = tmp_path / "other"
    other.mkdir()
    asking = Asking.of(config, config)
    for number in range(9):
        Questions(other).count(asking, f"train {number}", Limits())
    limits = Limits(questions_a_run=1)
    Questions(tmp_path).count(asking, "train 1", limits)
    with pytest.raises(SettingRefusedError, match="questions-a-run"):
        Questions(tmp_path).count(asking, "train 2", limits)
    assert [*Questions(other).describe(Limits())] == []


def at(monkeypatch: pytest.MonkeyPatch, *day: int) -> None:
    """Let a device's clock show noon of a day."""
    now = datetime(*day, 12, tzinfo=UTC)
    monkeypatch.setattr(questions, "datetime", SimpleNamespace(now=lambda zone: now))


def test_questions_of_a_run_begin_anew_with_the_month(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = accepted_settings(Settings.of({"num-rounds": 2}).run_config())
    asking = Asking.of(config, config)
    at(monkeypatch, 2026, 12, 31)
    for number in range(8):
        Questions(tmp_path).count(asking, f"train {number}", Limits())
    with pytest.raises(SettingRefusedError, match=r"anew on 2027-01-01 \(UTC\)"):
        Questions(tmp_path).count(asking, "train 8", Limits())
    at(monkeypatch, 2027, 1, 1)
    anew = Questions(tmp_path)
    for number in range(8):  # the same ones, too: the rows behind the answers are others
        anew.count(asking, f"train {number}", Limits())
    with pytest.raises(SettingRefusedError, match="questions-a-run"):
        anew.count(asking, "train 8", Limits())


@pytest.mark.parametrize(
    ("given", "planned"),
    [
        ({"clients": 3}, 12),
        ({"clients": 3, "evaluate-every": 3}, 8),
        ({"clients": 3, "evaluate-every": 0}, 7),
        ({"clients": 3, "fraction": 0.5}, 9),
        ({"clients": 3, "fraction-evaluate": 0.5}, 9),
        ({}, 9),  # of an unknown number of clients, half may be asked
        ({"clients": 1000}, 9),
    ],
)
def test_a_run_that_would_end_early_is_refused_before_it_begins(
    tmp_path: Path, given: dict[str, Any], planned: int
) -> None:
    run = {"num-rounds": 6, **given}
    config = accepted_settings(Settings.of({"num-rounds": 6}).run_config())
    asking = Asking.of(run, config)
    assert asking.planned == planned
    here = Questions(tmp_path)
    here.check_left(asking, Limits(questions_a_run=1))  # what was never asked is not refused yet
    for number in range(24 - planned):
        here.count(asking, f"train {number}", Limits())
    here.check_left(asking, Limits())
    here.count(asking, "one more", Limits())
    with pytest.raises(
        SettingRefusedError, match=f"{planned - 1} of 24 messages .* 6 rounds sends about {planned}"
    ):
        here.check_left(asking, Limits())
    here.check_left(asking, Limits(questions_a_run=25))  # the remedy
    (line,) = here.describe(Limits())
    assert f"{planned - 1} of 24 messages with a model left" in line
    other = accepted_settings(Settings.of({"num-rounds": 6, "seed": 1}).run_config())
    here.check_left(Asking.of(run, other), Limits())
