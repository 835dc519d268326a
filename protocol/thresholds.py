"""Further scores, and the threshold of those that need one: a probability that is chosen by validation examples."""

from collections.abc import Iterable, Mapping, Sequence

from .names import VALIDATION
from .scores import Score, ScoreAt

Report = Mapping[str, int | float]
"""What a client reports of an evaluation: numbers by their names on the wire."""

F1 = Score("f1")
"""2 TP / (2 TP + FP + FN): the harmonic mean of precision and sensitivity."""

SENSITIVITY = Score("sensitivity", percent=True)
"""The share of the positive examples that are taken for positive."""

SPECIFICITY = Score("specificity", percent=True)
"""The share of the other examples that are not taken for positive."""

CALIBRATION_ERROR = Score("calibration-error", higher_is_better=False)
"""The mean distance of confidence and accuracy over ten equal bins of confidence, weighted by examples."""

BRIER = Score("brier", higher_is_better=False)
"""The mean squared distance of probabilities and outcomes: of the positive class of two, summed over all of more."""

BY_THRESHOLD: Mapping[str, Score] = {score.name: score for score in (F1, SENSITIVITY, SPECIFICITY)}
"""The scores that need a threshold, by name."""

FURTHER: Mapping[str, Score] = {**BY_THRESHOLD, **{score.name: score for score in (CALIBRATION_ERROR, BRIER)}}
"""The scores that a run may ask for in addition to those of its task, by name."""

HALF, CLIENT, TOGETHER = "half", "client", "together"
"""Which threshold there is: 0.5, one of each client, or one of all."""

THRESHOLD = "threshold"
"""What replies and tables call the threshold that was chosen."""

THRESHOLDS = tuple(place / 20 for place in range(1, 20))
"""The thresholds that are tried, 0.05 to 0.95."""


def score_at(score: Score, threshold: float) -> ScoreAt:
    """Return a score at a threshold."""
    return ScoreAt(f"{score.name}-at-{threshold:.2f}", score.higher_is_better, score.percent, threshold)


def shown_scores(scores: Iterable[Score]) -> tuple[Score, ...]:
    """Return the scores that tables have: those at single thresholds are means to choose one."""
    return tuple(score for score in scores if not isinstance(score, ScoreAt))


def apply_own_threshold(report: Report) -> dict[str, int | float]:
    """Return what a client reports with the scores at the threshold that is best for its validation examples."""
    return apply_threshold(report, _best([report]))


def apply_common_threshold(reports: Mapping[str, Report]) -> dict[str, dict[str, int | float]]:
    """Return what clients report with the scores at the threshold that is best for them on average."""
    threshold = _best(list(reports.values()))
    return {client: apply_threshold(report, threshold) for client, report in reports.items()}


def _best(reports: Sequence[Report]) -> float:
    """Return the threshold with the highest mean over reports of sensitivity and specificity; of several, the middlest.

    It is 0.5 where no report has both, as with validation examples of one class.
    """
    found = {}
    for threshold in THRESHOLDS:
        keys = [f"{score_at(each, threshold).name}-{VALIDATION}" for each in (SENSITIVITY, SPECIFICITY)]
        both = [[float(report[key]) for key in keys if key in report] for report in reports]
        sums = [sum(pair) for pair in both if len(pair) == 2 and all(0.0 <= value <= 1.0 for value in pair)]
        if sums:
            found[threshold] = sum(sums) / len(sums)
    return max(found, key=lambda each: (found[each], -abs(each - 0.5)), default=0.5)


def apply_threshold(report: Report, threshold: float) -> dict[str, int | float]:
    """Return a report without scores at other thresholds, and with those at this one under their own names."""
    rest = {key: value for key, value in report.items() if "-at-0." not in key}
    for score in BY_THRESHOLD.values():
        for ending in ("", f"-{VALIDATION}"):
            key = f"{score_at(score, threshold).name}{ending}"
            rest.pop(f"{score.name}{ending}", None)
            if key in report:
                rest[f"{score.name}{ending}"] = report[key]
    return rest | {THRESHOLD: threshold}
