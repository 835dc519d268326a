"""Sentences on the limits of the numbers of a run or a comparison."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairbloom.errors import MAX_LISTED
from fairbloom.protocol.names import DRAW, SPLIT
from fairbloom.protocol.parameters import split_names
from fairbloom.protocol.private import SIMULATED_NOISE
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.rounds.screening import LARGEST_COUNT
from fairbloom.server.run_folder.attendance import describe_rare
from fairbloom.server.run_folder.csv_rows import ABSENT, SHARE_OF_LARGER_CLASS
from fairbloom.server.run_folder.files import (
    COUNTS,
    DATA,
    EXAMPLES,
    QUESTIONS,
    ROWS,
    SCHEMA,
    describe_missing,
)
from fairbloom.tables.schema import parse_schema
from fairbloom.tasks import TaskInfo
from fairbloom.text import join_first, plural, text_if

from .group_scores import ALL, GroupReport
from .noise import WRONGLY_NAMED
from .run import Run

# A score over fewer test examples than this says little about a client.
FEWEST_EXAMPLES = 10

# So does one over fewer of the rarer of two classes.
FEWEST_OF_A_CLASS = 5

# The name of the mean of the recalls of the classes that occur.
BALANCED = "balanced-accuracy"

# What pages say of scores with the noise of privacy accounts.
NOISE = (
    "Scores carry the noise of privacy accounts. ± and parentheses are its 95 % intervals, clients"
    " stand in the order of their names, and one is called served worst or best only where that"
    f" holds with {100.0 * (1.0 - WRONGLY_NAMED):.0f} %."
)


@dataclass(frozen=True)
class SharedData:
    """The clients and test examples that the seeds of a comparison have in common.

    Seeds that split the examples of the same clients are not independent: their training sets
    overlap, and so do their test sets. Seeds that partition a data set again have different
    clients, which decide most of a difference between methods. benchmarks/coverage.py measures
    both.
    """

    # each seed assigns examples to clients anew, so a name is another client in each seed
    clients_differ: bool = False
    same_test_examples: bool = False  # all seeds test on the same examples of the same clients
    # the ratio of test to training examples, if seeds split the same clients' data; else 0
    test_share: float = 0.0
    unknown: bool = False  # not known, for example for a user-defined task

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "SharedData":
        """Return the data that the seeds of these runs share, one run a seed.

        The seeds of a user-defined task that does not say what they do are assumed to re-split the
        same clients' data, which gives the widest intervals.
        """
        settings = runs[0].settings
        task = runs[0].task
        if task is None:
            about = EXAMPLES.read(runs[0].folder)
            if about.get("seeds") == DRAW:
                return cls(clients_differ=True)
            return cls(
                test_share=_test_by_train(runs[0], about), unknown=about.get("seeds") != SPLIT
            )
        tests = task.tests_by_seed(settings)
        natural = (settings.get("partition") or next(iter(task.partitions), "")) in task.natural
        # The clients of a seed are parts of a data set, or drawn from the many that it has.
        of_seeds = {frozenset(run.test_examples()) for run in runs}
        drawn = settings.get("clients") and len(of_seeds) > 1
        if tests == "fresh" or (not task.reads and (not natural or drawn)):
            return cls(clients_differ=True)
        if tests == "fixed":
            return cls(same_test_examples=True)
        return cls(test_share=task.test_by_train(settings))


def _test_by_train(run: Run, about: Mapping[str, Any]) -> float:
    """Return the ratio of test to training examples of a run without a known task.

    Clients report both numbers. Without them, the settings give the ratio.
    """
    trained = {
        client: count
        for client, count in about.get("trained", {}).items()
        if 1 <= count <= LARGEST_COUNT
    }
    tested = run.test_examples()
    clients = tested.keys() & trained.keys()
    if clients:
        return sum(tested[name] for name in clients) / sum(float(trained[name]) for name in clients)
    return TaskInfo("", "", "", "").test_by_train(run.settings)


def caveats_of_run(run: Run) -> list[str]:
    """Return the limits of one run: an early end, single participants, small test sets."""
    found = [
        *describe_leak(run),
        text_if(
            run.stopped,
            f"The run stopped after round {run.rounds_done} of {run.num_rounds}: {run.stopped}.",
        ),
        *describe_questions(run),
        *describe_rare_clients(run),
        *describe_other_rows(run),
        _single([run], "the method had nothing"),
        *describe_small_tests(run.test_examples(), run.score, named=True),
        _describe_single_classes(run),
        _rare_classes(run),
        text_if(run.noise(), NOISE),
    ]
    return [*filter(None, found)]


def caveats_of_comparison(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return the limits of a comparison; `runs` has one run a seed, by the methods' labels.

    The verdict names the methods that equal the baseline, and how few test examples clients have.
    """
    every = [run for by_seed in runs.values() for run in by_seed]
    spans = [
        f"{label} after {join_ends(sorted(run.rounds_done for run in by_seed))}"
        f" of {by_seed[0].num_rounds}"
        for label, by_seed in runs.items()
        if any(run.stopped for run in by_seed)
    ]
    found = [
        _single(every, "no method had anything"),
        text_if(
            spans,
            f"Runs stopped early ({', '.join(spans)} rounds), so methods are compared after"
            " different numbers of rounds.",
        ),
        *dict.fromkeys(each for run in every for each in describe_questions(run)),
        *(f"{run.folder.name}: {each}" for run in every for each in describe_rare_clients(run)),
        *(f"{run.folder.name}: {each}" for run in every for each in describe_other_rows(run)),
        _describe_single_classes(every[0]),
        _rare_classes(every[0]),
        text_if(any(run.noise() for run in every), NOISE),
        text_if(
            any(run.privacy.get("simulated") for run in every), f"Privacy is {SIMULATED_NOISE}."
        ),
        *caveats_of_data(next(iter(runs.values()))),
    ]
    return [*filter(None, found)]


