"""Write the pages on the methods from their docstrings, when Sphinx starts."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torchjd import aggregation

from fairbloom.cli.lists import REQUIRED
from fairbloom.errors import install_command
from fairbloom.protocol.names import (
    ACCURACY_BEFORE,
    BETWEEN_GROUPS,
    DISPARITY,
    HITS,
    LEARNING_RATE,
    LOSS_BASELINE,
    LOSS_BEFORE,
    STEP_SUM,
)
from fairbloom.protocol.parameters import Parameter, Value
from fairbloom.strategies import METHODS, FairStrategy
from fairbloom.strategies.named import format_value
from fairbloom.strategies.torchjd import STARTING_POINTS, takes_gram

from . import toy
from .docstrings import MethodDoc, describe

NEEDS = {
    LOSS_BEFORE: (
        "loss",
        "reports `loss-before`, the loss of the received model on its whole training set",
    ),
    ACCURACY_BEFORE: (
        "received accuracy",
        "reports `accuracy-before`, the accuracy of the received model on its whole training set",
    ),
    HITS[0]: (
        "counts in two groups",
        (
            "reports how many positive examples each of [two"
            " groups](../subgroups.md#training-for-fairness-between-groups) of its training set"
            " has, and how many of them the received model finds"
        ),
    ),
    DISPARITY: (
        "step on the disparity",
        (
            "reports the `disparity` of its [two"
            " groups](../subgroups.md#training-for-fairness-between-groups), and replies a second"
            " model, `arrays-disparity`: the received one after a step down that difference"
        ),
    ),
    LOSS_BASELINE: (
        "loss that it reaches alone",
        (
            "reports `loss-baseline`, the least loss on its training set that it meets by training"
            " alone, once, before its first reply"
        ),
    ),
    "accuracy-after": (
        "accuracy",
        "reports `accuracy-after`, the training accuracy of the model it returns",
    ),
    LEARNING_RATE: ("learning rate", "reports its local `learning-rate`"),
    STEP_SUM: ("sum of its steps", "reports the sum `step-sum` of its local steps' learning rates"),
    "control-variates": (
        "control variates",
        "corrects each step by the server's control variate and one that it keeps",
    ),
    "dynamic-alpha": (
        "dynamic regularizer",
        "adds a proximal term to its loss, and a linear one that it keeps",
    ),
    "proximal-mu": (
        "proximal term",
        "adds (mu/2) ‖x − w‖² to its loss, w being the received model",
    ),
    "full-batch-step": ("one full-batch step", "takes exactly one step, over all of its examples"),
    "client-momentum": (
        "momentum",
        "trains with the momentum that the server sends, starting at zero in every round",
    ),
    "loss-transform": ("transformed loss", "transforms the loss of every minibatch"),
    "local-steps": ("number of steps", "takes the number of local steps that the server sends"),
    "snapshot-step": (
        "snapshot",
        "replies the model after one of these steps too, and tells its loss at their mean",
    ),
    "local-only": ("no common work", "returns the received model as it is"),
    "personal-lambda": (
        "personal model",
        "trains a model of its own as well, and keeps it from round to round",
    ),
}
"""The requirements that a method may have of a client: a word for the table, and the end of a
sentence that begins with "a client"."""

# Names in papers, which no class can have, for the index; ! puts a page first in a search.
PRINTED = {
    "fedmgdaplus": "! FedMGDA+",
    "qfedavg": "! q-FFL, ! q-FedAvg",
    "qfedsgd": "! q-FFL, ! q-FedSGD",
}
DOI = re.compile(r"\bdoi:(10\.\d{4,9}/[\w.()/-]*\w)")
"""The DOI of a paper in a source."""

PAPER = re.compile(
    r"(?P<authors>\w+ et al\.|(?:\w+, )*\w+ and \w+), (?P<title>.+?), "
    r"(?P<venue>[A-Za-z ]+ )?(?P<year>\d{4})\b"
)
"""A paper at the beginning of a source: authors, title, venue if it has one, and year."""

BIBTEX = """\
```bibtex
@misc{{{name},
  author = {{{authors}}},
  title  = {{{{{title}}}}},
  note   = {{{venue}}},
  year   = {{{year}}},
  doi    = {{{doi}}}
}}
```"""

PAGE = """\
# {title}

