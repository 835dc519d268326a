"""The model card of a run: a page in Markdown, with the front matter that the Hugging Face hub reads.

The front matter is YAML whose values are written as JSON, which YAML contains.
"""

import json
from collections.abc import Mapping
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
from ..results.run import Run, load, measures
from . import markdown
from .report.cells import Digits
from .report.lines import worst_first
from .report.of_run import Values, clients_table, spread_table
from .report.page import Block, Cell, Listing, Note, Page, Section, Table, slug
from .report.subgroups import group_blocks

LISTED = 50
"""The most clients that have a row: those that are served worst."""

ONE_SEED = (
    "This is one model of one run with one seed. The numbers say how it serves these clients, and neither whether "
    "another method would serve them better nor how the model serves anybody else."
)


@dataclass(frozen=True)
class ModelCard:
    """The card of one model of a run."""

    run: Run
    described: DescribedModel

    def write(self) -> str:
        """Return the card."""
        sections = [
            *self._use(),
            *self._inputs(),
            *self._data(),
            *self._served(),
            *self._groups(),
            self._training(),
            Section("limits", "Limits", "", [Note(self._limits())]),
        ]
        title = f"{self.described.target}: {self.run.label}"
        page = Page(title, self._headline(), self._introduction(), (), sections)
        return f"{self.front_matter()}\n\n{markdown.render(page)}"

    # What it is -------------------------------------------------------------------------------------------------------

    def front_matter(self) -> str:
        """Return what the hub reads: library, tags, and results under `model-index`; the licence is the owner's."""
        described, run = self.described, self.run
        name = str(run.settings.get("task", "federated"))
        metrics = [
            {"type": score.name, "name": f"test {score.title}, {words}", "value": value}
            for score in (run.scores if self._tested else ())
            for words, value in self._numbers(score).items()
        ]
        result = {
            "task": {"type": described.pipeline or "other"},
            "dataset": {"type": name, "name": name},
            "metrics": metrics,
        }
        about: dict[str, object] = {
            "library_name": described.library,
            **({"pipeline_tag": described.pipeline} if described.pipeline else {}),
            "tags": ["federated-learning", "fairness", "flower", "fairbloom"],
        }
        if metrics:
            about["metrics"] = list(dict.fromkeys(each["type"] for each in metrics))
            about["model-index"] = [{"name": run.folder.name, "results": [result]}]
        return "\n".join(["---", *(f"{key}: {as_json(value)}" for key, value in about.items()), "---"])

    def _numbers(self, score: Score) -> Values:
        """Return the numbers of a score under the model of the card, by what they are of."""
        values, client = self._final(score, self._kind), self.described.client
        if self._kind == "personal" and client:
            return {client: values[client]} if client in values else {}
        spread = measures(values, score) if values else {}
        return {f"mean of {len(values)} clients": spread["mean"], "worst": spread["worst"]} if spread else {}

    def _headline(self) -> str:
        clients = f"{len(self._tested)} clients" if self._tested else "Clients"
        rounds = self.run.rounds_done if self._tested else self.run.num_rounds
        return f"{clients} have trained this model together by federated learning: {self.run.label}, {rounds} rounds."

    def _introduction(self) -> list[str]:
        run, described, sentences = self.run, self.described, list[str]()
        if not run.finished:
            sentences.append(f"The run was {run.state} after round {run.rounds_done} of {run.num_rounds}.")
        if described.model == "best":
            sentences.append(f"It is the model after round {self._best.get('round')}, which had the best mean score.")
        if described.model == "personal":
            sentences.append(f"It is the personal model of {described.client}, trained for its data alone.")
        if described.preprocessing and described.preprocessing.classes:
            sentences.append(f"It predicts {described.target}: {join_names(described.preprocessing.classes)}.")
            sentences += self._threshold(described.preprocessing.rule)
        elif described.preprocessing:
            sentences.append(f"It predicts {described.target}, a quantity in its own unit.")
        return sentences

    def _threshold(self, rule: str) -> list[str]:
        """Return in sentences which threshold predictions and scores go by, where one was chosen."""
        chosen = str(self.run.settings.get(THRESHOLD, HALF))
        if chosen == HALF or self.described.model == "personal":
            return []
        scores = join_names([name for name in BY_THRESHOLD if name in split_names(self.run.settings.get("scores", ""))])
        by = f"{scores} are measured by a threshold of {'each client' if chosen == CLIENT else 'all clients together'}"
        sentences = [f"Its {by}, chosen on validation examples; all other scores go by the higher probability."]
        return [*([f"It predicts {rule}."] if rule else []), *sentences]

    def _use(self) -> list[Section]:
        described = self.described
        blocks = [Listing(described.listing, "python")]
        return [Section("use", "Use", f"{described.form}. {described.checked}", blocks)] if described.listing else []

    def _inputs(self) -> list[Section]:
        preprocessing = self.described.preprocessing
        if preprocessing is None:
            return []
        if preprocessing.form != TABLE:
            shape = "×".join(map(str, preprocessing.shape))
            return [Section("inputs", "Inputs", f"An example has the shape {shape}." if shape else "", [])]
        rows = [
            [
                *map(Cell, (column.name, "category" if column.kind == CATEGORY else "number")),
                *map(Cell, (join_names(column.categories), "filled in" if column.fill else "refused")),
            ]
            for column in preprocessing.columns
        ]
        table = Table("inputs", "", ["column", "kind", "categories", "missing value"], rows)
        return [Section("inputs", "Inputs", "", [table])]

    # Whom it serves ---------------------------------------------------------------------------------------------------

    def _data(self) -> list[Section]:
        trained, tested = self.run.training_examples(), self._tested
        clients = list({**tested, **trained})
        if not clients:
            return []
        columns = {"training examples": trained, "test examples": tested}
        columns = {kind: counts for kind, counts in columns.items() if counts}
        words = [f"{sum(counts.values()):,} {kind} of {len(counts)} clients." for kind, counts in columns.items()]
        if not trained:
            words.insert(0, "How many examples the clients have trained on is not in the run folder.")
        elif self.run.settings.get("pooled"):
            words[0] = f"Each client has trained on the {max(trained.values()):,} training examples of all."
        if more := len(clients[LISTED:]):
            words.append(f"{more} more clients are not listed.")
        rows = [
            [Cell(client), *(Digits(0).cell(each.get(client)) for each in columns.values())]
            for client in clients[:LISTED]
        ]
        return [Section("data", "Data", " ".join(words), [Table("data", "", ["client", *columns], rows)])]

    def _served(self) -> list[Section]:
        run, score = self.run, self.run.score
        columns = {f"{model} model": self._final(score, model) for model in run.models if self._tested}
        columns = {model: values for model, values in columns.items() if values}
        if not columns:
            return []
        values = next(iter(columns.values()))
        order = worst_first(values, score)
        ends = " to ".join(f"{score.written(values[client])} ({client})" for client in (order[0], order[-1]))
        words = [
            f"Test {score.title}, on examples of each client that had no part in training, the worst served first: "
            f"from {ends}."
        ]
        if (rest := len(order) - LISTED) > 0:
            which = "client that is not listed is" if rest == 1 else f"{rest} clients that are not listed are"
            words.append(f"The {which} served better than these.")
        if lacking := run.without_score:
            words.append(f"Without a test {score.name}: {join_names(lacking)}.")
        words.append(f"Fairness goes by {score.name}.")
        for other in run.scores[1:]:
            if found := self._final(other, next(iter(run.models))):
                worst = worst_first(found, other)[0]
                if worst != order[0]:
                    words.append(f"By {other.name}, {worst} is served worst: {other.written(found[worst])}.")
        base, of_base = self._baseline
        columns |= {f"under {base}": of_base} if of_base else {}
        spreads = [
            (each, model, values, len(self._tested))
            for each in run.scores
            for model in run.models
            if (values := self._final(each, model))
        ]
        blocks = [clients_table(run, columns, order[:LISTED]), spread_table("", spreads, len(self._tested))]
        return [Section("served", "How each client is served", " ".join(words), blocks)]

    def _groups(self) -> list[Section]:
        report = self.run.by_group(self._kind) if self._tested and self.described.model != "best" else None
        if report is None:
            return []
        intro = "Groups that are too small are not reported by a client and are not counted here."
        return [
            Section("groups", "Subgroups", intro, []),
            *(
                Section(f"groups-{slug(name)}", f"By {name}", "", group_blocks(report, name, report.clients[:LISTED]))
                for name in report.grouped.groupings
            ),
        ]

    # How it was made --------------------------------------------------------------------------------------------------

    def _training(self) -> Section:
        """Return method, settings and versions; no path of a machine is among them."""
        run = self.run
        places = {key for key, setting in SETTINGS.items() if setting.marks & {Mark.PLACE, Mark.DEVICE, Mark.FREE}}
        differing = {"method": run.settings.get("method", ""), "seed": run.settings.get("seed", ""), **run.differing()}
        settings = {key: format_value(value) for key, value in differing.items() if key not in {*places, "out"}}
        versions = {
            key: str(value)
            for key, value in ENVIRONMENT.read(run.folder).items()
            if key not in ("machine", "processors")
        }
        tables: list[Block] = [
            Table(name, "", headings, [[Cell(key), Cell(value)] for key, value in rows.items()])
            for name, headings, rows in (
                ("settings", ("setting", "value"), settings),
                ("versions", ("software", "version"), versions),
            )
            if rows
        ]
        return Section("training", "Training", f"{run.label}. The settings that are not at their defaults:", tables)

    def _limits(self) -> list[str]:
        described, preprocessing = self.described, self.described.preprocessing
        found = [*(caveats_of_run(self.run) if self._tested else ()), ONE_SEED, *self._contradictions]
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
        own = (
            preprocessing is not None
            and preprocessing.client
            and self.run.settings.get("csv.standardise") != "together"
        )
        if described.client and own:
            found.append(
                f"Numbers are standardised by means and deviations of the training rows of {described.client}, which "
                "are in the files: pass them on only if it agrees."
            )
        return found

    # The comparison that the run is part of ---------------------------------------------------------------------------

    @cached_property
    def _plan(self) -> tuple[Plan, str, int] | None:
        """The plan of the comparison, the run's method there, and the place of its seed; None where it is in none."""
        place = self.run.folder.parents[1]
        try:
            plan, name = Plan.read(place), str(self.run.folder.relative_to(place))
        except FairbloomError:
            return None
        return next(((plan, label, runs.index(name)) for label, runs in plan.runs.items() if name in runs), None)

    @property
    def _contradictions(self) -> list[str]:
        """What another score says of clients, where that is the opposite."""
        if self._plan is None:
            return []
        _, label, _ = self._plan
        method = personal_label(label) if self.described.model == "personal" else label
        try:
            found = load_comparison(self.run.folder.parents[1])
        except FairbloomError:  # it is not finished
            return []
        return [each.sentence for each in found.contradictions if each.method == method]

    @property
    def _baseline(self) -> tuple[str, Values]:
        """The baseline, and the score of each client under it; none where that is the run or cannot be read."""
        if self._plan is None:
            return "", {}
        plan, label, seed = self._plan
        try:
            found = load(self.run.folder.parents[1] / plan.runs[plan.baseline][seed])
            known = label != plan.baseline and found.finished
            return plan.baseline, found.final(self.run.score) if known else {}
        except (FairbloomError, IndexError):
            return "", {}

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


def as_json(value: object) -> str:
    """Return a value as JSON that YAML reads as the same: numbers without exponents, no control characters."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{as_json(str(key))}: {as_json(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_json, value)) + "]"
    if isinstance(value, float):
        return f"{Decimal(f'{value:.6g}'):f}"
    return json.dumps(make_printable(value) if isinstance(value, str) else value, ensure_ascii=False)
