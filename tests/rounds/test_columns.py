"""A round's reports, screened together, are refused for what each is refused for by itself."""

import math
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds import screening
from fairbloom.rounds.screening import (
    largest_in_proportion,
    out_of_proportion,
    usable_evaluation,
    usable_evaluations,
    usable_metrics,
    usable_reports,
)

COUNTS = st.sampled_from((1, 7, 2**53, 0, -1, 2**53 + 1, 10**400, 3.0, True, None))
NUMBERS = st.sampled_from((0.5, 1.0, 0.0, 7, -1.0, 1e300, 1.7e308, math.nan, math.inf, 10**400, True, "text", [1.0]))
NEEDS = st.sets(st.sampled_from(("loss-before", "accuracy-after", "learning-rate")))


@st.composite
def records(draw: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """Return clients' records, mostly of usual numbers, now and then with one that is odd, missing or more."""
    found: dict[str, dict[str, Any]] = {}
    for k in range(draw(st.integers(0, 5))):
        record: dict[str, Any] = {"num-examples": k + 1, "loss-before": 0.5 * k, "learning-rate": 0.1, "tokens": 2.5}
        record |= {"accuracy-after": 0.5, "accuracy": 1.0, "accuracy-personal": 0.0}
        if draw(st.integers(0, 5)) == 0:
            key = draw(st.sampled_from((*record, "new")))
            record[key] = draw(COUNTS if key == "num-examples" else NUMBERS)
        if draw(st.integers(0, 9)) == 0:
            del record[draw(st.sampled_from(tuple(record)))]
        found[f"client-{k}"] = record
    return found


def one_by_one(
    given: dict[str, dict[str, Any]], usable: Callable[[dict[str, Any]], dict[str, float]]
) -> tuple[list[Any], dict[str, tuple[type, str]]]:
    reports, reasons = [], {}
    for name, record in given.items():
        try:
            reports.append((name, list(usable(record).items())))
        except ValueError as reason:
            reasons[name] = (type(reason), str(reason))
    return reports, reasons


def told(
    screened: tuple[dict[str, dict[str, float]], dict[str, ValueError]],
) -> tuple[list[Any], dict[str, tuple[type, str]]]:
    reports, reasons = screened
    return (
        [(name, list(report.items())) for name, report in reports.items()],
        {name: (type(reason), str(reason)) for name, reason in reasons.items()},
    )


@given(given=records(), needs=NEEDS, weight=st.sampled_from(("num-examples", "tokens")))
def test_reports_screened_together_are_those_screened_one_by_one(
    given: dict[str, dict[str, Any]], needs: set[str], weight: str
) -> None:
    assert told(usable_reports(given, weight, needs)) == one_by_one(given, lambda r: usable_metrics(r, weight, needs))


@given(given=records(), weight=st.sampled_from(("num-examples", "tokens")))
def test_evaluations_are_screened_together_as_one_by_one(given: dict[str, dict[str, Any]], weight: str) -> None:
    assert told(usable_evaluations(given, weight)) == one_by_one(given, lambda r: usable_evaluation(r, weight))


def test_usual_reports_are_screened_in_columns(monkeypatch: Any) -> None:
    given = {f"client-{k}": {"num-examples": k + 1, "loss-before": 0.5, "learning-rate": 0.1} for k in range(3)}
    monkeypatch.setattr(screening, "usable_metrics", None)
    reports, reasons = usable_reports(given, "num-examples", {"loss-before", "learning-rate"})
    assert (reports, reasons) == (given, {})
    assert all(reports[name] is not given[name] for name in given)


@given(losses=st.lists(st.sampled_from((0.0, 0.5, -2.0, 9.0, 10.0, 11.0, -25.0, 1e9)), max_size=6))
def test_losses_beyond_the_bound_are_out_of_proportion(losses: list[float]) -> None:
    reports = {f"client-{k}": {"train-loss": loss} for k, loss in enumerate(losses)}
    most = largest_in_proportion(map(abs, losses), 10.0, 1.0)
    expected = [name for name, report in reports.items() if abs(report["train-loss"]) > most]
    assert list(out_of_proportion(reports, {"train-loss"}, 10.0)) == expected
