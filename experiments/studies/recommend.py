"""A recommendation: candidates are halved on validation examples, and the best is measured with seeds it never met."""

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.server.settings import Settings, check_used
from fairbloom.system.files import write_whole

from ..recipes.variants import config_of
from ..results.plans import RECOMMENDATION
from ..results.recommendation import Recommendation, rows_of
from .candidates import candidates_for
from .driver import carry_out, write_tables
from .objective import Objective
from .pool import check_runs
from .recommender import Recommender
from .score import fix_score, load_agreed
from .search import Search, rungs_of
from .trials import Contender, Trials

SEEDS = ((1, 1), (2, 2), (4, 8))
"""With how many seeds each rung of the search judges, at least and, where there is time, at most."""

SEARCH_SHARE = 0.5
"""The share of the budget that the search may take; the rest is for measuring what it has found with fresh seeds."""

OPTIONS = {"method": "none, as it chooses the method", "seed": "--seed", "out": "--out"}
"""The settings that a recommendation sets itself, run by run, and the options that are for them."""


def parse_budget(text: str) -> float:
    """Return the seconds of a time such as 10m, 90s, 1h or 1h30m; raise SettingsError for anything else."""
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text.strip().lower(), re.ASCII)
    parts = match.groups(default="0") if match else ()
    if not (seconds := sum(int(part) * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))):
        raise SettingsError(f"budget = {text!r}: write a time as 10m, 90s, 1h or 1h30m")
    return float(seconds)


def recommend_method(
    config: Mapping[str, Value],
    wish: Objective,
    budget: float,
    seed: int,
    out: Path,
    jobs: int,
    notify: Callable[[str], None] = lambda stage: None,
) -> Recommendation:
    """Return which method to take for a wish, found within a budget of wall-clock time.

    The seeds of the search count on from `seed`; no run goes on after `budget` seconds. `notify` is called with what is
    being done, when that begins and after each run.
    """
    from fairbloom.tasks.score import decide_score  # imported late, as PyTorch is with it

    begun, out = time.monotonic(), out.absolute()
    contenders = _contenders(config, wish)
    first = Settings.of({**contenders[0].config, "seed": seed})
    check_used(config, [each.variant.method for each in contenders], first.task)
    task = load_agreed(first)
    score = decide_score(first, task)
    wish.check(score, task.clients, task.group_scores if task.groupings else ())
    given = fix_score(first, task)
    contenders = [replace(each, config={**each.config, **given}) for each in contenders]
    stages = ["searching"]
    with carry_out(out, jobs, lambda: notify(stages[-1]), "recommendation", log_level=logging.ERROR) as work:
        trials = Trials(work, out, contenders, wish, score, wish.measured_in(score, task.group_scores))
        candidates = [label for label in trials.contenders if label not in trials.failed]
        check_runs({(label, seed): trials.search_settings(label, seed, trials.rounds) for label in candidates})
        notify(stages[-1])
        rungs = rungs_of(first, SEEDS)
        search = Search(trials, candidates, rungs, range(seed, seed + rungs[-1].most), jobs)
        search.run(until=begun + SEARCH_SHARE * budget)
        stages.append("measuring with fresh seeds")
        notify(stages[-1])
        recommender = Recommender(trials, search, seed, jobs)
        recommender.measure(until=begun + budget)
        found = recommender.recommendation()
        _write(found)
        return found


def _contenders(config: Mapping[str, Value], wish: Objective) -> list[Contender]:
    """Return the candidates, each with the settings of its runs."""
    for key, value in config.items():
        if key in OPTIONS:
            raise SettingsError(f"{key} = {value!r}: a recommendation sets {key} run by run: use {OPTIONS[key]}")
    if "validation-share" in config and not config["validation-share"]:
        raise SettingsError("validation-share = 0: a recommendation chooses by validation examples: leave it out")
    wished = [each.method for each in wish.constraints if each.method is not None]
    among = candidates_for(config, wished, wish.gap_scores)
    return [Contender(variant, config_of(variant, among, config)) for variant in among]


def _write(found: Recommendation) -> None:
    """Write the answer, and how far each candidate came, into the folder of the recommendation."""
    write_tables(found.folder, {"tried.csv": rows_of(found.tried)})
    with explain_write_errors("the recommendation", found.folder):
        write_whole(found.folder / RECOMMENDATION, json.dumps(found.record, indent=2, ensure_ascii=False).encode())