```{{index}} {printed}
```

{explanation}

{facts}

## Use

```{{py:class}} {signature}
```

```python
from fairbloom.strategies import {title}

strategy = {call}
```

```sh
{command}
```

## Parameters

{parameters}

## What it asks of clients

{needs}

## On two clients

{figure}

## Source

{source}

{bibtex}
"""

TOY = """\
Two clients share a model of two numbers; the loss of one is about three times as steep as the
other's. Thin lines are of equal loss, crosses are each client's best model; every dot is a round,
stars are the last one. This is `{call}`.

```{{image}} {file}
:alt: Course of the model and losses of two clients under {title}
```

{note}
"""

DRIFT = """\
Clients take {steps} steps in a round, in which they drift apart: the dashed course is FedAvg's with
as many steps, and its end, at the cross, is not a minimum of the mean loss.

"""

INDEX = """\
# Methods

{count} methods, each a Flower strategy that turns the clients' losses, the inner products of their
updates and its memory into one coefficient per update, or one for each of its arrays.
`fairbloom methods` prints them as well. The [common options](../api/methods.md) go with all of
them, as `proximal_mu` with FedFV, or personal models with TERM by `personal_lambda`; a method that
cannot have one refuses it by name.

```{{toctree}}
:hidden:

{pages}
```

## At a glance

*Asks of clients* is what a method needs beyond a trained model and its number of examples; *memory*
is what the server keeps from round to round.

{table}

## Notation

In round $t$ the server sends out the model $w$; each client $k$ returns a model $w_k$. The replies
of $m$ clients are used.

| symbol | meaning |
|---|---|
| $u_k$ | the update $w - w_k$; the server steps to $w - \\sum_k c_k u_k$ |
| $c_k$ | the coefficients, which the method decides on |
| $p_k$ | the prior: $n_k / \\sum_j n_j$ by `weighting="examples"`, $1/m$ by `weighting="uniform"` |
| $n_k$ | training examples of client $k$ |
| $F_k$ | loss of the received model on the whole training set of client $k$ |
| $G$ | the Gram matrix, $G_{{ij}} = \\langle u_i, u_j \\rangle$ |
| $\\eta$ | a learning rate |

{torchjd}
"""

TORCHJD = """\
## TorchJD's weightings

{explanation}

With `{install}` each is a method by the name of its class, as in
`fairbloom run --method torchjd:upgrad`:

{names}

{facts}

Arguments without a default are {starting_points}. For others, or a weighting of your own:

```{{py:class}} fairbloom.strategies.FromTorchJD(weighting, **options)
```

```python
from fairbloom.strategies import FromTorchJD
from torchjd.aggregation import UPGradWeighting

strategy = FromTorchJD(UPGradWeighting())
```

{figure}

