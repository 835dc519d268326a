"""What a report is about, and what its words mean."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fairbloom.server.run_folder.csv_rows import SHARE_OF_LARGER_CLASS
from fairbloom.strategies import METHODS
from fairbloom.strategies.named import title

from ..render.page import Cell, Charts, Section, Table
from ..results.noise import EXACT
from ..results.run import Run
from ..results.subject import Subject, facts_of
from .cells import Digits
from .chart_rows import worst_first
from .sections import Column, table_of_clients

# What words of a report mean that its readers may not know.
WORDS: Mapping[str, str] = {
    "accuracy": "the share of examples that are classified correctly",
    "balanced accuracy": "the mean over classes of the share that is classified correctly, so that"
    " rare classes count as much as others",
    "AUC": "the probability that a positive example ranks above another one; 0.5 is chance",
    "R²": "the explained share of the variance; 0 is as good as always predicting the mean",
    "sensitivity": "the share of positive examples that are predicted as positive",
    "seed": "a number that decides on every random draw; several seeds show what chance does",
    "round": "clients train on their own data, and the server combines what they learned",
    "client": "a site or a device with data of its own, which never leave it",
    "Common models": "models that all clients train together",
    "baseline": "the method that the others are compared with",
    "validation": "examples that choose a model, and are in no test score",
    "selection rate": "the share of examples that are predicted as positive",
    "true positive rate": "the share of positive examples that are predicted as positive",
    "gap": "the score of the group with the highest less that of the group with the lowest",
    "personal": "of a model that each client keeps for itself",
    "interval": "a 95 % interval would hold the true difference in 95 of 100 such comparisons",
    "p is": "how probable such a difference would be by chance alone; below 0.05 it is significant",
    "Holm": "a correction of p that keeps chance findings rare when many methods are compared",
    "Pareto front": "the methods that no other one beats in both the mean and the worst served",
    "group": "examples with the same value of a column, such as the same sex",
    "points": "differences between percentages",
    "improved, %": "participants with a training loss that did not rise in a round",
    "std": "the standard deviation over clients: how unequal they are served",
}


def about_section(subject: Subject, runs: Sequence[Run]) -> Section:
    """Return what runs are about, and the clients' numbers of rows; the subject is the first's."""
    run = subject.run
    clients = table_of_clients(
        "The clients",
        worst_first(run.final(), run.score, run.noise()) or sorted(subject.counts),
        _counts(subject),
        run.shown_name,
    )
    table = Table(
        "about",
        "The data and the runs",
        ["what", "value"],
        [[Cell(name), Cell(value)] for name, value in facts_of(subject, runs).items()],
    )
    return Section(
        "about",
        "What this is about",
        "",
        [table, replace(clients, name="about-clients")],
    )


def _counts(subject: Subject) -> dict[str, Column]:
    """Return the columns of numbers of rows, and of the share of the positive class.

    Of clients on devices, only the test examples and the share of the larger class are known.
    """
    counts = subject.counts
    if not counts:
        known: dict[str, Mapping[str, float]] = {
            "test examples": subject.run.test_examples(),
            "larger class, %": subject.run.column(SHARE_OF_LARGER_CLASS),
        }
        return {name: (Digits(0), numbers, EXACT) for name, numbers in known.items() if numbers}
    names = {"rows": "examples", "for training": "train"}
    if subject.schema.unit:
        names[f"of different {subject.schema.unit}"] = "units"
    columns: dict[str, Column] = {
        heading: (Digits(0), {client: each[key] for client, each in counts.items()}, EXACT)
        for heading, key in names.items()
    }
    place = subject.place
    if place is not None:
        shares = {
            client: 100.0 * each["classes"][place] / each["examples"]
            for client, each in counts.items()
        }
        columns[f"{subject.classes[place]}, %"] = (Digits(0), shares, EXACT)
    return columns


def words_section(sections: Sequence[Section], runs: Sequence[Run]) -> Section:
    """Return a sentence on the method of each run, and on each of WORDS in these sections."""
    methods = {title(run.method): METHODS[run.method] for run in runs if run.method in METHODS}
    rows = {
        name: " ".join((inspect.getdoc(method) or "").partition("\n\n")[0].split())
        for name, method in methods.items()
    }
    # all of their texts, without the data of charts
    said = str(
        [
            (section.title, section.intro, block)
            for section in sections
            for block in section.blocks
            if not isinstance(block, Charts)
        ]
    )
    rows |= {word: meaning for word, meaning in WORDS.items() if word in said}
    cells = [[Cell(word), Cell(meaning)] for word, meaning in rows.items()]
    return Section(
        "words", "Words", "", [Table("words", "What words mean", ["word", "meaning"], cells)]
    )
