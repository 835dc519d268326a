"""The page of a comparison: who gains, who loses, and how sure that is."""

import shlex
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fairbloom.strategies import METHODS, canonical
from fairbloom.strategies.registry import source_of
from fairbloom.text import join_first, plural, text_if

from ..render.page import Cell, Chart, Charts, Note, Page, Section, Table, slug
from ..render.theme import Series
from ..results.compared_scores import SHOWN, personal_label
from ..results.comparison import Comparison
from ..results.differences import CLAIMED, FEWEST_SEEDS, MEAN, WORST, mean_by_client
from ..results.joining import LOSES, describe_clients, describe_mean, outcome_of
from ..results.measures import find_measure
from ..results.noise import Values
from ..results.presentation import page_of
from ..results.subject import Subject
from . import charts
from .about import about_section, words_section
from .cells import CLEAR, NONE, Digits, about_worst, mark_significant, tone_of
from .chart_rows import Line, Scene, shown_of, spanned, worst_first
from .group_sections import gaps_table, subgroups_section, without_gaps
from .sections import (
    LIMITS,
    about_reference,
    absences_section,
    files_of,
    named_charts,
    notes_section,
    ordered_charts,
    present,
    reference_column,
    rounds_section,
    score_columns,
    settings_section,
    table_of_clients,
)

# The title of the section on whether joining pays.
JOINING = "Is it worth joining?"

# What its table has.
ABOUT_JOINING = (
    "95 % intervals. Those of the first row are widened, so that all hold at once; those of clients"
    " are not, so of many clients one in twenty gains or loses by chance. Common models only: with"
    " validation examples the baseline and the best on these, without them all."
)

# The heading of the percentage of participants with a training loss that did not rise.
IMPROVED = "improved, %"

# The measures of which differences are shown.
COMPARED = (WORST, MEAN, "std")

# Up to this many clients are points of a chart; scores of more are lines.
POINTS_SHOWN = 16


@page_of.register
def page_of_comparison(comparison: Comparison) -> Page:
    """Return the page of a comparison."""
    folder = comparison.folder
    lines = lines_of(comparison)
    facts: dict[str, object] = {
        "baseline": comparison.baseline,
        "clients": comparison.client_count,
        "seeds": len(comparison.seeds),
    }
    about = ""
    about_runs = []
    if lines:
        facts["rounds"] = lines[0].runs[0].rounds_done
        subject = Subject.of(lines[0].runs[0])
        about = subject.title
        about_runs.append(about_section(subject, lines[0].runs))
    count = len([line for line in lines if not line.same_runs_as]) or len(comparison.methods)
    brief = brief_sections(comparison)
    said = [comparison.verdict.headline, *comparison.verdict.sentences]
    if comparison.joining:
        said.insert(0, describe_mean(comparison.joining[0], comparison))
    figures = [path for end in ("png", "svg") if (path := folder / f"clients.{end}").exists()]
    figure = [("figure", str(figures[0]))] if figures else []
    return Page(
        title=f"{count} method{plural(count, '', 's')} compared{about}",
        headline=said[0],
        sentences=said[1:],
        facts=[(name, str(value)) for name, value in facts.items()],
        sections=brief,
        details=partial(detailed_sections, comparison, lines, brief),
        files=files_of(folder, "tables and runs", *figure),
        figure=partial(_named_charts if comparison.has_noise else sorted_charts, comparison),
        about=about_runs,
    )


