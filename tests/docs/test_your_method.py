"""Everything that the guide to methods shows is run."""

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

import pytest

from fairbloom.check import CheckFailedError, Status, check_method, check_rule
from fairbloom.checks.rule import RuleUnderTest
from fairbloom.rounds.cohort import Cohort
from fairbloom.rounds.method import Method
from fairbloom.strategies import FedAvg
from tests.commands import fairbloom
from tests.federation import BUFFERS, quadratics, run as run_strategy

from .pages import ROOT

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
METHODS = [
    f"{name}:{method}"
    for name, text in TEXTS.items()
    for method in re.findall(r"^class (\w+)\(FairStrategy\)", text, re.MULTILINE)
]

(IMPORTS,) = (block for block in PYTHON if "import FairStrategy\n" in block)
(IN_PYTHON,) = (block for block in PYTHON if "check_method(WorstHalf" in block)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the guide's my_methods.py, and the file of more methods that it links."""
    folder = tmp_path_factory.mktemp("guide")
    classes = [block for block in PYTHON if block.startswith("class ")]
    (folder / "my_methods.py").write_text("\n\n".join([IMPORTS, *classes]))
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
def test_methods_and_rules_pass_without_a_remark(subtests: pytest.Subtests) -> None:
    assert (len(METHODS), len(RULES)) == (6, 2)
    reports = [
        *(check_method(resolve_name(name)) for name in METHODS),
        *(check_rule(name) for name in RULES),
    ]
    for report in reports:
        with subtests.test(report=report):
            assert {result.status for result in report.results.values()} == {Status.PASSED}, (
                report.name
            )


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
def test_clients_follow_what_the_method_sends() -> None:
    """In the first round nothing is sent yet, and it is FedAvg's."""
    rule = "more_methods:Following"
    heading, fedavg = (
        RuleUnderTest(rule).run_rounds(method(client_rule=rule, fraction_evaluate=0.0), 2)
        for method in (resolve_name("more_methods:Heading"), FedAvg)
    )
    (first, same), (second, other) = zip(heading, fedavg, strict=True)
    assert all((first.arrays[name] == same.arrays[name]).all() for name in first.arrays)
    assert all((second.arrays[name] != other.arrays[name]).any() for name in second.arrays)


@pytest.mark.usefixtures("my_methods")
def test_they_use_what_the_guide_is_about() -> None:
    """Each of a method's functions is shown in one of them, but those that few methods need."""
    shown = {name for method in METHODS for name in vars(resolve_name(method))}
    assert {
        "needs",
        "weigh",
        "remember",
        "choose",
        "sends",
        "reports",
        "own_metrics",
        "requires",
    } <= shown


def test_the_check_in_python_passes(my_methods: ModuleType) -> None:
    exec(IN_PYTHON, {"WorstHalf": my_methods.WorstHalf})  # noqa: S102 (our own page)


def test_a_forgotten_need_is_told_in_the_words_of_the_guide(my_methods: ModuleType) -> None:
    (words,) = re.findall(r"```text\n(.+?)\n```", GUIDE)
    worst_half: type = my_methods.WorstHalf
    forgetful = type("WorstHalf", (worst_half,), {"needs": frozenset(), "__module__": "my_methods"})
    with pytest.raises(CheckFailedError) as error:
        check_method(forgetful)
    assert [*error.value.report.failures.values()] == [words]


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
        "declared_roster",
    }
    assert table("attribute") == computed | given


NOT_SAID = {
    *("reset", "state_dict", "load_state_dict", "layout_of"),
    *("weighs_by_prior", "has_second_rows", "compares_groups", "keeps_states", "forget"),
    *("all_needs", "check_fit", "corrects_clients", "own_parameters", "last_evaluated"),
}
"""What Fairbloom calls, or derives of the rest."""


def test_the_guide_tells_of_everything_that_a_method_may_say() -> None:
    own = {name for name in vars(Method) if not name.startswith("_")}
    assert table("name") == own - NOT_SAID