**Source**: {source}
"""


def write(folder: Path) -> None:
    """Write a page and a figure for each method, and a page that compares them.

    Unchanged files are not written, so that Sphinx doesn't read them again.
    """
    folder.mkdir(exist_ok=True)
    methods = [describe(name) for name in METHODS]
    files = {f"{method.name}.md": page(method).encode() for method in methods}
    files |= {
        **{f"{method.name}.svg": toy.drawn(method.name, method.title) for method in methods},
        "index.md": index(methods).encode(),
        "torchjd.svg": toy.drawn("torchjd:upgrad", "UPGrad"),
    }
    for old in folder.iterdir():
        if old.name not in files:
            old.unlink()
    for name, content in files.items():
        file = folder / name
        if not file.exists() or file.read_bytes() != content:
            file.write_bytes(content)


def page(method: MethodDoc) -> str:
    """Return the page of one method."""
    return PAGE.format(
        title=method.title,
        printed=PRINTED.get(method.name, f"! {method.title}"),
        explanation=explanation(method),
        facts=facts(method),
        signature=signature(METHODS[method.name]),
        call=call(method.title, example(method)),
        command=command(method),
        parameters=parameters(method),
        needs=needs(method),
        figure=figure(method.name, method.title, f"{method.name}.svg"),
        source=source(method),
        bibtex=bibtex(method),
    )


def index(methods: Sequence[MethodDoc]) -> str:
    """Return the page that compares all methods."""
    rows = [
        *((f"[{method.title}]({method.name}.md)", *compared(method)) for method in methods),
        ("[torchjd:NAME](#torchjds-weightings)", *compared(describe("torchjd"))),
    ]
    return INDEX.format(
        count=len(methods),
        pages="\n".join(method.name for method in methods),
        table=table(("Method", "Objective", "Asks of clients", "Memory", "Cost"), rows),
        torchjd=of_torchjd(),
    )


def of_torchjd() -> str:
    """Return the section on TorchJD's weightings."""
    method = describe("torchjd")
    names = (
        name.removesuffix("Weighting").lower()
        for name, value in vars(aggregation).items()
        if inspect.isclass(value) and not name.startswith("_") and takes_gram(value)
    )
    return TORCHJD.format(
        install=install_command("torchjd"),
        explanation=explanation(method),
        names=", ".join(f"`torchjd:{name}`" for name in sorted(names)),
        facts=facts(method),
        starting_points=assigned(STARTING_POINTS),
        figure=figure("torchjd:upgrad", "UPGrad", "torchjd.svg"),
        source=source(method),
    )


def assigned(values: Mapping[str, Mapping[str, float]]) -> str:
    """Return the arguments of some classes in a sentence."""
    return ", ".join(
        f"`{key} = {value}` ({name})"
        for name, given in values.items()
        for key, value in given.items()
    )


# Parts of a page ----------------------------------------------------------------------------------


def explanation(method: MethodDoc) -> str:
    """Return the part of the docstring before the source, with formulas in MyST."""
    parts = re.split(r"\.\. math::((?:.+\n|\n(?= ))+)", method.explanation + "\n")
    return "".join(
        formula(part) if number % 2 else scripts(part) for number, part in enumerate(parts)
    ).strip()


def formula(text: str) -> str:
    """Return LaTeX as a block of MyST."""
    return "\n".join(["```{math}", *(line.strip() for line in text.strip().splitlines()), "```\n"])


def facts(method: MethodDoc) -> str:
    """Return the table of facts: objective, use, cost and prior."""
    rows = {
        "Objective": method.objective,
        "Good for": method.good_for,
        "Hurts when": method.hurts_when,
        "Server's memory": method.memory,
        "Server's cost": method.cost,
        "Prior": {"examples": "by examples", "uniform": "uniform"}.get(method.weighting, "none"),
    }
    if method.server_optimizer:
        rows["With a [server optimizer](../training.md#on-the-server)"] = method.server_optimizer
    lines = [f"* - {name}\n  - {scripts(text)}" for name, text in rows.items()]
    return "\n".join(["```{list-table}", ":stub-columns: 1", ":widths: 20 80", "", *lines, "```"])


def source(method: MethodDoc) -> str:
    """Return the method's source, its reductions, and its departures from the source."""
    notes = {
        "": method.source,
        "**Reductions**: ": method.reductions,
        "**Departures**: ": method.departures,
    }
    return "\n\n".join(label + scripts(text) for label, text in notes.items() if text)


def bibtex(method: MethodDoc) -> str:
    """Return the paper of a source in BibTeX, or "" where a title or an identifier is missing."""
    paper = PAPER.match(method.source)
    doi = DOI.search(method.source)
    if not (paper and doi):
        return ""
    authors = paper["authors"].replace(" et al.", " and others").replace(", ", " and ")
    venue = (paper["venue"] or "arXiv").strip()
    entry = {**paper.groupdict(), "authors": authors, "venue": venue}
    return BIBTEX.format(name=method.name, doi=doi[1], **entry)


def example(method: MethodDoc) -> dict[Parameter, Value]:
    """Return the method's parameters with their defaults, or with the figure's values.

    Names of variants are left out.
    """
    in_figure = toy.ARGUMENTS.get(method.name, {})
    return {
        each: in_figure.get(each.argument, each.example) if each.default is None else each.default
        for each in method.parameters
        if not isinstance(each.default, str)
    }


