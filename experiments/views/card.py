"""The model card of a run: Markdown in the form that the Hugging Face hub reads, from what clients have reported.

Its front matter is YAML whose values are written as JSON, which YAML contains. Every name of a client, column, class or
setting is escaped, since others have chosen it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

from fairbloom.errors import FairbloomError
from fairbloom.prediction.export.described import DescribedModel
from fairbloom.protocol.scores import Score
from fairbloom.protocol.settings import SETTINGS, Mark, split_names
from fairbloom.protocol.thresholds import BY_THRESHOLD, CLIENT, HALF, THRESHOLD
from fairbloom.server.run_folder.files import BEST, CLIENTS, ENVIRONMENT
from fairbloom.tasks.files.agreement import make_printable
from fairbloom.tasks.files.targets import join_names
from fairbloom.tasks.preprocessing import CATEGORY, TABLE

from ..recipes.labels import format_value
from ..results.caveats import caveats_of_run
from ..results.comparison import Plan, load_comparison, personal_label
from ..results.groups import ALL
from ..results.measured import LARGER_CLASS, measure_title
from ..results.other_scores import Contradiction
from ..results.run import Run, load, measures
from .report.cells import SHOWN, Digits
from .report.subgroups import gap_in_words, group_table

LISTED = 50
"""Of more clients, so many have a row: those that are served worst."""

STANDARDISE = "csv.standardise"
"""The setting by which means and deviations may be common to all clients."""

ONE_SEED = (
    "This is one model of one run with one seed. The numbers say how it serves these clients, and neither whether "
    "another method would serve them better nor how the model serves anybody else."
)

Values = Mapping[str, float]
"""A score by client."""


@dataclass(frozen=True)
class ModelCard:
    """The card of one model of a run.

    Attributes
    ----------
    run
        The run.
    described
        Which model it is, what it takes, and in which form it lies beside the card, where it does.
    """

    run: Run
    described: DescribedModel

    def write(self) -> str:
        """Return the card."""
        parts = [
            self.front_matter(),
            f"# {escaped(self.described.target)}: {escaped(self.run.label)}",
            *self._introduction(),
            *self._use(),
            *self._inputs(),
            *self._data(),
            *self._served(),
            *self._groups(),
            *self._training(),
            "## Limits",
            "\n".join(f"- {sentence}" for sentence in self._limits()),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    # What it is -------------------------------------------------------------------------------------------------------

    def front_matter(self) -> str:
        """Return what the hub reads: library, tags, and results under `model-index`; the licence is the owner's."""
        described, run = self.described, self.run
        task = {"task": {"type": described.pipeline}} if described.pipeline else {"task": {"type": "other"}}
        name = str(run.settings.get("task", "federated"))
        metrics = [
            {"type": score.name, "name": f"{title}, {words}", "value": value}
            for score, title, found in self._results()
            for words, value in found.items()
        ]
        result = task | {"dataset": {"type": plain(name), "name": plain(name)}, "metrics": metrics}
        about: dict[str, object] = {
            "library_name": described.library,
            **({"pipeline_tag": described.pipeline} if described.pipeline else {}),
            "tags": ["federated-learning", "fairness", "flower", "fairbloom"],
        }
        if metrics:
            about["metrics"] = list(dict.fromkeys(each["type"] for each in metrics))
            about["model-index"] = [{"name": plain(run.folder.name), "results": [result]}]
        return "\n".join(["---", *(f"{key}: {as_json(value)}" for key, value in about.items()), "---"])

    def _results(self) -> list[tuple[Score, str, dict[str, float]]]:
        """Return each score with its title and the numbers of the front matter, under the model of the card."""
        found = []
        for score in self.run.scores if self._tested else ():
            if not (values := self._final(score, self._kind)):
                continue
            title = f"test {score.title}"
            if self._kind == "personal" and self.described.client:
                if self.described.client in values:
                    found.append((score, title, {self.described.client: values[self.described.client]}))
                continue
            spread = measures(values, score)
            found.append((score, title, {f"mean of {len(values)} clients": spread["mean"], "worst": spread["worst"]}))
        return found

    def _introduction(self) -> list[str]:
        run, described = self.run, self.described
        clients = f"{len(self._tested)} clients" if self._tested else "Clients"
        rounds = run.rounds_done if self._tested else run.num_rounds
        sentences = [
            f"{clients} have trained this model together by federated learning: {escaped(run.label)}, "
            f"{rounds} rounds, with [Fairbloom](https://github.com/fairbloom/fairbloom)."
        ]
        if not run.finished:
            sentences.append(f"The run was {run.state} after round {run.rounds_done} of {run.num_rounds}.")
        if described.model == "best":
            sentences.append(f"It is the model after round {self._best.get('round')}, which had the best mean score.")
        if described.model == "personal":
            sentences.append(f"It is the personal model of {escaped(described.client)}, trained for its data alone.")
        if described.preprocessing and described.preprocessing.classes:
            classes = escaped(join_names(described.preprocessing.classes))
            sentences.append(f"It predicts {escaped(described.target)}: {classes}.")
            sentences += self._threshold(described.preprocessing.rule)
        elif described.preprocessing:
            sentences.append(f"It predicts {escaped(described.target)}, a quantity in its own unit.")
        return [" ".join(sentences)]

    def _threshold(self, rule: str) -> list[str]:
        """Return in sentences which threshold predictions and scores go by, where one was chosen."""
        chosen = str(self.run.settings.get(THRESHOLD, HALF))
        if chosen == HALF or self.described.model == "personal":
            return []
        scores = join_names([name for name in BY_THRESHOLD if name in split_names(self.run.settings.get("scores", ""))])
        by = f"{scores} are measured by a threshold of {'each client' if chosen == CLIENT else 'all clients together'}"
        sentences = [f"Its {by}, chosen on validation examples; all other scores go by the higher probability."]
        return [*([f"It predicts {escaped(rule)}."] if rule else []), *sentences]

    def _use(self) -> list[str]:
        described = self.described
        if not described.listing:
            return []
        return ["## Use", f"{described.form}. {described.checked}", fenced(described.listing, "python")]

    def _inputs(self) -> list[str]:
        preprocessing = self.described.preprocessing
        if preprocessing is None:
            return []
        if preprocessing.form != TABLE:
            shape = "×".join(map(str, preprocessing.shape))
            return ["## Inputs", f"An example has the shape {shape}." if shape else ""]
        rows = [
            [
                column.name,
                "category" if column.kind == CATEGORY else "number",
                join_names(column.categories),
                ("filled in" if column.fill else "refused"),
            ]
            for column in preprocessing.columns
        ]
        return ["## Inputs", table(["column", "kind", "categories", "missing value"], rows)]

    # Whom it serves ---------------------------------------------------------------------------------------------------

    def _data(self) -> list[str]:
        trained, tested = self.run.training_examples(), self._tested
        clients = list({**tested, **trained})
        if not clients:
            return []
        named = {"training examples": trained, "test examples": tested}
        columns = {kind: counts for kind, counts in named.items() if counts}
        words = [f"{sum(counts.values()):,} {kind} of {len(counts)} clients." for kind, counts in columns.items()]
        if not trained:
            words.insert(0, "How many examples the clients have trained on is not in the run folder.")
        elif self.run.settings.get("pooled"):
            words[0] = f"Each client has trained on the {max(trained.values()):,} training examples of all."
        if more := len(clients[LISTED:]):
            words.append(f"{more} more clients are not listed.")
        rows = [[client, *(str(each.get(client, "–")) for each in columns.values())] for client in clients[:LISTED]]
        return ["## Data", " ".join(words), table(["client", *columns], rows)]

    def _served(self) -> list[str]:
        run, score = self.run, self.run.score
        by_model = {model: self._final(score, model) for model in run.models if self._tested}
        by_model = {f"{model} model": values for model, values in by_model.items() if values}
        if not by_model:
            return []
        base, of_base = self._baseline
        values = next(iter(by_model.values()))
        columns = by_model | ({f"under {base}": of_base} if of_base else {})
        digits = Digits.of(score, (value for each in columns.values() for value in each.values()))

        def written(value: float | None) -> str:
            return "–" if value is None else digits.number(value)

        shares = run.larger_classes()
        order = sorted(values, key=lambda client: (score.better(values[client], 0.0), client))
        rows = [
            [
                client,
                *(written(each.get(client)) for each in columns.values()),
                str(self._tested.get(client, "")),
                *([f"{shares[client]:.0f}" if client in shares else ""] if shares else []),
            ]
            for client in order[:LISTED]
        ]
        ends = [f"{score.written(values[client])} ({escaped(client)})" for client in (order[0], order[-1])]
        words = [
            f"Test {score.title}, on examples of each client that had no part in training, the worst served first: "
            f"from {' to '.join(ends)}."
        ]
        if len(order) > LISTED:
            rest = len(order) - LISTED
            which = "client that is not listed is" if rest == 1 else f"{rest} clients that are not listed are"
            words.append(f"The {which} served better than these.")
        if lacking := run.without_score:
            words.append(f"Without a test {score.name}: {escaped(join_names(lacking))}.")
        words += [f"Fairness goes by {score.name}.", *self._other_scores(next(iter(run.models)), order[0])]
        each = table(["client", *columns, "test examples", *([LARGER_CLASS] if shares else [])], rows)
        return ["## How each client is served", " ".join(words), each, self._spread()]

    def _other_scores(self, model: str, worst: str) -> Iterator[str]:
        """Yield whom other scores find served worst, where that is another client than by the score of fairness."""
        for score in self.run.scores[1:]:
            if values := self._final(score, model):
                client = min(values, key=lambda each: (score.better(values[each], 0.0), each))
                if client != worst:
                    yield f"By {score.name}, {escaped(client)} is served worst: {score.written(values[client])}."

    def _spread(self) -> str:
        """Return the table of measures over the clients of every score."""
        rows, keys = [], (*SHOWN, "gap")
        for score in self.run.scores:
            for model in self.run.models:
                if values := self._final(score, model):
                    spread = measures(values, score)
                    digits = Digits.of(score, (spread[key] for key in keys))
                    title = score.title if model == "global" else f"{score.title} ({model} models)"
                    rows.append([title, str(len(values)), *(digits.number(spread[key]) for key in keys)])
        titles = [measure_title(key, len(self._tested)) for key in keys]
        return table(["test score", "clients", *titles], rows)

    def _groups(self) -> list[str]:
        report = self.run.by_group(self._kind) if self._tested and self.described.model != "best" else None
        if report is None:
            return []
        parts = ["## Subgroups", "Groups that are too small are not reported by a client and are not counted here."]
        for grouping in report.grouped.groupings:
            found = group_table(report, grouping, report.clients[:LISTED])
            cells = [[cell.text for cell in row] for row in found.rows]
            gaps = "; ".join(gap_in_words(gap) for gap in report.gaps(ALL) if gap.grouping == grouping)
            sentences = [f"Gaps: {gaps}."] if gaps else []
            sentences.append(f"{report.left_out(grouping)}.")
            parts += [f"### By {escaped(grouping)}", table(found.headings, cells), escaped(" ".join(sentences))]
        return parts

    # How it was made --------------------------------------------------------------------------------------------------

    def _training(self) -> list[str]:
        """Return method, settings and versions; no path of a machine is among them."""
        run = self.run
        places = {key for key, setting in SETTINGS.items() if setting.marks & {Mark.PLACE, Mark.DEVICE, Mark.FREE}}
        differing = {"method": run.settings.get("method", ""), "seed": run.settings.get("seed", ""), **run.differing()}
        settings = [[key, setting_text(value)] for key, value in differing.items() if key not in {*places, "out"}]
        versions = [
            [key, str(value)]
            for key, value in ENVIRONMENT.read(run.folder).items()
            if key not in ("machine", "processors")
        ]
        return [
            "## Training",
            f"{escaped(run.label)}. The settings that are not at their defaults:",
            table(["setting", "value"], settings),
            *([table(["software", "version"], versions)] if versions else []),
        ]

    def _limits(self) -> list[str]:
        described, preprocessing = self.described, self.described.preprocessing
        found = [*(map(escaped, caveats_of_run(self.run)) if self._tested else ()), ONE_SEED]
        found += [escaped(each.sentence) for each in self._contradictions]
        if not CLIENTS.exists_in(self.run.folder):
            found.append("How it serves clients is in the run folder on the server, and not here.")
        elif not self._tested:
            found.append("It has not been evaluated by any client.")
        if described.model == "best" and not self.run.settings.get("validation-share"):
            found.append(
                "The best of all rounds was chosen by the test examples, as there were no others: the scores flatter "
                "it."
            )
        if described.model == "personal":
            found.append("A personal model serves the client that it was made for; nothing is known of others.")
        own = preprocessing is not None and preprocessing.client and self.run.settings.get(STANDARDISE) != "together"
        if described.client and own:
            found.append(
                f"Numbers are standardised by means and deviations of the training rows of "
                f"{escaped(described.client)}, which are in the files: pass them on only if it agrees."
            )
        return found

    @cached_property
    def _contradictions(self) -> list[Contradiction]:
        """The clients of which another score says the opposite, in the comparison that the run is part of."""
        place = self.run.folder.parents[1]
        try:
            plan = Plan.read(place)
            name = str(self.run.folder.relative_to(place))
            (label,) = [label for label, runs in plan.runs.items() if name in runs]
            found = load_comparison(place)
        except (FairbloomError, ValueError):  # it is part of none, or of one that is not finished
            return []
        method = personal_label(label) if self.described.model == "personal" else label
        return [each for each in found.contradictions if each.method == method]

    # What is known ----------------------------------------------------------------------------------------------------

    @property
    def _kind(self) -> str:
        """The kind of model that scores are of: global or personal."""
        return "personal" if self.described.model == "personal" else self.run.serves

    @cached_property
    def _tested(self) -> Mapping[str, int]:
        """How many test examples each client has; empty where the folder has no tables, as on a device."""
        return self.run.test_examples() if CLIENTS.exists_in(self.run.folder) else {}

    @cached_property
    def _best(self) -> Mapping[str, int]:
        """The round of the best model."""
        return BEST.read_about(self.run.folder) if BEST.exists_in(self.run.folder) else {}

    def _final(self, score: Score, model: str) -> Values:
        """Return the score of each client under the model of the card, or after its round."""
        after = self._best.get("round") if self.described.model == "best" else None
        return self.run.final(score, model, after=after)

    @cached_property
    def _baseline(self) -> tuple[str, Values]:
        """The baseline of the comparison that the run is part of, and the score of each client under it."""
        place = self.run.folder.parents[1]
        try:
            plan = Plan.read(place)
            name = str(self.run.folder.relative_to(place))
            seeds = [by_seed.index(name) for by_seed in plan.runs.values() if name in by_seed]
            base = place / plan.runs[plan.baseline][seeds[0]]
            if base == self.run.folder or not (found := load(base)).finished:
                return "", {}
            return plan.baseline, found.final(self.run.score)
        except (FairbloomError, IndexError):  # it is part of no comparison, or of one whose baseline cannot be read
            return "", {}


