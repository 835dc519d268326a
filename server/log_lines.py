"""The log lines of a run in progress."""

from collections.abc import Mapping

from fairbloom.errors import MAX_LISTED
from fairbloom.protocol.scores import Score
from fairbloom.rounds.round import Round
from fairbloom.text import text_if

from .run_folder.csv_rows import ENDINGS


def summarize_row(row: Mapping[str, object], score: Score, model: str = "global") -> str:
    """Return the scores of an evaluated round as text, "" for a round without evaluation.

    `model` is the kind of model that serves clients; those of personal models follow, if there are.
    """
    served = _mean_and_worst(row, score, model)
    if served is None:
        return ""
    mean, worst = served
    scored = row.get("clients_scored")
    clients = row.get("clients")
    partial = isinstance(scored, int) and isinstance(clients, int) and scored < clients
    over = text_if(partial, f" over {scored} of {clients} clients")
    personal = _mean_and_worst(row, score, "personal") if model != "personal" else None
    also = ""
    if personal is not None:
        also = f"; personal models {score.written(personal[0])} and {score.written(personal[1])}"
    return (
        f": test {score.name} {score.written(mean)}{over}, of the worst 10 % of clients"
        f" {score.written(worst)}{also}"
    )


def _mean_and_worst(
    row: Mapping[str, object], score: Score, model: str
) -> tuple[float, float] | None:
    """Return the mean of a kind of models and the mean of the worst 10 %, None without them."""
    column = score.column(model)
    mean = row.get(f"{column}_mean")
    worst = row.get(f"{column}_worst_10")
    return (mean, worst) if isinstance(mean, float) and isinstance(worst, float) else None


def name_worst_served(finished: Round, score: Score, model: str = "global") -> str:
    """Return the MAX_LISTED clients with the worst scores and the one with the best, as text."""
    metric = score.name + ENDINGS[model]
    measured = {
        name: score.shown(m[metric]) for name, m in finished.evaluations.items() if metric in m
    }
    if not measured:
        return f"no client reported its {score.name}"
    *others, best = sorted(measured, key=lambda name: (score.better(measured[name], 0.0), name))
    worst = others[:MAX_LISTED] or [best]
    shown = ", ".join(f"{name} {score.written(measured[name])}" for name in worst)
    return f"{shown}; best: {best} {score.written(measured[best])}"
