"""The page of one run, finished or not: how well the model serves each client."""

from collections.abc import Mapping
from functools import partial

from fairbloom.errors import join_names
from fairbloom.protocol.attacks import attack_of
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.run_folder.csv_rows import PERSONAL_ROUND
from fairbloom.text import text_if

from ..render.page import Block, Cell, Page, Section, Table
from ..results.caveats import (
    caveats_of_run,
    describe_same_splits,
    describe_unscored,
    describe_worst_class,
    join_all,
)
from ..results.compared_scores import SHOWN, personal_label
from ..results.measures import find_measure
from ..results.noise import EXACT, Values, estimates, is_apart
from ..results.presentation import page_of
from ..results.run import ALL_TRAINED, Run, scores_of, sentences_of
from ..results.subject import Subject
from ..results.tables import is_shown
from .about import about_section, words_section
from .cells import NONE, Digits
from .chart_rows import NAMED, Line, Scene, shown_of, spanned, worst_first
from .group_sections import gaps_table, subgroups_section
from .sections import (
    LIMITS,
    about_reference,
    absences_section,
    files_of,
    named_charts,
    notes_section,
    ordered_charts,
    present,
    privacy_section,
    reference_column,
    rounds_charts_of_run,
    rounds_section_of_run,
    score_columns,
    settings_section,
    table_of_clients,
)

# The heading of what devices with accounts would report, in a simulation of them.
REPORTED = "as devices report it"

ONE_SEED = (
    "One run with one seed does not show whether another method would serve these clients better:"
    " use fairbloom compare with five seeds or more."
)

ONE_RUN_OF_APP = (
    "One run with one seed does not show whether another method would serve these clients better:"
    " compare methods over five seeds or more, in the app by fairbloom compare --app, or from run"
    " folders by fairbloom compare --runs."
)


@page_of.register
def page_of_run(run: Run) -> Page:
    """Return the page of a run."""
    final = run.final()
    subject = Subject.of(run)
    personal = run.final(model="personal") if run.serves == "global" and run.finished else {}
    of_personal = Line(personal_label(run.label), [run], "personal", same_runs_as=run.label)
    line = Line(run.label, [run], run.serves)
    lines = [line]
    scores = {line.label: final}
    if personal:
        lines.append(of_personal)
        scores[of_personal.label] = personal
    shown = shown_of(worst_first(final, run.score, run.noise()))
    scene = Scene(lines, run.score, shown, False, len(final))
    headline, sentences = _words(run, final)
    groups = {
        each.label: [report]
        for each in lines
        if (report := run.by_group(each.model)) is not None and report.tested
    }
    sentences += describe_worst_class(groups.get(line.label, ()))
    gaps = [gaps_table(groups, line.label)] if line.label in groups else []
    sections = [
        _clients_section(scene, scores),
        subgroups_section(scene, groups, *gaps),
        _metrics_section(run),
        privacy_section(run),
        absences_section([line]),
        notes_section("caveats", LIMITS, caveats_of_run(run) if final else []),
        settings_section([line]),
    ]
    facts = {
        "clients": len(final) or None,
        "rounds": (
            f"{run.rounds_done} of {run.num_rounds}"
            if run.rounds_done < run.num_rounds
            else run.rounds_done
        ),
        "seed": run.settings.get("seed"),
        "state": run.state,
        "engine": None if run.engine is None else run.engine.get("engine"),
        "false reports": _describe_attack(run),
    }

    def details() -> list[Section]:
        found = present([rounds_section_of_run(run)])
        return [*found, words_section([*present(sections), *found], [run])]

    return Page(
        title=f"{run.label}{subject.title}",
        headline=headline,
        sentences=sentences,
        facts=[(name, str(value)) for name, value in facts.items() if value is not None],
        sections=present(sections),
        details=details,
        files=files_of(run.folder, "run folder"),
        figure=partial(rounds_charts_of_run, run) if final else None,
        about=[about_section(subject, [run])],
    )


def _describe_attack(run: Run) -> str | None:
    """Return which clients report falsely in an experiment, and how; None without an attack."""
    if not run.settings.get("attack") or run.clients.empty:
        return None
    clients = [*run.clients["client"].unique()]
    attack = attack_of(RunSettings.of(run.settings), clients)
    change = f"losses + {attack.bias:,g}"
    if attack.factor != 1.0:
        change = f"losses and updates × {attack.factor:,g}"
    return f"{join_names(sorted(attack.attackers))}: {change}"


