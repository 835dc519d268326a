"""The report of a comparison: who gains, who loses, and how sure that is."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fairbloom.errors import FairbloomError
from fairbloom.server.run_folder.files import CLIENTS

from ...results.comparison import Comparison, Plan, personal_label
from ...results.differences import FEWEST_SEEDS, Difference
from ...results.measures import CLIENT, LARGER_CLASS, measure_title
from ...results.run import load
from ...results.verdict import CLAIMED, MEAN, WORST
from . import charts
from .cells import NONE, SHOWN, Digits, tone_of
from .lines import Groups, Line, Scene, groups_of, sorted_scores, spanned, worst_first
from .page import Block, Cell, Chart, Charts, Page, Section, Table, slug
from .sections import (
    common_sections,
    named_charts,
    ordered_charts,
    present,
    rounds_section,
)

COMPARED = (WORST, MEAN, "std")
"""The measures of which differences are shown."""


def page_of_comparison(comparison: Comparison, plan: Plan | None = None) -> Page:
    """Return the report of a comparison; the plan says which runs it has, by default that in its folder."""
    lines = lines_of(comparison, plan or Plan.read(comparison.folder))
    scene = Scene(lines, comparison.score, _groups(comparison), _first_only(comparison), comparison.client_count)
    sections = [
        _clients_section(comparison, scene),
        _differences_section(comparison, scene),
        _front_section(comparison, scene),
        rounds_section(scene),
        *common_sections(scene, comparison.by_group, [*comparison.caveats, *left_out(comparison)]),
    ]
    settings, seeds = lines[0].runs[0].settings, comparison.seeds
    task = f" on {settings['task']}" if "task" in settings else ""
    facts = {
        "task": settings.get("task"),
        "methods": len(scene.trained),
        "baseline": comparison.baseline,
        "clients": comparison.client_count,
        "seeds": len(seeds),
        "rounds": lines[0].runs[0].rounds_done,
    }
    shown = [(name, str(value)) for name, value in facts.items() if value is not None]
    verdict = comparison.verdict
    title = f"{facts['methods']} method{'s' if facts['methods'] != 1 else ''} compared{task}"
    return Page(title, verdict.headline, verdict.sentences, shown, present(sections))


def lines_of(comparison: Comparison, plan: Plan) -> list[Line]:
    """Return the methods with their runs, the baseline first; personal models follow the method that they are of."""
    lines = []
    for label, names in plan.finished.runs.items():
        runs = [load(comparison.folder / name) for name in names]
        lines.append(Line(label, runs, "personal" if label in comparison.personal else "global"))
        if (personal := personal_label(label)) in comparison.personal:
            lines.append(Line(personal, runs, "personal", beside=label))
    return sorted(lines, key=lambda line: line.label != comparison.baseline)


def _first_only(comparison: Comparison) -> bool:
    """Return whether clients are shown by the first seed alone, because with another one a name means other data."""
    return comparison.shared.dealt and len(comparison.seeds) > 1


def _groups(comparison: Comparison) -> Groups:
    """Return the clients from the worst served to the best by the baseline."""
    return groups_of(worst_first(by_name(comparison, comparison.baseline), comparison.score))


def by_name(comparison: Comparison, method: str) -> dict[str, float]:
    """Return the score of each client: the mean over the seeds, or that of the first where seeds deal the data."""
    by_seed = comparison.values[method][:1] if _first_only(comparison) else comparison.values[method]
    names = dict.fromkeys(name for values in by_seed for name in values)
    return {name: statistics.fmean(values[name] for values in by_seed if name in values) for name in names}


def left_out(comparison: Comparison) -> list[str]:
    """Return which clients are left out because they have no score under some method, a sentence a seed."""
    return [
        f"Left out with seed {seed} (no test {comparison.score.name} under some method): {', '.join(clients)}."
        for seed, clients in zip(comparison.seeds, comparison.left_out, strict=False)
        if clients
    ]


# Each client under each method --------------------------------------------------------------------------------------


def _clients_section(comparison: Comparison, scene: Scene) -> Section:
    # The scores of more clients are lines.
    named = scene.clients <= 16 and not scene.first_only
    finals = {line.label: comparison.values[line.label] for line in scene.lines}
    names = scene.groups.names
    drawn = named_charts(finals, scene.series, names, scene.score) if named else sorted_charts(comparison)
    blocks: list[Block] = [drawn]
    blocks.append(names_table(comparison, names) if scene.groups.single else _ranks_table(comparison, scene))
    if scene.groups.single and (table := _client_differences(comparison, names)) is not None:
        blocks.append(table)
    if len(comparison.scores) > 1:
        blocks.append(_scores_table(comparison))
    intro = f"The {comparison.score.name} of the final models on each client's own test examples."
    if len(comparison.seeds) > 1:
        marks = "Points are means over the seeds, lines" if named else "Lines are means over the seeds, bands"
        intro += f" {marks} span them from the lowest to the highest."
    return Section("clients", "Each client under each method", intro, blocks)


def sorted_charts(comparison: Comparison) -> Charts:
    """Return a chart with a line for each method over its clients in order, or one a method where they are many."""
    labels = _labels(comparison)
    series = charts.series_of(labels, comparison.baseline, comparison.personal)
    return ordered_charts({label: comparison.values[label] for label in labels}, series, comparison.score)


def names_table(comparison: Comparison, clients: Sequence[str]) -> Table:
    """Return the score of some clients under each method."""
    base, seeds, first_only = comparison.baseline, len(comparison.seeds), _first_only(comparison)
    values = {method: by_name(comparison, method) for method in _labels(comparison)}
    digits = Digits.of(comparison.score, (each[c] for each in values.values() for c in clients if c in each))
    shares = {} if first_only else comparison.larger_classes
    cells = []
    for client in clients:
        scores = [digits.cell(each.get(client)) for each in values.values()]
        cells.append([Cell(client), *([Digits(0).cell(shares.get(client))] if shares else []), *scores])
    over = "of the first seed, which deals the data in its own way" if first_only else f"mean over {seeds} seeds"
    caption = f"Test {comparison.score.title} of each client, the worst served under {base} first"
    caption += f"; {over}" if seeds > 1 else ""
    headings = ["client", *([LARGER_CLASS] if shares else []), *values]
    return Table("clients", caption, headings, cells, folded=len(cells) > 12)


def _labels(comparison: Comparison) -> list[str]:
    return sorted(comparison.methods, key=lambda method: method != comparison.baseline)


def _client_differences(comparison: Comparison, clients: Sequence[str]) -> Table | None:
    """Return how much better each method serves single clients, with intervals; None where there are none."""
    named, methods = {*comparison.clients_compared}, [m for m in _labels(comparison) if m != comparison.baseline]
    if len(comparison.seeds) < FEWEST_SEEDS or not methods or not named.intersection(clients):
        return None
    rows = []
    for client in clients:
        found = _differences(comparison, f"{CLIENT}{client}") if client in named else {}
        digits = _digits(comparison, "", found)
        rows += [[Cell(client), Cell(method), *_ends_of(each, digits)] for method, each in found.items()]
    caption = f"Each client under each method, against {comparison.baseline}"
    note = "Positive is better. The intervals are of single clients and are not tested: of twenty, one leaves out the "
    note += "true difference by chance."
    headings = ["client", "method", "difference", "95 % from", "to"]
    return Table("client-differences", caption, headings, rows, note, folded=True)


def _ranks_table(comparison: Comparison, scene: Scene) -> Table:
    """Return the scores of many clients by their rank under each method, neighbours put together."""
    ranks = groups_of([str(i) for i in range(scene.clients)])
    by_method = {
        line.label: sorted_scores(comparison.values[line.label], comparison.score).mean(axis=0) for line in scene.lines
    }
    digits = Digits.of(comparison.score, (float(value) for each in by_method.values() for value in each))
    cells = [
        [
            Cell(name),
            *(
                digits.cell(statistics.fmean(each[i] for i in range(len(each)) if ranks.members[str(i)] == name))
                for each in by_method.values()
            ),
        ]
        for name in ranks.names
    ]
    caption = f"Test {comparison.score.title}, by rank from the worst served to the best under each method"
    note = (
        f"Mean over the clients of these ranks, and over the seeds. The {scene.clients} clients are in {CLIENTS.name}."
    )
    return Table("clients", caption, ["ranks", *by_method], cells, note, folded=True)


def _scores_table(comparison: Comparison) -> Table:
    """Return the mean over clients and seeds of every score."""
    cells = []
    for method, by_seed in comparison.finals.items():
        row = [Cell(method)]
        for score in comparison.scores:
            means = [statistics.fmean(each[score.name].values()) for each in by_seed if each[score.name]]
            mean = statistics.fmean(means) if means else None
            clients = sorted({len(each[score.name]) for each in by_seed})
            row += [Digits.of(score, means).cell(mean), Cell("–".join(map(str, {clients[0]: 0, clients[-1]: 0})))]
        cells.append(row)
    headings = ["method", *(heading for score in comparison.scores for heading in (score.title, "over clients"))]
    return Table("scores", "Every score: mean over clients, then over seeds", headings, cells, folded=True)


# Differences --------------------------------------------------------------------------------------------------------


def _differences_section(comparison: Comparison, scene: Scene) -> Section | None:
    """Return by how much each method is better than the baseline, with intervals."""
    panels, cells = [], []
    unit = comparison.score.unit
    for measure, score in {**dict.fromkeys(COMPARED, comparison.score), **comparison.gaps_compared}.items():
        found = _differences(comparison, measure)
        if not found:
            continue
        title = _measure_name(measure, scene.clients)
        title += "" if score.unit == unit else f", {score.unit}"
        digits, tested = _digits(comparison, measure, found), measure in CLAIMED
        words = {method: (tone_of(each) or "not clear") if tested else "not tested" for method, each in found.items()}
        rows = [{"method": method, **_ends(each), "clear": words[method]} for method, each in found.items()]
        said = "; ".join(f"{name} {digits.difference(each).text}, {words[name]}" for name, each in found.items())
        what = f"Difference to {comparison.baseline} in {title}, to the right is better: {said}."
        spec = charts.differences(rows, score.unit)
        panels.append(Chart(f"difference-{slug(measure)}", title.capitalize(), what, spec))
        cells += [
            [Cell(method), Cell(title), *_difference_cells(each, digits, tested)] for method, each in found.items()
        ]
    if not cells:
        return None
    intro = f"How much better than {comparison.baseline} each method is, paired by seed; to the right is better."
    if len(comparison.seeds) >= FEWEST_SEEDS:
        intro += " Lines are 95 % intervals. Grey: not clear, or not tested."
    else:
        intro += f" There are no intervals, because these take {FEWEST_SEEDS} seeds."
    headings = ["method", "measure", "difference", "95 % from", "to", "seeds better", "seeds worse", "p"]
    note = "Positive is better; of the standard deviation, more equal"
    note += "; of a gap between groups, narrower. " if comparison.gaps_compared else ". "
    note += f"The {measure_title(WORST, scene.clients)} and the mean are tested; p is of the paired t test, with "
    note += "Holm's correction over both and all methods."
    if comparison.shared.test_share:
        split = "are taken to split" if comparison.shared.assumed else "split"
        note += f" All seeds {split} the same data, for which Nadeau and Bengio's correction widens the intervals."
    table = Table("differences", f"Differences to {comparison.baseline} in {unit}", headings, cells, note)
    return Section("differences", f"Differences to {comparison.baseline}", intro, [Charts(panels), table])


def _differences(comparison: Comparison, measure: str) -> Mapping[str, Difference]:
    """Return the differences of all methods by a measure, none where a seed has no such measure."""
    try:
        return comparison.differences(measure)
    except FairbloomError:
        return {}


def _measure_name(measure: str, clients: int) -> str:
    names = {MEAN: "mean over clients", "std": "standard deviation over clients"}
    return names.get(measure) or measure_title(measure, clients)


def _ends(found: Difference) -> dict[str, float | None]:
    return {key: charts.short(value) for key, value in (("mean", found.mean), ("low", found.low), ("high", found.high))}


def _difference_cells(found: Difference, digits: Digits, tested: bool) -> list[Cell]:
    signed = _ends_of(found, digits)
    p_value = Cell("< 0.001" if found.p_value < 0.001 else f"{found.p_value:.3f}", found.p_value)
    return [
        replace(signed[0], tone=tone_of(found) if tested else ""),
        *signed[1:],
        Cell.of(found.better),
        Cell.of(found.worse),
        p_value if tested else NONE,
    ]


def _ends_of(found: Difference, digits: Digits) -> list[Cell]:
    """Return a difference and the ends of its interval."""
    ends = (found.mean, found.low, found.high)
    return [NONE if math.isnan(each) else Cell(digits.signed(each), each) for each in ends]


def _digits(comparison: Comparison, measure: str, found: Mapping[str, Difference]) -> Digits:
    """Return how differences are written: those of gaps by their size, the others as the means are."""
    if measure in comparison.gaps_compared:
        return Digits.of(comparison.gaps_compared[measure], (each.mean for each in found.values()))
    means = (measured["mean"] for method in comparison.methods for measured in comparison.measures(method))
    return Digits.of(comparison.score, means)


# Mean against worst -------------------------------------------------------------------------------------------------


def _front_section(comparison: Comparison, scene: Scene) -> Section:
    """Return the methods by mean and worst, and which of them no other one beats in both."""
    score, labels = comparison.score, [line.label for line in scene.lines]
    measured = {method: comparison.measures(method) for method in labels}
    means = {method: {key: comparison.spread(method, key)[0] for key in SHOWN} for method in labels}
    front = [
        method
        for method in labels
        if not any(_beats(comparison, means[other], means[method]) for other in labels if other != method)
    ]
    ends = {"value": "", "low": "_low", "high": "_high"}
    rows = [
        {"method": method}
        | {f"mean{ends[end]}": value for end, value in spanned([each["mean"] for each in seeds]).items()}
        | {f"worst{ends[end]}": value for end, value in spanned([each["worst_10"] for each in seeds]).items()}
        for method, seeds in measured.items()
    ]
    worst = measure_title("worst_10", scene.clients)
    axes = (f"mean over clients: {score.title}", f"{worst}: {score.title}")
    spec = charts.mean_against_worst(rows, front, scene.series, axes, lower=not score.higher_is_better)
    what = f"Methods by their mean over clients and their {worst}. On the Pareto front: {', '.join(front)}."
    chart = Chart("front", f"Mean against {worst}", what, spec)
    digits = Digits.of(score, (value for each in means.values() for value in each.values()))
    cells = [
        [Cell(method), *(digits.cell(means[method][key]) for key in SHOWN), Cell("yes" if method in front else "no")]
        for method in labels
    ]
    cells += failed_rows(comparison, len(SHOWN) + 1)
    headings = ["method", *(measure_title(key, scene.clients) for key in SHOWN), "on the front"]
    table = Table("measures", f"Test {score.title} over clients, mean over the seeds", headings, cells)
    intro = "Up and to the right is better. On the Pareto front, where no other method is better in both: "
    intro += f"{_listed(front)}." + (" Lines span the seeds." if len(comparison.seeds) > 1 else "")
    return Section("front", "Mean against worst", intro, [Charts([chart], scene.series), table])


def failed_rows(comparison: Comparison, columns: int) -> list[list[Cell]]:
    """Return a row without numbers for each method that is not compared because runs of it failed."""
    lacking = {method: words for method, words in comparison.failed.items() if method not in comparison.methods}
    return [[Cell(f"{method}: {words}"), *[NONE] * columns] for method, words in lacking.items()]


def _beats(comparison: Comparison, one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Return whether one method is nowhere worse than another and somewhere better, by mean and worst."""
    gains = [comparison.score.better(one[key], other[key]) for key in ("mean", "worst_10")]
    return min(gains) >= 0.0 < max(gains)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
