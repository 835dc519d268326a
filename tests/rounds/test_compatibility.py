"""What fits with what: the refusals, and the table in the documentation, which is made of the same
two lists."""

from contextlib import nullcontext
from itertools import product
from typing import Any

import numpy as np
import pytest

from docs import compatibility as page
from docs.compatibility import OPTIONS
from fairbloom.rounds.compatibility import NEEDS, WEIGHTING, find_conflict
from fairbloom.server.settings import Settings
from fairbloom.strategies import METHODS, SCAFFOLD, TERM, FedAvg
from tests.federation import KINDS
from tests.strategies.helpers import ARGUMENTS, make

GIVEN: dict[str, dict[str, Any]] = {
    "weighting": {"weighting": "uniform"},
    'server_optimizer="avgm"': {"server_optimizer": "avgm"},
    'server_optimizer="adam"': {"server_optimizer": "adam", "server_optimizer_lr": 0.1},
    "control_variates": {"control_variates": True},
    'wire_dtype="bfloat16"': {"wire_dtype": "bfloat16"},
    "proximal_mu": {"proximal_mu": 0.1},
    "personal_lambda": {"personal_lambda": 0.1},
    "personal_parameters": {"personal_parameters": "head"},
    "fine_tune_epochs": {"fine_tune_epochs": 1},
    'draw="examples"': {"draw": "examples"},
}
SET: dict[str, dict[str, Any]] = {
    "other client optimizer": {"optimizer": "adam", "learning-rate": 0.01},
    "weight-decay": {"weight-decay": 0.1},
}


def test_the_page_is_what_methods_and_options_say() -> None:
    text = page.PAGE.read_text()
    assert page.update_page(text) == text
    assert page.TABLE.read_text() == page.format_table()[0]
    assert ":file: data/fits.csv" in text
    assert set(GIVEN) | set(SET) == {option.name for option in OPTIONS}


def take(name: str, option: str) -> None:
    """Give a method an option, or a run with the method a setting."""
    arguments = ARGUMENTS[name][0]
    if option in GIVEN:
        make(name, arguments, **GIVEN[option])
        return
    parameters = {f"{name}.{key.replace('_', '-')}": value for key, value in arguments.items()}
    task = {"task": "tests.nets:even"} if METHODS[name].second == "arrays-disparity" else {}
    Settings.of({"method": name, **parameters, **task, **SET[option]}).check_training()


@pytest.mark.parametrize(("name", "option"), [*product(KINDS, OPTIONS)])
def test_an_option_is_refused_where_the_table_says_so(name: str, option: str) -> None:
    if METHODS[name].own_terms.intersection(GIVEN.get(option.name, {})):
        return  # the method sets it by its own parameter
    refused = find_conflict(make(name, ARGUMENTS[name][0]).all_needs, option) is not None
    with pytest.raises(ValueError, match="leave") if refused else nullcontext():
        take(name, option.name)


def test_each_need_is_changed_by_an_option() -> None:
    assert set(NEEDS) == {need for option in OPTIONS for need in option.changes}
    assert find_conflict({"no prior"}, WEIGHTING) is NEEDS["no prior"]


def test_a_class_is_known_by_its_weigh_not_by_its_name() -> None:
    other = type("FedAvg", (FedAvg,), {"weigh": lambda self, cohort: np.square(cohort.prior)})
    with pytest.raises(ValueError, match=r"control_variates = True: .* FedAvg computes new ones"):
        other(control_variates=True)
    same = type("Mine", (FedAvg,), {})
    assert same(control_variates=True).control_variates
    assert type("Said", (other,), {"fixed_weights": True})(control_variates=True).control_variates


def test_unfit_control_variates_are_named_before_a_draw() -> None:
    with pytest.raises(ValueError, match=r"control_variates = True: .* TERM computes new ones"):
        TERM(control_variates=True, draw="examples")


@pytest.mark.parametrize("option", [{"fine_tune_epochs": 1}, {"personal_parameters": "head"}])
def test_clients_have_personal_models_in_one_way(option: dict[str, Any]) -> None:
    assert FedAvg(**option)
    with pytest.raises(ValueError, match="clients have personal models already: leave"):
        FedAvg(personal_lambda=0.1, **option)


def test_a_subclass_of_scaffold_that_weighs_otherwise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"control_variates = True: .* Other computes new ones"):
        type("Other", (SCAFFOLD,), {"weigh": lambda self, cohort: np.square(cohort.prior)})()
    assert type("Same", (SCAFFOLD,), {})().control_variates
