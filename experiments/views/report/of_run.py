"""The report of one run, finished or not."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fairbloom.protocol.scores import Score

from ...results.caveats import caveats_of_run
from ...results.comparison import personal_label
from ...results.groups import GroupReport
from ...results.measures import LARGER_CLASS, measure_title
from ...results.run import Run, measures
from ...results.scored import scores_of, sentences_of
from .cells import SHOWN, Digits
from .lines import NAMED, Line, Scene, groups_of, worst_first
from .page import Block, Cell, Page, Section, Table
from .sections import (
    common_sections,
    named_charts,
    ordered_charts,
    present,
    run_rounds_section,
)

Values = Mapping[str, float]
"""A score by client."""

ONE_SEED = (
    "This is one run with one seed. It shows how this model serves these clients, but not whether another method would "
    "serve them better. To find out, use fairbloom compare with five seeds or more."
)


def page_of_run(run: Run) -> Page:
    """Return the report of a run."""
    final = run.final()
    personal = run.final(model="personal") if run.serves == "global" and run.finished else {}
    lines = [Line(run.label, [run], run.serves)]
    lines += [Line(personal_label(run.label), [run], "personal", beside=run.label)] if personal else []
    scene = Scene(lines, run.score, groups_of(worst_first(final, run.score)), False, len(final))
    headline, sentences = _words(run, final)
    caveats = [*caveats_of_run(run), ONE_SEED] if final else [ONE_SEED]
    sections = [_clients_section(scene, final, personal), run_rounds_section(run)]
    sections += common_sections(scene, _by_group(run, lines), caveats)
    facts = {
        "task": run.settings.get("task"),
        "method": run.label,
        "clients": len(final) or None,
        "rounds": f"{run.rounds_done} of {run.num_rounds}" if run.rounds_done < run.num_rounds else run.rounds_done,
        "seed": run.settings.get("seed"),
        "state": run.state,
    }
    task = f" on {run.settings['task']}" if "task" in run.settings else ""
    shown = [(name, str(value)) for name, value in facts.items() if value is not None]
    return Page(f"{run.label}{task}", headline, sentences, shown, present(sections))


def _by_group(run: Run, lines: list[Line]) -> dict[str, list[GroupReport]]:
    """Return what clients report of groups under each kind of model."""
    found = {line.label: run.by_group(line.model) for line in lines}
    return {label: [report] for label, report in found.items() if report is not None}


def _words(run: Run, final: dict[str, float]) -> tuple[str, list[str]]:
    unfinished = [] if run.finished else [f"The run is {run.state} after round {run.rounds_done} of {run.num_rounds}."]
    if not final:
        return f"{run.label} has not been evaluated yet", [*unfinished, ONE_SEED]
    score, found, order = run.score, measures(final, run.score), worst_first(final, run.score)
    lower = "" if score.higher_is_better else ", lower is better"
    headline = f"{run.label} serves its clients with a mean test {score.name} of {score.written(found['mean'])}{lower}"
    if len(final) > 1:
        worst, best = order[0], order[-1]
        headline += f", from {score.written(final[worst])} ({worst}) to {score.written(final[best])} ({best})"
    left = [f"Without a test {score.name}: {', '.join(run.without_score)}."] if run.without_score else []
    return f"{headline}.", [*unfinished, *left, ONE_SEED]


def _clients_section(scene: Scene, final: dict[str, float], personal: dict[str, float]) -> Section | None:
    """Return how the final models serve each client, or how they are spread over many."""
    if not final:
        return None
    values = dict(zip((line.label for line in scene.lines), (final, personal), strict=False))
    finals = {label: [by_client] for label, by_client in values.items()}
    order, run = worst_first(final, scene.score), scene.lines[0].runs[0]
    few = len(final) <= NAMED
    drawn = (
        named_charts(finals, scene.series, order, scene.score)
        if few
        else ordered_charts(finals, scene.series, scene.score)
    )
    blocks: list[Block] = [drawn, measures_table(run), clients_table(run, values, order)]
    intro = f"The {scene.score.name} of the final model on each client's own test examples."
    return Section("clients", "How each client is served", intro, blocks)


def measures_table(run: Run) -> Table:
    """Return the measures over clients of all scores, each with the number of clients that it is over."""
    found = scores_of(run)
    spreads = [(each.score, each.model, each.values, each.clients) for each in found]
    table = spread_table(f"{run.label} after round {run.rounds_done}, over clients", spreads, len(run.final()))
    return replace(table, note=" ".join(f"{sentence}." for sentence in sentences_of(found)))


def spread_table(caption: str, spreads: Iterable[tuple[Score, str, Values, int]], clients: int) -> Table:
    """Return the measures over clients of scores, each under a kind of model and with its number of all clients."""
    keys, cells = (*SHOWN, "gap"), []
    for score, model, values, of in spreads:
        spread = measures(values, score)
        digits = Digits.of(score, (spread[key] for key in keys))
        name = f"{score.title} (personal models)" if model == "personal" else score.title
        count = Cell(f"{len(values)} of {of}" if len(values) < of else str(of), len(values))
        cells.append([Cell(name), count, *(digits.cell(spread[key]) for key in keys)])
    return Table("measures", caption, ["test score", "clients", *(measure_title(key, clients) for key in keys)], cells)


def clients_table(run: Run, columns: Mapping[str, Values], clients: Sequence[str]) -> Table:
    """Return the score of clients under some models, each with its number of test examples."""
    examples, shares = run.test_examples(), run.larger_classes()
    digits = Digits.of(run.score, (value for each in columns.values() for value in each.values()))
    cells = [
        [
            Cell(client),
            *(digits.cell(values.get(client)) for values in columns.values()),
            Digits(0).cell(examples.get(client)),
            *([Digits(0).cell(shares.get(client))] if shares else []),
        ]
        for client in clients
    ]
    caption = f"Each client, the worst served first: test {run.score.title}"
    headings = ["client", *columns, "test examples", *([LARGER_CLASS] if shares else [])]
    return Table("clients", caption, headings, cells, folded=len(cells) > 12)