def joining_section(comparison: Comparison) -> Section | None:
    """Return whether joining pays, against training alone, in the mean and by client."""
    if not comparison.joining:
        remedy = "add local to --methods, in the same folder, or runs of local to --runs"
        if any(run.of_app for runs in comparison.runs.values() for run in runs):
            remedy = "local needs a task of yours in place of an app"
        how = (
            "Training alone is not among the methods, so it is not known whether joining pays:"
            f" {remedy}."
        )
        return None if comparison.trained_alone else notes_section("joining", JOINING, [how])
    digits = Digits(comparison.gain_decimals)
    joinings = comparison.joining
    said = describe_clients(joinings, comparison)
    means = [digits.difference(joined.mean) for joined in joinings]
    rows = [[Cell("mean over clients"), *means]]
    for client in shown_of(_order(comparison)):
        if client in joinings[0].clients:
            gains = [digits.difference(joined.clients[client]) for joined in joinings]
            rows.append([Cell(comparison.shown_name(client)), *gains])
    table = Table(
        "joining",
        f"Gain over training alone: test {comparison.score.title}",
        ["client", *(joined.method for joined in joinings)],
        rows,
        ABOUT_JOINING,
        folded=len(rows) > 12,
    )
    return Section("joining", JOINING, "", [*([Note(said)] if said else []), table])


def brief_sections(comparison: Comparison) -> list[Section]:
    """Return the methods, the clients, gaps between groups, and what limits the numbers."""
    few = len(_order(comparison)) <= POINTS_SHOWN and not _first_only(comparison)
    named = few or comparison.has_noise  # noise makes an order of its own
    drawn = _named_charts(comparison) if named else sorted_charts(comparison)
    marks = (
        "Points are means over the seeds, lines"
        if named
        else "Lines are means over the seeds, bands"
    )
    intro = (
        f"The {comparison.score.words} of the final models on each client's own test examples."
    ) + text_if(len(comparison.seeds) > 1, f" {marks} span them from the lowest to the highest.")
    clients = Section(
        "clients", "Each client under each method", intro, [drawn, client_table(comparison)]
    )
    reports = {
        label: by_seed
        for label, by_seed in comparison.by_group.items()
        if label in comparison.shown
    }
    gaps = [gaps_table(reports, comparison.baseline)] if reports else []
    limits = (*comparison.caveats, _left_out(comparison), without_gaps(comparison.by_group))
    return present(
        [
            joining_section(comparison),
            notes_section("findings", "Further findings", comparison.verdict.further),
            _methods_section(comparison),
            clients,
            Section("gaps", "Gaps between groups", "", gaps) if gaps and gaps[0].rows else None,
            notes_section("caveats", LIMITS, [*filter(None, limits)]),
            _next_section(comparison),
        ]
    )


def _next_section(comparison: Comparison) -> Section | None:
    """Return the command for a model to use, or that clients train alone; None for apps' runs.

    Runs under privacy accounts cannot be trained again either.
    """
    runs = comparison.runs.get(comparison.baseline, ())
    if not runs or runs[0].of_app or runs[0].privacy:
        return None
    if comparison.joining and all(
        outcome_of(joined.mean) == LOSES for joined in comparison.joining
    ):
        said = f"Train alone ({comparison.joining[0].alone}): no common model is better."
        return notes_section("next", "What next", [said])
    better = comparison.verdict.improving
    chosen = _arm_of(better[0] if better else comparison.baseline, comparison)
    command = "fairbloom deploy submit --refit" if comparison.deployed else "fairbloom refit"
    folder, method = (shlex.quote(word) for word in (str(comparison.folder), chosen))
    said = f"For a model to use, train a method on all rows: {command} {folder} --method {method}"
    return notes_section("next", "What next", [said])


def _arm_of(label: str, comparison: Comparison) -> str:
    """Return the label of the runs behind a method that is compared, of personal models too."""
    return next(arm for arm in comparison.runs if label in (arm, personal_label(arm)))


def _left_out(comparison: Comparison) -> str:
    """Return in a sentence which clients are left out with how many seeds, or ""."""
    counts = Counter(client for names in comparison.left_out.values() for client in names)
    named = join_first(
        [f"{client} ({count} of {len(comparison.seeds)} seeds)" for client, count in counts.items()]
    )
    return text_if(
        counts,
        f"Left out, as some method has no test {comparison.score.words} of them: {named}.",
    )


