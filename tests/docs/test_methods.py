"""The pages on the methods: complete and well formed, and what they show runs.

Everything that the guide to methods shows is run.
"""

import importlib
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, get_type_hints

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from typer.testing import CliRunner

from docs import toy
from docs.docstrings import describe
from docs.methods import bibtex, example, needs, page, scripts
from fairbloom.cli.main import app
from fairbloom.errors import FairbloomError
from fairbloom.experiments.api import run as train
from fairbloom.experiments.method_check import check_method
from fairbloom.protocol.settings import Value
from fairbloom.rounds.cohort import Cohort, Decision, Kept
from fairbloom.rounds.method import Method
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import METHODS, FairStrategy, FedAvg, FedFV
from fairbloom.strategies.descent import COMMON_DESCENT
from tests.commands import fairbloom
from tests.federation import BUFFERS, quadratics, run as run_strategy
from tests.originals import is_there
from tests.strategies.helpers import cohort_of, step_of

from .pages import ROOT
from .reader import simple_clients

JUDGED = ("objective", "good_for", "hurts_when", "memory", "cost")

DOI = r"\bdoi:(10\.(?:48550/arXiv\.\d{4}\.\d{5}|24963/ijcai\.\d{4}/\d+|1609/aaai\.v\d+i\d+\.\d+))(?=[.;]?(?:\s|$))"
# The methods that were read in their authors' code only, with its repository.
CODE_ONLY = {"fairmoo": "Zhg9300/FairMOO", "fedpw": "guankaiqi/FedPW"}

LABELS = re.compile(r"(Objective|Good for|Hurts when|Memory|Cost|Source|Parameters): ")


@pytest.mark.parametrize("name", [*METHODS, "torchjd"])
def test_a_docstring_says_all_that_a_page_shows(name: str) -> None:
    method = describe(name)
    always = ("title", "explanation", "source", "weighting", *JUDGED)
    assert [field for field in always if not getattr(method, field)] == [], name
    assert [
        p.key
        for p in method.parameters
        if not (p.range and p.default is not None and p.description)
    ] == []
    fields = (*JUDGED, "source", "reductions", "departures")
    assert [field for field in fields if LABELS.search(getattr(method, field))] == [], name
    if name in CODE_ONLY:
        assert f"github.com/{CODE_ONLY[name]}" in method.source
        return
    (doi,) = re.findall(DOI, method.source)
    assert f"](https://doi.org/{doi})" in scripts(method.source)


def test_a_page_has_the_bibtex_of_its_paper() -> None:
    # Sources without a title or an identifier, and the baseline of another method's paper.
    assert {"eagle", "local", *CODE_ONLY} == {
        name for name in METHODS if "```bibtex\n" not in page(describe(name))
    }
    assert [
        line for name in ("aaggff", "deltafl") for line in bibtex(describe(name)).splitlines()[1:-1]
    ] == [
        "@misc{aaggff,",
        "  author = {Hahn and Kim and Lee},",
        "  title  = {{Pursuing Overall Welfare in Federated Learning through Sequential Decision"
        " Making}},",
        "  note   = {ICML},",
        "  year   = {2024},",
        "  doi    = {10.48550/arXiv.2405.20821}",
        "}",
        "@misc{deltafl,",
        "  author = {Pillutla and others},",
        "  title  = {{Federated Learning with Superquantile Aggregation for Heterogeneous Data}},",
        "  note   = {arXiv},",
        "  year   = {2021},",
        "  doi    = {10.48550/arXiv.2112.09429}",
        "}",
    ]


@pytest.mark.parametrize(("name", "method"), METHODS.items())
def test_memory_is_named_where_there_is_one(name: str, method: type[FairStrategy]) -> None:
    """A method that keeps rows or numbers between rounds says so; the others say none."""
    decides = get_type_hints(method.weigh)["return"] is Decision
    keeps = decides or method.learn is not FairStrategy.learn
    assert (describe(name).memory != "none") == keeps, name


@pytest.mark.parametrize("name", METHODS)
def test_a_page_has_every_part(name: str) -> None:
    method = describe(name)
    text = page(method)
    assert text.count("```{math}") == METHODS[name].__doc__.count(".. math::") >= 1  # type: ignore[union-attr]
    assert ".. math::" not in text
    assert [
        part
        for part in (
            f"from fairbloom.strategies import {method.title}",
            f"fairbloom run --method {name}",
        )
        if part not in text
    ] == []
    assert f"{name}.svg" in text
    assert [
        parameter
        for parameter in method.parameters
        if f"| `{parameter.key}` | {parameter.range} |" not in text
    ] == []
    for block in re.findall(r"```\{math\}\n(.+?)```", text, re.DOTALL):
        assert block.count("{") == block.count("}")
        assert len(re.findall(r"\\[Bb]igg?", block)) % 2 == 0