def describe_questions(run: Run) -> list[str]:
    """Return a sentence if a question on how the files are read has no answer."""
    asked = DATA.read(run.folder).get(QUESTIONS, [])
    if not asked:
        return []
    columns = join_first([*dict.fromkeys(filter(None, asked))], MAX_LISTED)
    questions = plural(len(asked), "1 question", f"{len(asked)} questions")
    return [
        f"No schema was given, and fairbloom data has {questions} on how the files are read"
        f"{text_if(columns, f': {columns}')}."
    ]


def describe_rare_clients(run: Run) -> list[str]:
    """Return a sentence for each client that took part in far fewer rounds than the others."""
    # most runs have no absences, and a comparison has many runs
    if not any(cell for kind in ABSENT for cell in run.rounds.get(kind, ())):
        return []
    training = split_names(str(run.settings.get("training-clients", "")))
    return [f"{each}." for each in describe_rare(run.folder, training)]


def describe_other_rows(run: Run) -> list[str]:
    """Return a sentence for each device with other rows from a round on, or with fewer than before.

    The latter may be the rows that the run began with.
    """
    found = []
    for name, tables in ROWS.read(run.folder).items():
        changes = [str(number) for number, *_ in tables[1:]]
        if changes:
            found.append(f"{name}: other rows from round {join_all(changes)} on.")
        found += [
            f"{name}, from round {number} on: {describe_missing(missing)}."
            for number, _, missing in tables
            if missing
        ]
    return found


def _single(runs: Sequence[Run], who: str) -> str:
    """Return a sentence if only one client trained in each round of all runs, or "".

    Runs with a single client or with pooled data have none.
    """
    for run in runs:
        trained = {*run.rounds.get("participants", ())}
        if trained != {1} or run.settings.get("pooled") or len(run.test_examples()) < 2:
            return ""
    return (
        f"One client trained in each round, so {who} to weigh: raise fraction, the share of clients"
        " that trains in a round."
    )


def caveats_of_data(by_seed: Sequence[Run]) -> list[str]:
    """Return the data for which differences over seeds hold; [] if clients differ by seed."""
    shared = SharedData.of(by_seed)
    if len(by_seed) == 1 or shared.clients_differ:
        return []
    if shared.same_test_examples:
        return [
            "All seeds test on the same examples: differences hold for these, and intervals do not"
            " say what other examples would give."
        ]
    if shared.unknown:
        place = "RunFolder" if by_seed[0].of_app else "Task"
        return [
            "It is unknown whether seeds share examples; the widest intervals are used. Declare it"
            f" by {place}(…, seeds='draw' or 'split')."
        ]
    return [
        "The seeds split the examples of the same clients, so they are not independent: intervals"
        " are wider for it (Nadeau and Bengio, 2003)."
    ]


def describe_unscored(names: Collection[str], score: Score) -> list[str]:
    """Return a sentence on the clients that measures leave out, as they have no score."""
    said = f"Left out, without a test {score.words}: {join_first(sorted(names), MAX_LISTED)}."
    return [said] if names else []


