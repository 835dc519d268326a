"""The answer of a recommendation: the best of a search is measured with fresh seeds, and told from the baseline."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from fairbloom.errors import FairbloomError

from ..recipes.commands import deploy_command, run_command
from ..results.caveats import caveats_of_run
from ..results.comparison import Comparison, Plan, read_comparison
from ..results.differences import Difference, difference_of, differences_of
from ..results.other_scores import Contradiction, Move
from ..results.recommendation import Cost, Improvement, Recommendation
from ..results.run import load
from .objective import ClientScores, choose, served_label
from .search import Search
from .trials import Trials

FRESH_FROM, MOST_FRESH = 1000, 20
"""Fresh seeds begin so many after the first seed of the search; there are at most so many, for more say little more."""

FEW_CLIENTS = 10
"""Up to so many clients, those that lose are named."""


class Recommender:
    """The answer to a wish: the best of the search, if it is significantly better with fresh seeds.

    Equal weights are preferred where they are as good. So the test examples decide between at most three candidates,
    two of which were named before anything was run.
    """

    def __init__(self, trials: Trials, search: Search, seed: int, at_a_time: int) -> None:
        self._trials, self._search, self._at_a_time = trials, search, at_a_time
        self._fresh = range(seed + FRESH_FROM, seed + FRESH_FROM + MOST_FRESH)
        self.seeds: Sequence[int] = ()
        self._lacking = 0  # finished fresh seeds without a gap of the wish
        self.notes: list[str] = []
        self.best = self._best()

    def _best(self) -> str:
        best = choose(self._search.ratings)
        rung = self._search.rung
        if rung is None:
            self.notes.append("The budget was too short to judge a single method: raise it by --budget.")
        elif rung.rounds < self._trials.rounds:
            self.notes.append(
                f"The search ended after {rung.rounds} of {self._trials.rounds} rounds: a higher --budget goes on."
            )
        if rung is not None and best is None:
            self.notes.append("No candidate keeps all that the wish asks for, on validation examples.")
        return best or self._trials.baseline

    @property
    def finalists(self) -> list[str]:
        """The labels of those that are measured with fresh seeds, the baseline first."""
        labels = dict.fromkeys([*self._trials.always, self.best])
        return [label for label in labels if label == self.best or label not in self._trials.failed]

    def measure(self, until: float) -> None:
        """Run the finalists with fresh seeds while there is time, where there is anything to tell from the baseline."""
        if self._search.rung is None or self.best == self._trials.baseline:
            return
        took, step = 0.0, min(self._at_a_time, MOST_FRESH)
        for start in range(0, MOST_FRESH, step):
            if start and time.monotonic() + took > until:
                break
            try:
                took = self._trials.fresh(self.finalists, self._fresh[start : start + step], until)
            except TimeoutError:
                break
            if self.best in self._trials.failed:
                break
        finished = self._trials.finished_fresh(self.finalists, self._fresh)
        self.seeds = [seed for seed in finished if self._trials.reports_gaps(seed)]
        self._lacking = len(finished) - len(self.seeds)
        if self._lacking:
            self.notes.append(
                f"With {self._lacking} of {len(finished)} fresh seeds too few test examples stand behind the gap, so "
                "these seeds do not count: raise test-share or lower smallest-group."
            )

    @cached_property
    def comparison(self) -> Comparison | None:
        """The comparison of the finalists with fresh seeds; None where there is none, or clients cannot be compared."""
        if not self.seeds:
            return None
        trials = self._trials
        runs = {
            label: [f"runs/{Path(trials.fresh_settings(label, seed).out).name}" for seed in self.seeds]
            for label in self.finalists
        }
        plan = Plan(runs, list(self.seeds), trials.baseline)
        try:
            comparison = read_comparison(trials.out, plan)
        except FairbloomError as error:
            trials.failed[self.best] = str(error)
            return None
        plan.write(trials.out)
        return comparison

    def recommendation(self) -> Recommendation:
        """Return the answer."""
        label = self._decide()
        trials, contender = self._trials, self._trials.contenders[label]
        config = dict(contender.config)
        return Recommendation(
            wish=trials.wish.text,
            label=label,
            method=contender.variant.method,
            parameters=contender.variant.given,
            settings=config,
            gain=self._gain(label),
            price=self._price(label),
            command=run_command(config),
            deploy=deploy_command(config),
            fresh_seeds=tuple(self.seeds),
            as_good=self._as_good(label),
            tried=self._search.tried,
            untried=self._search.untried,
            failed=dict(trials.failed),
            notes=(*self.notes, *self._limits(label)),
            clients=0 if self.comparison is None else len(self._served(label)[0].scores),
            score=trials.score,
            judged=trials.judged,
            folder=trials.out,
        )

    # What fresh seeds decide ------------------------------------------------------------------------------------------

    def _decide(self) -> str:
        """Return the label of the answer."""
        baseline, best = self._trials.baseline, self.best
        equal = self._trials.equal if self._trials.equal in self.finalists else baseline
        if best == baseline:
            return baseline
        if self.comparison is None or len(self.seeds) < 2:
            self.notes.append(
                f"{best} was the best of the search, but could not be measured with fresh seeds."
                if best in self._trials.failed or self._lacking
                else f"{best} was the best of the search, but there was no time to measure it with two fresh seeds: "
                "raise --budget, and the same command goes on."
            )
            return baseline
        clear = self._clearly_better(best, equal)
        keeping = [label for label in (best, equal, baseline) if self._keeps(label)]
        if best not in keeping:
            self.notes.append(f"{best} was the best of the search, but misses a constraint with fresh seeds.")
        better = [label for label in keeping if clear.get(label)]
        if equal in better and not is_better(difference_of(self._differences(best, equal))):
            return equal
        if best in better or (best in keeping and baseline not in keeping):
            if baseline not in keeping:
                self.notes.append(f"{baseline} misses a constraint, which {best} keeps.")
            return best
        if best in keeping:
            all_run = len(self.seeds) + self._lacking == len(self._fresh)
            more = "" if all_run else ": a higher --budget measures with more"
            seeds = f"{len(self.seeds)} fresh seeds{more}"
            self.notes.append(
                f"{best} was the best of the search, but does not differ significantly from {baseline} with {seeds}."
            )
        return equal if equal in better else baseline

    def _clearly_better(self, *labels: str) -> Mapping[str, bool]:
        """Return whether candidates are clearly better than the baseline, with Holm's correction."""
        baseline = self._trials.baseline
        found = differences_of({label: self._differences(label, baseline) for label in labels if label != baseline})
        return {label: is_better(each) for label, each in found.items()}

    def _keeps(self, label: str) -> bool:
        """Return whether a candidate keeps all constraints, in the mean over the fresh seeds."""
        trials = self._trials
        return all(
            constraint.excess(self._served(label), self._served(reference), trials.score) <= 0.0
            for constraint, reference in zip(trials.wish.constraints, trials.references, strict=True)
        )

    def _served(self, label: str) -> list[ClientScores]:
        """Return how a candidate serves the test examples, seed by seed; nothing where there is no comparison."""
        return [] if self.comparison is None else ClientScores.under(self.comparison, label)

    def _differences(self, label: str, against: str) -> list[float]:
        """Return by how much better one candidate is than another in what is wished for, seed by seed."""
        goal, score = self._trials.wish.goal, self._trials.score
        pairs = zip(self._served(label), self._served(against), strict=True)
        return [goal.first.better(goal.of(mine, score), goal.of(theirs, score), score) for mine, theirs in pairs]

    # What is said of it -----------------------------------------------------------------------------------------------

    def _gain(self, label: str) -> Improvement:
        measure, baseline = self._trials.wish.goal.title, self._trials.baseline
        if label == baseline:
            return Improvement(measure, 0.0, 0.0, 0.0, baseline)
        return Improvement.of(measure, self._differences(label, baseline), baseline)

    def _limits(self, label: str) -> list[str]:
        """Return what an answer other than the baseline does not say, in sentences."""
        trials, limits = self._trials, []
        if label == trials.baseline or self.comparison is None:
            return []
        limits += [each.sentence for each in self._contradictions(label)]
        each = self._differences(label, trials.baseline)
        limits.append(f"Single seeds gained {min(each):.3g} to {max(each):.3g}.")
        if trials.contenders[label].evaluated == "personal":
            limits.append("It is judged by personal models, which clients keep between rounds; newcomers have none.")
        if share := self.comparison.shared.test_share:
            found = difference_of(each, test_share=share)
            shown = "is shown" if found.clear else "is not shown"
            interval = f": corrected for that (Nadeau and Bengio), it is {found.low:.3g} to {found.high:.3g}"
            if self.comparison.shared.assumed:
                split = "What seeds share of this task's data is not known; they may split the same examples again."
            else:
                split = "Seeds split the same examples again and again."
            limits.append(
                f"{split} That other examples of these clients bring a gain "
                f"{shown}{'' if math.isnan(found.low) else interval}."
            )
        if self.comparison.shared.fixed:
            limits.append("All seeds test on the same examples: what others would give is not measured.")
        return [*limits, *caveats_of_run(load(trials.fresh_settings(trials.baseline, self.seeds[0]).out))]

    def _price(self, label: str) -> Cost:
        trials = self._trials
        if label == trials.baseline:
            return Cost()
        changes = self._changes(label)
        each = [change for of_seed in changes for change in of_seed.values()]
        costs = {name: trials.cost_of_a_round(name, self.seeds) for name in (label, trials.baseline)}
        masked = self.masked_losses(label)
        sent, seconds = (mine - theirs for mine, theirs in zip(costs[label], costs[trials.baseline], strict=True))
        return Cost(
            mean=statistics.fmean(statistics.fmean(of_seed.values()) for of_seed in changes),
            percent_worse_off=100.0 * sum(change < 0.0 for change in each) / len(each),
            losing=self._losing(changes) | {client: move.gain for client, move in masked.items()},
            losing_by={client: move.score.name for client, move in masked.items()},
            bytes_a_round=sent,
            seconds_a_round=seconds,
        )

    def _changes(self, label: str) -> list[Mapping[str, float]]:
        """Return by how much better off each client is than under the baseline, seed by seed."""
        pairs = zip(self._served(label), self._served(self._trials.baseline), strict=True)
        better = self._trials.score.better
        return [
            {client: better(mine.scores[client], value) for client, value in theirs.scores.items()}
            for mine, theirs in pairs
        ]

    def _contradictions(self, label: str) -> list[Contradiction]:
        """Return the clients of which another score says the opposite; none where clients are many."""
        if self.comparison is None or len(self.comparison.clients_compared) > FEW_CLIENTS:
            return []
        method = served_label(self.comparison, label)
        return [each for each in self.comparison.contradictions if each.method == method]

    def masked_losses(self, label: str) -> dict[str, Move]:
        """Return who gains by the score of the wish and loses by another, with the first such score."""
        return {each.client: each.others[0] for each in self._contradictions(label) if each.main.gain > 0.0}

    def _losing(self, changes: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return who clearly loses, and how much; nobody where clients are many, or other ones with each seed."""
        clients = list(dict.fromkeys(client for of_seed in changes for client in of_seed))
        if self.comparison is None or self.comparison.shared.dealt or len(clients) > FEW_CLIENTS:
            return {}
        differences = differences_of({name: [each[name] for each in changes if name in each] for name in clients})
        losing = {name: found.mean for name, found in differences.items() if found.clear and found.mean < 0.0}
        return dict(sorted(losing.items(), key=lambda pair: pair[1]))

    def _as_good(self, label: str) -> tuple[str, ...]:
        """Return what does not differ significantly from the answer on validation examples, or with fresh seeds."""
        ratings, goal, score = self._search.ratings, self._trials.wish.goal, self._trials.score
        if label not in ratings:
            return ()
        mine = ratings[label].values
        worse = {
            other: [goal.first.better(a, b, score) for a, b in zip(mine, each.values, strict=True)]
            for other, each in ratings.items()
            if other != label and each.violation == 0.0
        }
        if self.comparison is not None and len(self.seeds) > 1:
            worse |= {other: self._differences(label, other) for other in self.finalists if other in worse}
        differences = differences_of(worse) if worse else {}
        return tuple(other for other, each in differences.items() if not is_better(each))


def is_better(found: Difference) -> bool:
    """Return whether differences are significantly positive.

    The t test needs differences that vary; for equal ones the sign test decides.
    """
    by_sign = found.error == 0.0 and found.seeds >= 6  # p = 2 / 2⁶ < 0.05, two-sided
    return found.mean > 0.0 and (found.clear or by_sign)