def detailed_sections(
    comparison: Comparison, lines: Sequence[Line], brief: Sequence[Section]
) -> list[Section]:
    """Return the sections that only the report of a comparison has."""
    scene = Scene(
        lines,
        comparison.score,
        shown_of(_order(comparison)),
        _first_only(comparison),
        comparison.client_count,
    )
    found = present(
        [
            _differences_section(comparison),
            rounds_section(scene),
            subgroups_section(scene, comparison.by_group),
            absences_section(scene.trained),
        ]
    )
    return [
        *found,
        words_section([*brief, *found], [line.runs[0] for line in scene.trained]),
        settings_section(scene.trained),
    ]


def lines_of(comparison: Comparison) -> list[Line]:
    """Return the methods with their runs, the baseline first.

    Personal models follow the method that they are of, or stand for it if it is not shown.
    """
    lines = []
    for label, runs in comparison.runs.items():
        lines.append(Line(label, runs, "personal" if label in comparison.personal else "global"))
        if (personal := personal_label(label)) in comparison.personal:
            lines.append(
                Line(personal, runs, "personal", text_if(label in comparison.shown, label))
            )
    return sorted(
        (line for line in lines if line.label in comparison.shown),
        key=lambda line: line.label != comparison.baseline,
    )


def _first_only(comparison: Comparison) -> bool:
    """Return whether clients are shown for the first seed only: others split the data again."""
    return comparison.shared.clients_differ and len(comparison.seeds) > 1


def by_name(comparison: Comparison, method: str) -> dict[str, float]:
    """Return each client's score: the mean over seeds, or the first if seeds split the data."""
    seeds = 1 if _first_only(comparison) else len(comparison.seeds)
    return mean_by_client(comparison.values[method][:seeds])


def _series(comparison: Comparison) -> list[Series]:
    return charts.series_of(comparison.shown, comparison.baseline, comparison.personal)


# Methods ------------------------------------------------------------------------------------------


def _methods_section(comparison: Comparison) -> Section:
    """Return all measures of the methods, and which of them are on the Pareto front."""
    worst = find_measure("worst_10").title(comparison.client_count)
    front = _pareto_front(comparison)
    intro = (
        f"On the Pareto front, where no other method is better in the mean and in the {worst}:"
        f" {', '.join(front)}."
    )
    # noise would choose the front
    return Section(
        "methods",
        "Methods",
        text_if(not comparison.has_noise, intro),
        [method_table(comparison), Note(["Cite the methods that you use.", *_papers(comparison)])],
    )


def _pareto_front(comparison: Comparison) -> list[str]:
    """Return the methods that no other beats in the mean or worst tenth without losing in one."""
    keys = ("mean", "worst_10")
    means = {
        method: [comparison.estimate(method, key).value for key in keys]
        for method in comparison.shown
    }
    front = []
    for method, own in means.items():
        for others in means.values():
            gained = [comparison.score.better(*pair) for pair in zip(others, own, strict=True)]
            if min(gained) >= 0.0 < max(gained):
                break
        else:
            front.append(method)
    return front


def _papers(comparison: Comparison) -> list[str]:
    """Return the papers of our methods that are compared."""
    named = dict.fromkeys(
        canonical(str(runs[0].settings.get("method", ""))) for runs in comparison.runs.values()
    )
    ours = [METHODS[name] for name in named if name in METHODS]
    return [f"{method.__name__}: {source_of(method)}" for method in ours]