def setting_text(value: object) -> str:
    """Return a setting as a user writes it."""
    return format_value(value) if isinstance(value, bool | int | float | str) else str(value)


# Markdown and YAML ----------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Return a text without what could not be seen: control characters, and line breaks of all kinds."""
    return make_printable(text)


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is: no markup, HTML, link or further line comes of it."""
    return re.sub(r"([\\`*_{}\[\]<>|~&$#!:@^])|(?<=www)(?=\.)", r"\\\1", plain(text))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; all of its cells are escaped."""
    lines = [headings, ["---"] * len(headings)]
    written = ["| " + " | ".join(map(escaped, line)) + " |" for line in (headings, *rows)]
    return "\n".join([written[0], "| " + " | ".join(lines[1]) + " |", *written[1:]])


def fenced(code: str, language: str) -> str:
    """Return a block of code, whose fence is longer than any in it."""
    fence = "`" * max(3, *(len(each) + 1 for each in re.findall("`+", code)), 3)
    return f"{fence}{language}\n{code}\n{fence}"


def as_json(value: object) -> str:
    """Return a value as JSON that YAML reads as the same: numbers without exponents."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{as_json(str(key))}: {as_json(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_json, value)) + "]"
    if isinstance(value, float):
        return f"{Decimal(f'{value:.6g}'):f}"
    return json.dumps(plain(value) if isinstance(value, str) else value, ensure_ascii=False)