@pytest.mark.parametrize(("name", "method"), METHODS.items())
def test_the_example_makes_the_strategy_of_a_run_by_default(name: str, method: type) -> None:
    (call,) = re.findall(r"^strategy = (.+)$", page(describe(name)), re.MULTILINE)
    made = eval(call, {method.__name__: method})  # noqa: S307 (our own page)
    given = {parameter.key: value for parameter, value in example(describe(name)).items()}
    default = Settings.of({"method": name, "fraction": 1.0, **given}).strategy()
    ours, due = ({k: v for k, v in vars(each).items() if k[0] != "_"} for each in (made, default))
    assert ours == due


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_command_of_a_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs with its settings, for one round in place of fifty."""
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"```sh\n(.+?)```", page(describe(name)), re.DOTALL)
    if "--task adult" in command and not is_there("adult/adult.data"):
        pytest.skip("FAIRBLOOM_DATA names no folder with adult/adult.data")
    words = shlex.split(command.replace("\\\n", ""))
    done = CliRunner().invoke(app, [*words[1:], "--rounds", "1"])
    assert (words[0], done.exit_code) == ("fairbloom", 0), done.output


def test_needs_are_those_of_the_strategy() -> None:
    assert "no more" in needs(describe("fedavg"))
    assert "`loss-before`" in needs(describe("fedfv"))
    assert "(mu/2)" in needs(describe("mgdaprox"))
    assert "after one of these steps" in needs(describe("drfa"))


def test_scripts_are_set_outside_of_code_only() -> None:
    assert scripts("F_k^γ and e^(tF)") == "F{sub}`k`{sup}`γ` and e{sup}`tF`"
    assert scripts("`server_lr` and personal_lambda") == "`server_lr` and personal_lambda"


# The two clients ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("start", toy.STARTS)
def test_kept_states_reach_the_minimum_where_fedavg_drifts_off(start: tuple[float, float]) -> None:
    minimum = np.linalg.solve(
        sum(client.curvature for client in toy.CLIENTS.values()),
        sum(client.curvature @ client.target for client in toy.CLIENTS.values()),
    )
    keeping = [name for name in METHODS if toy.strategy(name).keeps_states]
    assert {"scaffold", "feddyn"} <= {*keeping}
    for name in keeping:
        np.testing.assert_allclose(
            toy.run(name, start, toy.epochs_of(name)).globally[-1], minimum, atol=1e-3
        )
        assert "the dashed course is FedAvg's" in page(describe(name))
    assert np.linalg.norm(toy.run("fedavg", start, toy.MANY_EPOCHS).globally[-1] - minimum) > 0.3
    assert "dashed course" not in page(describe("fedavg"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedmdfg", "fedlf", "fairmoo"])
def test_guidance_ends_nearer_to_equal_losses_than_the_mean_does(name: str) -> None:
    def gap(method: str) -> float:
        steep, flat = (toy.run(method, toy.STARTS[0]).losses(client)[-1] for client in toy.CLIENTS)
        return float(abs(np.log(steep / flat)))

    assert gap(name) < 0.5 * gap("fedavg")


AS_THEY_ARE = [
    name
    for name in METHODS
    if "clients written for Flower's own FedAvg will do" in needs(describe(name))
]


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_clients_that_are_written_for_flowers_fedavg_will_do(name: str) -> None:
    result = METHODS[name]().start(
        InProcessGrid(simple_clients(), {}, clients=3),
        ArrayRecord({"w": Array(np.full(2, 9.0))}),
        num_rounds=2,
    )
    assert (result.arrays["w"].numpy() < 9.0).all(), name


def test_the_first_page_names_a_method_for_unchanged_clients() -> None:
    (title,) = re.findall(
        r"Put `(\w+)\(\)` where `FedAvg\(\)` stood", (ROOT / "docs" / "index.md").read_text()
    )
    assert title.lower() in AS_THEY_ARE


@pytest.mark.parametrize(
    ("names", "lost"),
    [
        (
            ("fedmgda", "fedmgdaplus", "mgdaprox", "adafed", "fedmdfg", "fedlf", "fairmoo"),
            f"{COMMON_DESCENT}.",
        ),
        (("fedfv",), "its step is as long as the mean update,"),
        (("qfedavg", "qfedsgd"), "the length of its step follows from"),
    ],
)
def test_a_page_says_what_a_server_optimizer_breaks(names: tuple[str, ...], lost: str) -> None:
    said = f"(../training.md#on-the-server)\n  - One thing no longer holds: {lost}"
    assert [name for name in names if said not in page(describe(name))] == []
    assert "server optimizer" not in page(describe("fedavg"))


@pytest.mark.parametrize("name", ["fedfa", "feddyn"])
def test_a_page_says_that_a_method_refuses_avgm(name: str) -> None:
    assert "It refuses avgm, as it has a momentum of its own on the server." in page(describe(name))
    with pytest.raises(FairbloomError, match="refuses server-optimizer = 'avgm'"):
        Settings.of({"method": name, "server-optimizer": "avgm"})


GUIDE = (ROOT / "docs" / "your-method.md").read_text()
MORE = ROOT / "docs" / "apps" / "more_methods.py"
PYTHON = re.findall(r"```python\n(.+?)```", GUIDE, re.DOTALL)
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.+?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
]
TEXTS = {"my_methods": GUIDE, "more_methods": MORE.read_text()}
RULES = [
    f"{name}:{rule}"
    for name, text in TEXTS.items()
    for rule in re.findall(r"^class (\w+):", text, re.MULTILINE)
]
SHOWN = [
    f"{name}:{method}"
    for name, text in TEXTS.items()
    for method in re.findall(r"^class (\w+)\((?:FairStrategy|FedFV)\)", text, re.MULTILINE)
]

(IMPORTS,) = (block for block in PYTHON if "import FairStrategy\n" in block)
(IN_PYTHON,) = (block for block in PYTHON if "def test_my_method" in block)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the guide's my_methods.py, and the file of more methods that it links."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "my_methods.py").write_text(
        "\n\n".join([IMPORTS, *[block for block in PYTHON if block.startswith("class ")]])
    )
    shutil.copy(MORE, folder)
    return folder


@pytest.fixture(scope="module")
def my_methods(folder: Path) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("my_methods")
        for name in TEXTS:
            sys.modules.pop(name, None)


def test_every_block_of_python_is_run_by_a_test() -> None:
    classes = [block for block in PYTHON if block.startswith("class ")]
    assert len(classes) == GUIDE.count("\nclass ") == 4
    assert sorted(PYTHON) == sorted([IMPORTS, IN_PYTHON, *classes])


@pytest.mark.usefixtures("my_methods")
def test_methods_of_the_guide_pass_the_check(subtests: pytest.Subtests) -> None:
    assert (len(SHOWN), len(RULES)) == (7, 2)
    there: dict[str, Any] = {}
    exec(IN_PYTHON, there)  # noqa: S102 (our own page)
    there["test_my_method"]()
    for name in SHOWN:
        with subtests.test(name=name):
            check_method(resolve_name(name))


def test_worst_first_draws_by_the_last_losses(my_methods: ModuleType) -> None:
    clients = quadratics(6)
    finished = run_strategy(my_methods.WorstFirst(fraction_train=0.5, buffers=BUFFERS), clients)[1]
    first = [set(each.participants) for each in finished[:2]]
    assert first[0] | first[1] == {*clients}
    losses = {
        name: report["loss-before"]
        for each in finished[:2]
        for name, report in each.train_metrics.items()
    }
    assert {*finished[2].participants} == {*sorted(losses, key=losses.__getitem__)[-3:]}


@pytest.mark.usefixtures("my_methods")
def test_clients_follow_what_the_method_sends(tmp_path: Path) -> None:
    """In the first round nothing is sent yet, and it is FedAvg's."""
    settings: dict[str, Value] = {"client-rule": "more_methods:Following", "batch-size": 0}

    def trained(method: type[FairStrategy], rounds: int) -> list[Any]:
        run = train(
            "digits", method=method, clients=6, rounds=rounds, device="cpu", settings=settings,
            out=tmp_path / f"{method.__name__}{rounds}", progress=False,
        )  # fmt: skip
        return [*run.arrays().values()]

    heading = resolve_name("more_methods:Heading")
    for rounds, same in ((1, True), (2, False)):
        pairs = zip(trained(heading, rounds), trained(FedAvg, rounds), strict=True)
        assert all(np.array_equal(one, other) for one, other in pairs) == same


