"""The log lines of a run in progress."""

from collections.abc import Mapping

from fairbloom.protocol.scores import Score
from fairbloom.text import text_if


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
    ends = f", of the worst 10 % of clients {score.written(worst)}"
    if score.noisy:  # the lowest of noises is among the worst
        ends = ", perhaps with the noise of privacy accounts"
    return f": test {score.name} {score.written(mean)}{over}{ends}{also}"


def _mean_and_worst(
    row: Mapping[str, object], score: Score, model: str
) -> tuple[float, float] | None:
    """Return the mean of a kind of models and the mean of the worst 10 %, None without them."""
    column = score.column(model)
    mean = row.get(f"{column}_mean")
    worst = row.get(f"{column}_worst_10")
    return (mean, worst) if isinstance(mean, float) and isinstance(worst, float) else None
