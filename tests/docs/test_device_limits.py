"""A device refuses none of the work that pages and recipes ask for."""

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest

from fairbloom.client.guard.disclosure import check_influence
from fairbloom.client.guard.limits import DEFAULT_MIN_ROWS
from fairbloom.client.plan import global_work
from fairbloom.errors import FairbloomError
from fairbloom.experiments.recipe import load_recipe, names
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.settings import Settings

from .pages import PAGES, ROOT

ROWS = range(DEFAULT_MIN_ROWS, 80)
"""Numbers of training rows, so that a last batch has any number of them."""

OF_STEPS = ("batch-size", "learning-rate", "momentum", "weight-decay", "optimizer", "method")
"""The settings on which the limits depend, besides parameters of the method."""


def check(config: dict[str, Any]) -> None:
    """Raise ReportableError if a device would refuse the work of a run with these settings."""
    settings = Settings.of(config)
    terms = settings.strategy().terms(1)
    work = global_work(RunSettings.of(settings.run_config()), terms)
    for rows in ROWS:
        check_influence(work, terms, rows, DEFAULT_MIN_ROWS)


def settings_of_page(page: str) -> Iterator[dict[str, Any]]:
    """Yield the settings of steps in each command of a page, one command at a time."""
    text = re.sub(r"\\\n *", "", (ROOT / page).read_text())
    for line in re.findall(r"fairbloom [a-z][^\n`]*", text):
        given = dict(re.findall(r"--set (\S+?)=([^\s`]+)", line))
        chosen = {key: value_of(given[key]) for key in OF_STEPS if key in given}
        if chosen and ":" not in "".join(map(str, chosen.values())):  # no import string
            yield chosen


def value_of(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@pytest.mark.parametrize("name", names())
def test_a_device_takes_the_work_of_recipes(name: str) -> None:
    recipe = load_recipe(name)
    for row in recipe.rows:
        for point in recipe.points(row):
            given = recipe.settings | row.settings | point
            method = str(given.get("method", "fedavg"))
            steps = {
                key: value
                for key, value in given.items()
                if key in OF_STEPS or key.startswith(f"{method}.")
            }
            check(steps)


def test_a_device_takes_the_work_of_pages(subtests: pytest.Subtests) -> None:
    found = 0
    for page in PAGES:
        for settings in settings_of_page(page):
            with subtests.test(page=page, settings=settings):
                found += 1
                check(settings)
    assert found > 3


def test_other_work_is_refused() -> None:
    with pytest.raises(FairbloomError, match=r"above 0\.5"):
        check({"method": "fedprox", "fedprox.mu": 6.0, "learning-rate": 0.1})