@pytest.mark.usefixtures("my_methods")
@pytest.mark.parametrize("m", [1, 3, 4, 9])
def test_mixed_is_fedfv_of_the_mixtures(m: int) -> None:
    """By vectors: also of kept rows, which are mixtures already, and in any order of the clients."""
    rng = np.random.default_rng(m)
    U = rng.normal(size=(m, 6))
    losses = rng.uniform(1.0, 2.0, m)
    count = m - m // 4
    distances = np.linalg.norm(U[:, None] - U, axis=2)
    mixtures = np.array([U[np.argsort(row)[:count]].mean(axis=0) for row in distances])
    old: dict[str, Any] = {"memory": {Kept("away", 1): rng.normal(size=6)}, "round": 2}
    mixed = resolve_name("more_methods:Mixed")()
    expected = step_of(FedFV(), mixtures, losses=losses, **old)
    np.testing.assert_allclose(step_of(mixed, U, losses=losses, **old), expected, atol=1e-9)
    order = rng.permutation(m)
    np.testing.assert_allclose(
        step_of(mixed, U[order], losses=losses[order], **old), expected, atol=1e-9
    )
    decided = mixed.weigh(cohort_of(U, losses=losses))
    kept = [row @ U for row in decided.keep.values()]
    np.testing.assert_allclose(kept, mixtures, atol=1e-9)