def method_table(comparison: Comparison) -> Table:
    """Return a row per method: measures over clients, and differences to the baseline."""
    seeds = len(comparison.seeds)
    keys = (*SHOWN, *comparison.held_out_measures)
    titles = [find_measure(key).title(comparison.client_count) for key in keys]
    means = {
        method: [comparison.estimate(method, key) for key in keys] for method in comparison.shown
    }
    digits = Digits(comparison.decimals)
    found = [comparison.differences(measure) for measure in (MEAN, WORST)]
    gains: dict[str, list[Cell]] = {method: [] for method in found[0]}
    for of in found:
        for method, cells in gains.items():
            cell = Digits(comparison.gain_decimals).difference(of[method])
            cells.append(mark_significant(cell, of[method]))
    headings = [f"gain, {title}" for title in (titles[0], titles[2])] if gains else []
    blank = [NONE] * len(headings)
    rows = [
        [Cell(name), *map(digits.estimate, values), *gains.get(name, blank)]
        for name, values in means.items()
    ]
    for method, words in comparison.failed.items():
        if method not in comparison.methods:
            rows.append([Cell(f"{method}: {words}"), *[NONE] * len(titles), *blank])
    if improved := {name: statistics.fmean(values) for name, values in comparison.improved.items()}:
        headings.append(IMPROVED)
        for row in rows:
            row.append(Digits(1).cell(improved.get(row[0].text)))
    intervals = (
        f", with 95 % intervals. {CLEAR} p < 0.05 (paired t test, Holm's correction)"
        f"{text_if(comparison.extended_from, f', extended from {comparison.extended_from} seeds')}"
    )
    tested = sum(map(bool, comparison.held_out[comparison.baseline]))
    new = f" Not in training: scores of the common model (seeds: {tested})."
    note = (
        f"{plural(seeds, 'Gains', f'Mean over {seeds} seeds; gains')} are against"
        f" {comparison.baseline}, paired by seed{text_if(seeds >= FEWEST_SEEDS, intervals)}."
        f"{about_worst(titles[2], seeds)}{text_if(tested, new)}"
    )
    return Table(
        "methods",
        f"Final models over clients: test {comparison.score.title}",
        ["method", *titles, *headings],
        rows,
        text_if(gains, note),
    )


# Clients ------------------------------------------------------------------------------------------


def sorted_charts(comparison: Comparison) -> Charts:
    """Return a chart with a line for each method over its ordered clients, or one per method."""
    return ordered_charts(
        {label: comparison.values[label] for label in comparison.shown},
        _series(comparison),
        comparison.score,
    )


def _named_charts(comparison: Comparison) -> Charts:
    """Return a chart with a point for each client and method."""
    finals = dict[str, list[Values]]()
    for label in comparison.shown:
        finals[label] = []
        for of_seed in zip(comparison.values[label], comparison.noise[label], strict=True):
            finals[label] += spanned(*of_seed)
    return named_charts(
        finals,
        _series(comparison),
        shown_of(_order(comparison)),
        comparison.score,
        comparison.shown_name,
    )


def _order(comparison: Comparison) -> list[str]:
    """Return the clients, the worst served under the baseline first; by name if they have noise."""
    return worst_first(
        by_name(comparison, comparison.baseline),
        comparison.score,
        comparison.noise_of_means(comparison.baseline),
    )


def client_table(comparison: Comparison) -> Table:
    """Return the score of each client under each method.

    Of many clients the worst and the best served.
    """
    seeds = len(comparison.seeds)
    first_only = _first_only(comparison)
    values = {method: by_name(comparison, method) for method in comparison.shown}
    order = _order(comparison)
    noise = {method: comparison.noise_of_means(method) for method in comparison.shown}
    references = {} if first_only else comparison.references
    over = (
        ", of the first seed, as each deals the data in its own way"
        if first_only
        else text_if(
            seeds > 1,
            f", mean over {text_if(comparison.held_out_measures, 'up to ')}{seeds} seeds",
        )
    )
    columns = reference_column(comparison.score, references)
    first = text_if(
        not noise[comparison.baseline], f", the worst served under {comparison.baseline} first"
    )
    return table_of_clients(
        f"Each client{first}: test {comparison.score.title}{over}",
        order,
        columns | score_columns(comparison.score, values, noise),
        comparison.shown_name,
        text_if(not first_only, about_reference(comparison.score, references, order)),
    )


# Differences --------------------------------------------------------------------------------------