def signature(method: type[FairStrategy]) -> str:
    """Return the signature of a strategy class, for the index and for links to it."""
    arguments = [
        each.name if each.default is each.empty else f"{each.name}={each.default!r}"
        for each in inspect.signature(method).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    ]
    return f"fairbloom.strategies.{method.__name__}({', '.join([*arguments, '**options'])})"


def call(title: str, arguments: dict[Parameter, Value]) -> str:
    """Return the Python expression that makes a strategy."""
    given = (f"{parameter.argument}={value}" for parameter, value in arguments.items())
    return f"{title}({', '.join(given)})"


def command(method: MethodDoc) -> str:
    """Return the command that runs the method."""
    parts = [f"fairbloom run --method {method.name}"]
    if BETWEEN_GROUPS.intersection(method.needs):
        parts.append("--task adult --set adult.group=sex")
    parts += [f"--set {each.key}={format_value(value)}" for each, value in example(method).items()]
    separator = " " if len(parts) <= 3 else " \\\n    "
    return separator.join(parts)


def parameters(method: MethodDoc) -> str:
    """Return the table of the method's parameters, and a sentence on its prior."""
    prior = f"The default of `weighting` is `{method.weighting}`."
    if method.weighting == "no prior":
        prior = "It has no prior and refuses a `weighting`."
    rows = [
        (
            f"`{each.key}`",
            each.range,
            f"`{REQUIRED if each.default is None else format_value(each.default)}`",
            each.description,
        )
        for each in method.parameters
    ]
    heads = ("Key in a run", "Range", "Default", "Meaning")
    own = table(heads, rows) if rows else "It has none of its own."
    return f"{own}\n\nThe [common options](../api/methods.md) of all methods come on top. {prior}"


def needed(method: MethodDoc) -> list[str]:
    """Return the keys that a client must support: of metrics, and of the terms of a round."""
    terms = toy.strategy(method.name).terms(1).to_config() if method.name in METHODS else {}
    return [key for key in NEEDS if key in method.needs or key in terms]


def needs(method: MethodDoc) -> str:
    """Return the method's requirements of clients, as a list."""
    keys = needed(method)
    if not keys:
        return (
            "A trained model and `num-examples`, no more: clients written for Flower's own FedAvg"
            " will do."
        )
    lines = "\n".join(f"- {NEEDS[key][1]}" for key in keys)
    return f"Beyond its model and `num-examples`, a client\n\n{lines}"


def compared(method: MethodDoc) -> tuple[str, ...]:
    """Return the method's row in the comparison, without its name."""
    asked = ", ".join(NEEDS[key][0] for key in needed(method)) or "nothing"
    return tuple(map(scripts, (method.objective, asked, method.memory, method.cost)))


def figure(name: str, title: str, file: str) -> str:
    """Return the figure with the text around it."""
    arguments = ", ".join(f"{key}={value}" for key, value in toy.ARGUMENTS.get(name, {}).items())
    shown = f"{title}({arguments})" if name in METHODS else name
    note = toy.NOTES.get(name, "")
    if toy.epochs_of(name) > 1:
        note = DRIFT.format(steps=toy.LOCAL_STEPS * toy.MANY_EPOCHS) + note
    return TOY.format(call=shown, title=title, file=file, note=note).strip()


# Markdown -----------------------------------------------------------------------------------------


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    cells = (tuple(cell.replace("|", r"\|") for cell in row) for row in rows)
    lines = (heads, ("---",) * len(heads), *cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def scripts(text: str) -> str:
    """Return text with F_k and e^(x), outside code, as sub- and superscript, and DOIs as links."""
    parts = text.split("`")
    found = re.compile(r"(?<=\w)([_^])(?:\(([^)]+)\)|([^\W_])(?![^\W_]))")
    for number in range(0, len(parts), 2):
        parts[number] = found.sub(
            lambda m: f"{{{'sub' if m[1] == '_' else 'sup'}}}`{m[2] or m[3]}`", parts[number]
        )
    return DOI.sub(r"[doi:\1](https://doi.org/\1)", "`".join(parts))