@pytest.mark.usefixtures("my_methods")
def test_far_updates_are_in_no_mixture() -> None:
    """A tie keeps both updates, so that names do not decide."""
    mix = resolve_name("more_methods:mix")
    _, M = mix(cohort_of(np.array([[1.0], [1.1], [0.9], [-9.0]])))
    assert (M[:3, 3] == 0.0).all()
    assert M[3, 3] > 0.0
    _, M = mix(cohort_of(np.array([[0.0], [1.0], [-1.0], [3.0]])))
    np.testing.assert_allclose(M[1], 0.25)
    assert M[0, 3] == 0.0


@pytest.mark.usefixtures("my_methods")
def test_they_use_what_the_guide_is_about() -> None:
    """Each of a method's functions is shown in one of them, but those that few methods need."""
    assert {
        "needs",
        "weigh",
        "choose",
        "sends",
        "reports",
        "own_metrics",
        "requires",
    } <= {name for method in SHOWN for name in vars(resolve_name(method))}


def test_a_forgotten_need_is_told_in_the_words_of_the_guide(
    my_methods: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (words,) = re.findall(r"```text\nerror: (.+?)\n```", GUIDE)
    monkeypatch.setattr(my_methods.WorstHalf, "needs", frozenset())
    with pytest.raises(FairbloomError) as error:
        train("digits", method=my_methods.WorstHalf, rounds=1, out=tmp_path, progress=False)
    assert str(error.value) == words


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_runs(command: str, folder: Path) -> None:
    executable, *arguments = shlex.split(command.replace("--rounds 20", "--rounds 2"))
    assert executable == "fairbloom"
    done = fairbloom(folder, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


# Complete and true --------------------------------------------------------------------------------


def table(heading: str) -> set[str]:
    """Return the names in code in the first column of the table that begins with a heading."""
    (rows,) = re.findall(rf"^\| {heading} \|.+\n\|[-|]+\|\n((?:\|.+\n)+)", GUIDE, re.MULTILINE)
    return {
        name for row in rows.splitlines() for name in re.findall(r"`(\w+)", row.split(" | ")[0])
    }


def test_the_guide_tells_of_everything_in_a_cohort() -> None:
    computed = {
        name
        for name, value in vars(Cohort).items()
        if isinstance(value, property | cached_property)
    }
    given = {field.name for field in fields(Cohort)} - {
        "gram_of",
        "grams_of",
        "squared_norms_of",
    }
    assert table("attribute") == computed | given


# What Fairbloom calls, or derives of the rest.
NOT_SAID = {
    *("adapt", "enter", "reset", "state_dict", "load_state_dict", "layout_of", "frozen_in"),
    *("weighs_by_prior", "has_second_rows", "compares_groups", "keeps_states", "run_state"),
    *(
        "all_needs",
        "all_reports",
        "check_fit",
        "corrects_clients",
        "own_parameters",
        "largest_loss",
    ),
}


def test_the_guide_tells_of_everything_that_a_method_may_say() -> None:
    assert table("name") == {name for name in vars(Method) if not name.startswith("_")} - NOT_SAID
