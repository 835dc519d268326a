"""The pages on the methods: complete and well formed, and what they show runs."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from typer.testing import CliRunner

from docs import toy
from docs.docstrings import describe
from docs.methods import example, needs, page, scripts
from fairbloom.cli.main import app
from fairbloom.errors import FairbloomError
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import METHODS, FairStrategy, FedAvg
from fairbloom.strategies.descent import COMMON_DESCENT
from tests.originals import is_there

from .pages import ROOT
from .reader import simple_clients

JUDGED = ("objective", "good_for", "hurts_when", "memory", "cost")

DOI = r"\bdoi:(10\.(?:48550/arXiv\.\d{4}\.\d{5}|24963/ijcai\.\d{4}/\d+|1609/aaai\.v\d+i\d+\.\d+))(?=[.;]?(?:\s|$))"
LABELS = re.compile(r"(Objective|Good for|Hurts when|Memory|Cost|Source|Parameters): ")


def test_a_docstring_says_all_that_a_page_shows(subtests: pytest.Subtests) -> None:
    for name in (*METHODS, "torchjd"):
        with subtests.test(name=name):
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
            if name == "fairmoo":  # only its authors' code was at hand
                assert "github.com/Zhg9300/FairMOO" in method.source
                continue
            (doi,) = re.findall(DOI, method.source)
            assert f"](https://doi.org/{doi})" in scripts(method.source)


@pytest.mark.parametrize(("name", "method"), METHODS.items())
def test_memory_is_named_where_there_is_one(name: str, method: type) -> None:
    """A method that keeps rows or numbers between rounds says so; the others say none."""
    keeps = method.remember not in (FairStrategy.remember, FedAvg.remember) or name == "scaffold"
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
    for parameter in method.parameters:
        assert f"| `{parameter.key}` | {parameter.range} |" in text
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
    curvature = sum(client.curvature for client in toy.CLIENTS.values())
    minimum = np.linalg.solve(
        curvature, sum(client.curvature @ client.target for client in toy.CLIENTS.values())
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
    initial = ArrayRecord({"w": Array(np.full(2, 9.0))})
    result = METHODS[name]().start(
        InProcessGrid(simple_clients(), {}, clients=3), initial, num_rounds=2
    )
    assert (result.arrays["w"].numpy() < 9.0).all(), name


def test_the_first_page_names_a_method_for_unchanged_clients() -> None:
    (title,) = re.findall(
        r"Put `(\w+)\(\)` where `FedAvg\(\)` stood", (ROOT / "docs" / "index.md").read_text()
    )
    assert title.lower() in AS_THEY_ARE


def test_a_page_says_what_a_server_optimizer_gets(subtests: pytest.Subtests) -> None:
    for name in ("fedmgda", "fedmgdaplus", "mgdaprox", "adafed", "fedmdfg", "fedlf", "fairmoo"):
        with subtests.test(name=name):
            lost = (
                f"(../training.md#on-the-server)\n  - One thing no longer holds: {COMMON_DESCENT}."
            )
            assert lost in page(describe(name))
    assert "One thing no longer holds: its step is as long as the mean update," in page(
        describe("fedfv")
    )
    for name in ("qfedavg", "qfedsgd"):
        with subtests.test(name=name):
            assert "One thing no longer holds: the length of its step follows from" in page(
                describe(name)
            )
    for name in ("fedfa", "feddyn"):
        with subtests.test(name=name):
            assert "It refuses avgm, as it has a momentum of its own on the server." in page(
                describe(name)
            )
            with pytest.raises(FairbloomError, match="refuses server-optimizer = 'avgm'"):
                Settings.of({"method": name, "server-optimizer": "avgm"})
    assert "server optimizer" not in page(describe("fedavg"))