def describe_worst_class(reports: Sequence[GroupReport]) -> Iterator[str]:
    """Yield which class has the lowest recall over all clients, of a report for each seed.

    It yields nothing if no seed has two classes that are reported.
    """
    gaps = [gap for report in reports for gap in report.gaps([ALL]) if gap.score.by is not None]
    for name, seeds in Counter(gap.lowest for gap in gaps).most_common(1):
        lows = [gap.low for gap in gaps if gap.lowest == name]
        yield (
            f"Of the classes that clients report, {name} has the lowest {gaps[0].score.words} over"
            f" all test examples{text_if(len(gaps) > 1, f' in {seeds} of {len(gaps)} seeds')}:"
            f" {gaps[0].score.written(sum(lows) / seeds)}."
        )


def describe_same_splits(run: Run) -> list[str]:
    """Return which clients of a user's own task test on their training examples."""
    names = EXAMPLES.read(run.folder).get("tested-on-training", [])
    tested = f"{join_first(names, MAX_LISTED)} {plural(len(names), 'is', 'are')} tested on training"
    return [f"{tested} examples, which says nothing about others."] if names else []


def describe_small_tests(
    tested: Mapping[str, float], score: Score, *, named: bool = False
) -> list[str]:
    """Return a sentence on the clients with so few test examples that one moves their scores."""
    small = sorted((count, client) for client, count in tested.items() if count < FEWEST_EXAMPLES)
    if not small:
        return []
    shown = join_first([f"{client} {count}" for count, client in small], MAX_LISTED)
    effect = (
        f": one example moves the {score.words} of such a client by"
        f" {100.0 / small[-1][0]:.0f} points or more"
        if score.percent
        else ", which says little about them"
    )
    return [
        f"{len(small)} of {len(tested)} clients {plural(len(small), 'is', 'are')} tested on fewer"
        f" than {FEWEST_EXAMPLES} examples{text_if(named, f' ({shown})')}{effect}."
    ]


def _describe_single_classes(run: Run) -> str:
    """Return in a sentence the clients of which balanced accuracy is over a single class, or ""."""
    names = find_single_classes(run)
    return text_if(
        names,
        "The balanced accuracy of a client with test examples of one class is the recall of that"
        f" class: {join_first(names, MAX_LISTED)}.",
    )


def find_single_classes(run: Run) -> list[str]:
    """Return the clients with test examples of one class, if balanced accuracy is measured."""
    if BALANCED not in [score.name for score in run.scores]:
        return []
    larger = run.column(SHARE_OF_LARGER_CLASS) or {
        client: each[ACCURACY.name]
        for client, each in EXAMPLES.read(run.folder).get(COUNTS, {}).items()
        if ACCURACY.name in each
    }
    return [client for client in run.test_examples() if larger.get(client) == 100.0]


def _rare_classes(run: Run) -> str:
    """Return in a sentence which clients have few test examples of a class, or ""."""
    larger = run.column(SHARE_OF_LARGER_CLASS)
    said = find_single_classes(run)
    counts = {
        client: round(count * (1.0 - larger[client] / 100.0))
        for client, count in run.test_examples().items()
        if client in larger and client not in said
    }
    few = [f"{client} {count}" for client, count in counts.items() if count < FEWEST_OF_A_CLASS]
    return text_if(few, f"Few test examples of the rarer class: {join_first(few, MAX_LISTED)}.")


def describe_leak(run: Run) -> list[str]:
    """Return that a column gives away the target, if every client has the best possible score.

    The schema names such columns; a draft does, by the rows.
    """
    best = run.score.written(run.score.shown(run.score.interval[1]))
    written = {run.score.written(value) for value in run.final().values()}
    if not run.score.higher_is_better or written != {best}:
        return []
    text = text_if(run.settings.get("task") == "csv", SCHEMA.read(run.folder))
    names = parse_schema(text).determining if text else ()
    if not names:
        return []
    determine = plural(len(names), "determines", "each determine")
    return [
        f"Every client is at {best}, and {join_all(names)} {determine} the target: is it known"
        " only after the outcome?"
    ]


def join_ends(values: Sequence[object]) -> str:
    """Return the first and the last of sorted values: "12", or "12 to 40"; "" of none."""
    return " to ".join(dict.fromkeys(map(str, [*values[:1], *values[-1:]])))


def join_all(names: Sequence[str]) -> str:
    """Return at least one name, joined for a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
