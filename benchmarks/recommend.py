"""Whether recommendations keep what they say: the answer is run twenty times over ten fresh seeds each.

Prints, for each case, the answers that searches with other seeds give, with the gain that each says; then how many
of the twenty means lie at or above the lower end of its interval, and how many within it. FAIRBLOOM_DATA has the
hospitals and Fashion-MNIST; finished runs in --out are not run again.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fairbloom import Recommendation, compare, recommend
from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.studies.objective import ClientScores, Objective
from fairbloom.protocol.settings import Value
from fairbloom.simulation.dispatch.processes import processors_here

CHECKED_FROM = 100_000
"""The first of the seeds with which answers are checked, which no search has met."""

SEED_STEP = 2_000
"""How far apart the seeds of two searches are; their fresh seeds begin 1000 after the first."""


@dataclass(frozen=True)
class Case:
    """A task with its settings, and what is wished for."""

    settings: Mapping[str, Value]
    wish: str = "worst as high as possible"


CASES = {
    "digits, three of ten clients rotated": Case(
        {"clients": 10, "num-rounds": 20, "partition": "iid", "digits.rotated-clients": 3}
    ),
    "digits, mean within 1 point of FedAvg": Case(
        {"clients": 10, "num-rounds": 20, "partition": "iid", "digits.rotated-clients": 3},
        "worst as high as possible, mean within 1 point of FedAvg",
    ),
    "digits, all clients alike": Case({"clients": 5, "num-rounds": 20, "partition": "iid"}, "mean as high as possible"),
    "four hospitals": Case({"task": "heart-disease", "num-rounds": 50, "learning-rate": 0.01}),
    "four hospitals, Hungary": Case(
        {"task": "heart-disease", "num-rounds": 50, "learning-rate": 0.01}, "client hungarian as high as possible"
    ),
    "Fashion-MNIST, one class a client": Case(
        {
            "task": "fashion-mnist",
            "model": "logistic",
            "partition": "class",
            "clients": 10,
            "batch-size": 200,
            "num-rounds": 5,
        }
    ),
}


def check(name: str, answer: Recommendation, case: Case, means: int, seeds: int, out: Path, jobs: int) -> list[float]:
    """Return the mean gains of an answer over so many fresh seeds each."""
    if answer.is_baseline:
        return [0.0] * means
    given = ",".join(f"{key}={value}" for key, value in answer.parameters.items())
    rest = {key: value for key, value in case.settings.items() if key not in answer.parameters}
    compared = compare(
        methods=f"fedavg,{answer.method}({given})",
        baseline="fedavg",
        seeds=means * seeds,
        seed=CHECKED_FROM,
        jobs=jobs,
        out=out / name / "checked" / answer.label.replace("/", "-"),
        settings={**rest, "evaluate-every": 0},
    )
    each = gains(compared, answer.label, case.wish)
    return [statistics.fmean(each[start : start + seeds]) for start in range(0, means * seeds, seeds)]


def gains(compared: Comparison, label: str, text: str) -> Sequence[float]:
    """Return by how much better a method is than FedAvg in what is wished for, seed by seed."""
    goal, score = Objective.of(text).goal, compared.score
    pairs = zip(ClientScores.under(compared, label), ClientScores.under(compared, compared.baseline), strict=True)
    return [goal.first.better(goal.of(mine, score), goal.of(theirs, score), score) for mine, theirs in pairs]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), help="words that the names of cases contain")
    parser.add_argument("--budget", default="2m", help="of each search with its answer")
    parser.add_argument("--answers", type=int, default=3, help="searches of each case, with seeds of their own")
    parser.add_argument("--means", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=10, help="seeds of each mean")
    parser.add_argument("--out", type=Path, default=Path("runs/recommendations"))
    parser.add_argument("--jobs", type=int, default=processors_here())
    chosen = parser.parse_args()
    console = Console(width=160)
    table = Table("case", "answer", "gain", "low", "high", "fresh seeds", "mean found", "at or above low", "within")
    for name, case in CASES.items():
        if not any(word.casefold() in name.casefold() for word in chosen.cases):
            continue
        for number in range(chosen.answers):
            answer = recommend(
                wish=case.wish,
                budget=chosen.budget,
                seed=number * SEED_STEP,
                out=chosen.out / name / f"answer-{number}",
                jobs=chosen.jobs,
                settings=case.settings,
            )
            found = check(name, answer, case, chosen.means, chosen.seeds, chosen.out, chosen.jobs)
            gain = answer.gain
            above = sum(mean >= gain.low for mean in found)
            within = sum(gain.low <= mean <= gain.high for mean in found)
            row = (
                *(name, answer.label, f"{gain.mean:.2f}", f"{gain.low:.2f}", f"{gain.high:.2f}"),
                *(str(len(answer.fresh_seeds)), f"{statistics.fmean(found):.2f}"),
                *(f"{above} of {len(found)}", f"{within} of {len(found)}"),
            )
            table.add_row(*row)
            console.print(" | ".join(row))
    console.print(table)


if __name__ == "__main__":
    main()
