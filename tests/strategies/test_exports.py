"""Every method file keeps to the pattern: exported, documented as it is checked, known by the name
of its paper."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from fairbloom import strategies
from fairbloom.errors import FairbloomError
from fairbloom.protocol.parameters import described
from fairbloom.rounds.options import Options
from fairbloom.strategies import (
    METHODS,
    FairStrategy,
    FromTorchJD,
    canonical,
    find_method,
    published_name,
)

FILES = sorted(Path(strategies.__file__).parent.glob("*.py"))
PUBLIC = [*METHODS.values(), FromTorchJD]


OTHERS = {
    *("Cohort", "FairStrategy", "FloatArray", "Kept", "METHODS", "Options", "Round"),
    *("canonical", "find_method", "name_of"),
}

# Exports ------------------------------------------------------------------------------------------


def test_every_public_class_with_a_weigh_is_exported(subtests: pytest.Subtests) -> None:
    """A base without a weigh of its own, as Stepped, is no method."""
    found = set()
    for path in FILES:
        with subtests.test(path=path):
            module = importlib.import_module(
                f"fairbloom.strategies.{path.stem}".removesuffix(".__init__")
            )
            for name, member in inspect.getmembers(module, inspect.isclass):
                public = issubclass(member, FairStrategy) and not name.startswith("_")
                if public and member.weigh is not FairStrategy.weigh:
                    assert name == member.__name__
                    found.add(name)
    assert found == {method.__name__ for method in PUBLIC}
    assert found | OTHERS == set(strategies.__all__)
    assert {name: method.__name__.lower() for name, method in METHODS.items()} == {
        name: name for name in METHODS
    }
    assert all(getattr(strategies, name) is not None for name in strategies.__all__)


# Docstrings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", PUBLIC)
def test_the_docstring_has_formula_source_and_own_parameters(
    method: type[strategies.FairStrategy],
) -> None:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    assert "__doc__" in vars(method)
    text = inspect.getdoc(method) or ""
    assert ".. math::" in text
    (source,) = [part for part in text.split("\n\n") if part.startswith("Source:")]
    assert re.search(r"\b(19|20)\d\d\b", source) or method is METHODS["local"]
    # Options of several methods have their meaning in their declaration.
    assert set(described(text)) == {
        name
        for name, each in inspect.signature(method).parameters.items()
        if each.kind not in kinds and "Meaning(" not in str(each.annotation)
    }


def test_the_common_options_are_documented_once() -> None:
    assert set(described(inspect.getdoc(Options) or "")) == Options.__optional_keys__


# Names --------------------------------------------------------------------------------------------

OF_PAPERS = {
    "q-FFL": "qfedavg",
    "qffl": "qfedavg",
    "q-FedAvg": "qfedavg",
    "q-FedSGD": "qfedsgd",
    "FedAvg-n": "fedavgn",
    "Agnostic Federated Learning": "afl",
    "Δ-FL": "deltafl",
    "GIFAIR-FL": "gifair",
    "Semi-VRed": "semivred",
    "FedMGDA+": "fedmgdaplus",
    "MGDA-Prox": "mgdaprox",
}


@pytest.mark.parametrize(("name", "method"), OF_PAPERS.items())
def test_published_names_are_known(name: str, method: str) -> None:
    assert canonical(name) == method
    assert find_method(name) is METHODS[method]


@pytest.mark.parametrize("name", METHODS)
def test_a_published_name_and_a_class_name_mean_the_method(name: str) -> None:
    assert canonical(published_name(name)) == canonical(METHODS[name].__name__) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("q-fedsg", r"did you mean q-FedSGD\?"),
        ("qfeadvg", r"did you mean q-FedAvg\?"),
        ("fedmgda++", r"did you mean FedMGDA\+\?"),
        ("scafold", r"did you mean SCAFFOLD\?"),
        *((name, "unknown method: there are fedavg") for name in ("FedNova", "qf", "fedx")),
        ("median", "unknown method: there are fedavg"),
    ],
)
def test_only_near_names_are_suggested_by_their_published_name(name: str, said: str) -> None:
    with pytest.raises(FairbloomError, match=said):
        find_method(name)


@pytest.mark.parametrize(("package", "home"), [("flwr", "strategy.py"), ("cvxopt", "simplex.py")])
def test_only_strategy_py_knows_flower_and_simplex_py_the_solver(package: str, home: str) -> None:
    pattern = re.compile(rf"^\s*(import|from) {package}\b", re.MULTILINE)
    assert [path.name for path in FILES if pattern.search(path.read_text(encoding="utf-8"))] == [
        home
    ]