def _differences_section(comparison: Comparison) -> Section | None:
    """Return by how much each method is better than the baseline, with intervals."""
    base = comparison.baseline
    if len(comparison.shown) == 1:
        return None
    panels = []
    cells = []
    for measure, score in {
        **dict.fromkeys(
            filter(comparison.differences, (*COMPARED, *comparison.held_out_measures)),
            comparison.score,
        ),
        **comparison.gaps_compared,
    }.items():
        found = comparison.differences(measure)
        tested = measure in CLAIMED
        title = find_measure(measure).title(comparison.client_count) + (
            text_if(score.unit != comparison.score.unit, f", {score.unit}")
        )
        digits = Digits.of(score, (difference.mean for difference in found.values()))
        words = {
            method: (tone_of(difference) or "not clear") if tested else "not tested"
            for method, difference in found.items()
        }
        rows = [
            {
                "method": method,
                "clear": words[method],
                "mean": charts.short(difference.mean),
                "low": charts.short(difference.low),
                "high": charts.short(difference.high),
            }
            for method, difference in found.items()
        ]
        said = "; ".join(
            f"{name} {digits.difference(difference).text}, {words[name]}"
            for name, difference in found.items()
        )
        what = f"Difference to {base} in {title}, to the right is better: {said}."
        of = text_if(measure in comparison.gaps_compared, f" by {comparison.grouping_compared}")
        panels.append(
            Chart(
                f"difference-{slug(measure)}",
                title.capitalize() + of,
                what,
                charts.differences(rows, score.unit),
            )
        )
        for method, difference in found.items():
            gain = replace(digits.difference(difference), tone="")
            p_value = NONE
            if tested:
                gain = replace(gain, tone=tone_of(difference))
                size = "< 0.001" if difference.p_value < 0.001 else f"{difference.p_value:.3f}"
                p_value = Cell(size, difference.p_value)
            seeds = [Cell.of(difference.better), Cell.of(difference.worse)]
            cells.append([Cell(method), Cell(title), gain, *seeds, p_value])
    intervals = (
        "Lines are 95 % intervals. Grey: not significant, or not tested."
        if len(comparison.seeds) >= FEWEST_SEEDS
        else f"There are no intervals{text_if(comparison.has_noise, ', but of noise')}, because"
        f" these take {FEWEST_SEEDS} seeds."
    )
    intro = (
        f"How much better than {base} each method is, paired by seed; to the right is better."
        f" {intervals}"
    )
    split = "are taken to split" if comparison.shared.unknown else "split"
    by_gap = f"; of a gap by {comparison.grouping_compared}, narrower"
    note = (
        "Positive is better; of the standard deviation, more equal"
        f"{text_if(comparison.gaps_compared, by_gap)}."
        f" The {find_measure(WORST).title(comparison.client_count)} and the mean"
        f"{text_if(comparison.held_out_measures, ', also of clients not in training,')} are tested;"
        " p is of the paired t test, with Holm's correction over these and all methods."
        f"{about_worst(find_measure(WORST).title(comparison.client_count), len(comparison.seeds))}"
    ) + text_if(
        comparison.shared.test_share,
        f" All seeds {split} the same data, for which Nadeau and Bengio's correction widens the"
        " intervals.",
    )
    table = Table(
        "differences",
        f"Differences to {base} in {comparison.score.unit}",
        ["method", "measure", "difference", "seeds better", "seeds worse", "p"],
        cells,
        note,
        folded=len(cells) > 12,
        keys=2,
    )
    return Section(
        "differences",
        f"Differences to {base}",
        intro,
        [Charts(panels), table, *_scores_table(comparison)],
    )


def _scores_table(comparison: Comparison) -> list[Table]:
    """Return the mean over clients and seeds of every score, nothing where there is one."""
    if len(comparison.scores) == 1:
        return []
    cells = []
    of_seed = comparison.finals.groupby(["method", "score", "seed"])["value"]
    means = of_seed.mean()
    counts = of_seed.count()
    for method in comparison.shown:
        row = [Cell(method)]
        for score in comparison.scores:
            mine = means[method, score.name].dropna()
            clients = sorted({*counts[method, score.name]})
            row += [
                Digits.of(score, mine).cell(statistics.fmean(mine) if len(mine) else None),
                Cell("–".join(map(str, {clients[0]: 0, clients[-1]: 0}))),
            ]
        cells.append(row)
    return [
        Table(
            "scores",
            "Every score: mean over clients, then over seeds",
            [
                "method",
                *(word for score in comparison.scores for word in (score.title, "over clients")),
            ],
            cells,
            folded=True,
        )
    ]
