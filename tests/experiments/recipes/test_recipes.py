"""Recipes: the contents of a TOML file, and that those of published tables can be run."""

import re
from pathlib import Path

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.experiments.recipe import Printed, Recipe, load_recipe
from fairbloom.experiments.studies.reproduce import study_of

HEAD = """
title = "A table"
what = "What it shows."
source = "Somebody, Somewhere 2020, Table 1"
"""
MEASURES = 'measures = ["mean", "std"]\n'
ROW = '[[rows]]\nlabel = "FedAvg"\n'


def recipe_of(folder: Path, text: str) -> Recipe:
    path = folder / "mine.toml"
    path.write_text(text)
    return load_recipe(str(path))


def test_a_rows_settings_go_before_those_of_all(tmp_path: Path) -> None:
    """Parameters of other rows' methods stay out."""
    text = f"""{HEAD}{MEASURES}
[settings]
num-rounds = 7
batch-size = 1
qfedavg.lipschitz = 3.0
[[rows]]
label = "q-FedAvg"
settings = {{ method = "qfedavg", qfedavg.q = 2, batch-size = 3 }}
[[rows]]
label = "AFL"
settings = {{ method = "AFL" }}
"""
    recipe = recipe_of(tmp_path, text)
    study = study_of(recipe, recipe.rows)
    ours, afl = study.arms
    assert study.config(ours) == {
        "num-rounds": 7,
        "batch-size": 3,
        "qfedavg.lipschitz": 3.0,
        "qfedavg.q": 2,
        "method": "qfedavg",
    }
    assert ours.row == "q-FedAvg (q=2, batch-size=3)"
    assert study.config(afl) == {"num-rounds": 7, "batch-size": 1, "method": "afl"}
    assert recipe.parameters(recipe.rows[0], {"learning-rate": 0.1}) == {
        "q": 2,
        "batch-size": 3,
        "learning-rate": 0.1,
    }


def test_a_grid_is_every_combination_that_the_row_leaves_open(tmp_path: Path) -> None:
    text = f"""{HEAD}seeds = 3
grid-seeds = 1
{MEASURES}
[grid]
learning-rate = [0.1, 0.2]
qfedavg.q = [1, 2]
{ROW}[[rows]]
label = "q-FedAvg"
settings = {{ method = "qfedavg" }}
[[rows]]
label = "q-FedAvg"
settings = {{ method = "qfedavg", learning-rate = 0.3 }}
"""
    recipe = recipe_of(tmp_path, text)
    fedavg, both, fixed = map(recipe.points, recipe.rows)
    assert fedavg == [{"learning-rate": 0.1}, {"learning-rate": 0.2}]
    assert len(both) == 4
    assert fixed == [{"qfedavg.q": 1}, {"qfedavg.q": 2}]
    searched = recipe.points(recipe.rows[2], every_axis=True)
    assert {point["learning-rate"] for point in searched} == {0.1, 0.2}
    # the grid with one seed, the chosen point with two more
    assert recipe.runs == (2 + 2) + (4 + 2) + (2 + 2)


def test_a_rows_grid_replaces_the_common_axes_that_it_names(tmp_path: Path) -> None:
    text = f"""{HEAD}{MEASURES}
[grid]
learning-rate = [0.1, 0.2]
momentum = [0.0, 0.5]
[[rows]]
label = "q-FedAvg"
settings = {{ method = "qfedavg" }}
grid = {{ learning-rate = [0.05], qfedavg.q = [1.0, 5.0] }}
"""
    recipe = recipe_of(tmp_path, text)
    keys = ("learning-rate", "qfedavg.q", "momentum")
    found = sorted(tuple(point[key] for key in keys) for point in recipe.points(recipe.rows[0]))
    assert found == [(0.05, q, momentum) for q in (1.0, 5.0) for momentum in (0.0, 0.5)]


WRONG = {
    f"{HEAD}{MEASURES}sources = 'x'\n{ROW}": "unknown key sources: did you mean source?",
    f"{HEAD}{MEASURES}{ROW}setings = {{}}\n": "unknown key rows.1.setings: did you mean settings?",
    f"{HEAD}{MEASURES}name = 'x'\n{ROW}": "unknown key name",
    f"{HEAD}{MEASURES}": "rows is missing",
    f"{HEAD}measures = ['meen']\n{ROW}": "unknown measure 'meen': did you mean mean?",
    f"{HEAD}tolerance = {{ worst = 1.0 }}\n{MEASURES}{ROW}": "tolerance: 'worst'",
    f"{HEAD}tolerance = {{ std = -1.0 }}\n{MEASURES}{ROW}": "tolerance.std = -1.0",
    f"{HEAD}{MEASURES}{ROW}grid = {{ seed = [1] }}\n": "leave seed out",
    f"{HEAD}{MEASURES}{ROW}grid = {{ momentum = 0.5 }}\n": "momentum = 0.5",
    f"{HEAD}judged = ['worst']\n{MEASURES}{ROW}": "'worst'",
    f"{HEAD}{MEASURES}{ROW}published = ['80']\n": "published has 1 numbers",
    f"{HEAD}{MEASURES}{ROW}published = ['80 ± x', '']\n": "'80 ± x'",
    f"{HEAD}{MEASURES}{ROW}{ROW}": "'FedAvg' is there twice",
    f"{HEAD}{MEASURES}{ROW}settings = {{ seed = 3 }}\n": "leave seed out",
    f"{HEAD}{MEASURES}{ROW}settings = {{ method = 'fedavk' }}\n": "fedavk",
    f"{HEAD}{MEASURES}seeds = 0\n{ROW}": "seeds = 0",
    "title = ": "not valid TOML",
}


def test_a_fault_in_a_recipe_is_told_by_recipe_and_key(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for text, message in WRONG.items():
        with subtests.test(text=text, message=message):
            with pytest.raises(FairbloomError, match=f"^recipe mine.*{re.escape(message)}"):
                recipe_of(tmp_path, text)
    with pytest.raises(FairbloomError, match=r"'fedfv-tabel3': did you mean fedfv-table3\?"):
        load_recipe("fedfv-tabel3")
    with pytest.raises(FairbloomError, match=r"none\.toml"):
        load_recipe(str(tmp_path / "none.toml"))


def test_a_setting_that_cannot_be_is_told_with_the_row(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for settings in ("num-round = 3", "qfedavg.q = 3", "batch-size = -1"):
        with subtests.test(settings=settings):
            recipe = recipe_of(tmp_path, f"{HEAD}{MEASURES}{ROW}settings = {{ {settings} }}\n")
            with pytest.raises(
                FairbloomError, match=f"recipe mine: row 'FedAvg.*{settings.split()[0]}"
            ):
                study_of(recipe, recipe.rows)
    recipe = recipe_of(tmp_path, f"{HEAD}{MEASURES}[settings]\nfedmgdaplus.epsilon = 0.1\n{ROW}")
    with pytest.raises(FairbloomError, match=r"fedmgdaplus\.epsilon"):
        study_of(recipe, recipe.rows)


def test_printed_numbers_are_read_as_papers_write_them(subtests: pytest.Subtests) -> None:
    for text, printed in (
        ("80.42 ± 0.76", Printed(80.42, 0.76)),
        ("80.42±0.76", Printed(80.42, 0.76)),
        (".850", Printed(0.85)),
        ("-3.5", Printed(-3.5)),
        ("", None),
    ):
        with subtests.test(text=text, printed=printed):
            assert Printed.of(text) == printed