def _words(run: Run, final: Values) -> tuple[str, list[str]]:
    """Return how the model serves the clients, and the reasons for missing scores."""
    state = f"The run is {run.state} after round {run.rounds_done} of {run.num_rounds}."
    unfinished = [] if run.finished else [state]
    if not final and len(run.clients):
        last = int(run.clients["round"].max())
        headline = f"{run.label} was last evaluated after round {last} of {run.rounds_done}."
        return headline, [
            *unfinished,
            "The columns refused and missing of rounds.csv say why not later, or privacy accounts"
            " have no test report left.",
        ]
    if not final:
        has = f"has {ALL_TRAINED}" if run.untested else "has not been evaluated yet"
        return f"{run.label} {has}.", unfinished
    score = run.score
    noise = run.noise()
    order = worst_first(final, run.score)
    headline = (
        f"{run.label} serves its clients with a mean test {score.words} of"
        f" {estimates(final, score, noise)['mean'].written(score)}"
        f"{text_if(not score.higher_is_better, ', lower is better')}"
    )
    ends = {order[0]: "worst", order[-1]: "best"}
    if len(ends) > 1 and noise:
        apart = [
            f"{name} is served {end}" for name, end in ends.items() if is_apart(name, final, noise)
        ]
        headline += f"; {join_all(apart or ['who is served worst cannot be told from the noise'])}"
    elif len(ends) > 1:
        worst, best = ends
        headline += (
            f", from {score.written(final[worst])} ({worst}) to {score.written(final[best])}"
            f" ({best})"
        )
    words = [
        f"{headline}.",
        *describe_unscored(run.without(score, run.serves), score),
        *describe_same_splits(run),
    ]
    return " ".join(words), [*unfinished, ONE_RUN_OF_APP if run.of_app else ONE_SEED]


def _clients_section(scene: Scene, columns: Mapping[str, Values]) -> Section | None:
    """Return how the final models serve each client, by the labels of the lines."""
    if not scene.clients:
        return None
    run = scene.lines[0].runs[0]
    noise = run.noise()
    finals = {label: spanned(by_client, noise) for label, by_client in columns.items()}
    if scene.clients <= NAMED or noise:
        drawn = named_charts(finals, scene.series, scene.shown, scene.score, run.shown_name)
    else:
        drawn = ordered_charts(finals, scene.series, scene.score)
    intro = f"The {scene.score.words} of the final model on each client's own test examples."
    reported = run.column(f"reported_test_{run.score.name.replace('-', '_')}")
    shown = score_columns(
        run.score,
        {**columns, REPORTED: reported} if reported else columns,
        {run.label: noise, REPORTED: run.noise(simulated=True)},
    )
    shown["test examples"] = (Digits(0), run.test_examples(), EXACT)
    references = Subject.of(run).references(run.score)
    shown |= reference_column(run.score, references)
    trained = run.column(PERSONAL_ROUND)
    if 0 in trained.values():
        intro += (
            " Clients with personal model of round 0 have not trained yet: they are tested with the"
            " common model."
        )
        shown["personal model of round"] = (Digits(0), trained, EXACT)
    first = next(iter(columns.values()))
    order = text_if(not noise, ", the worst served first")
    clients = table_of_clients(
        f"Each client{order}: test {run.score.title}",
        worst_first(first, run.score, noise),
        shown,
        run.shown_name,
        about_reference(run.score, references, first),
    )
    blocks: list[Block] = [drawn, _measures_table(run), clients]
    return Section("clients", "How each client is served", intro, blocks)


def _measures_table(run: Run) -> Table:
    """Return the measures of all scores, each with its number of clients."""
    keys = (*SHOWN, "gap")
    cells = []
    found = scores_of(run)
    for each in (scored for scored in found if scored.values):
        spread = estimates(each.values, each.score, each.noise)
        digits = Digits.of(each.score, (spread[key].value for key in keys if key in spread))
        models = {"global": "", "personal": " (personal models)"}
        name = f"{each.score.title}{models.get(each.model, f' ({each.model})')}"
        count = len(each.values)
        of = f"{count}{text_if(count < each.clients, f' of {each.clients}')}"
        row = [Cell(name), Cell(of, count)]
        for key in keys:
            cell = Cell("cannot be told", tone="quiet")
            # noise alone makes a gap, which may then be below 0
            if key in spread and (key != "gap" or spread[key].below <= spread[key].value):
                cell = digits.estimate(spread[key])
            row.append(cell)
        cells.append(row)
    clients = len(run.final())
    return Table(
        "measures",
        f"{run.label} after round {run.rounds_done}, over clients",
        ["test score", "clients", *(find_measure(key).title(clients) for key in keys)],
        cells,
        " ".join(f"{sentence}." for sentence in sentences_of(found)),
    )


def _metrics_section(run: Run) -> Section | None:
    """Return the metrics that a user's app reported in its last round."""
    metrics = run.metrics
    if metrics.empty:
        return None
    last = int(metrics["round"].max())
    chosen = metrics[(metrics["round"] == last) & (metrics["client"] == "")]
    headings = ["phase", "metric", "value"]
    rows = [
        [Cell(phase), Cell(metric), Cell(f"{value:.6g}", value) if is_shown(value) else NONE]
        for phase, metric, value in chosen[headings].itertuples(index=False)
    ]
    return Section(
        "metrics",
        "Metrics of the app",
        "",
        [Table("metrics", f"Metrics of round {last}", headings, rows)],
    )
