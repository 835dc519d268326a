"""Recipes: the contents of a TOML file, and that those of published tables can be run.

Values that the papers print, and the recipes that repeat them.

Recipes of figures: measures over rounds, and claims about two rows.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairbloom import reproduce
from fairbloom.errors import FairbloomError
from fairbloom.experiments.recipe import Printed, Recipe, count_printed, load_recipe, names
from fairbloom.experiments.results.differences import difference_of
from fairbloom.experiments.results.presentation import page_of
from fairbloom.experiments.studies.reproduce import study_of
from fairbloom.protocol.settings import Value
from fairbloom.rounds.sampling import share

HEAD = """
title = "A table"
what = "What it shows."
source = "Somebody, Somewhere 2020, Table 1"
"""
MEASURES = 'measures = ["mean", "std"]\n'
ROW = '[[rows]]\nlabel = "FedAvg"\n'


def write(folder: Path, text: str) -> str:
    file = folder / "mine.toml"
    file.write_text(text)
    return str(file)


def recipe_of(folder: Path, text: str) -> Recipe:
    return load_recipe(write(folder, text))


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
    f"{HEAD}{MEASURES}x = 'rounds'\n{ROW}": "x = 'rounds': Input should be 'row' or 'round'",
    "title = ": "not valid TOML",
}


ONCE = "[settings]\nevaluate-every = 0\n"

# What cannot be drawn over rounds: the recipe, a part of the message, and what it says to change.
NOT_DRAWN = (
    (
        "measures = ['suffering_share']\nx = 'round'\n",
        "no measure is known",
        ("share'", "share', 'mean'"),
    ),
    (f"x = 'round'\n{ONCE}", "row 'FedAvg' has evaluate-every = 0", ("= 0", "= 5")),
    (f"x = 'round'\n{ONCE}", "or leave x out", ("x = 'round'", "")),
    ("logarithmic = ['mean']\n", "logarithmic = ['mean']: only lines", ("log", "x = 'round'\nlog")),
    (
        "x = 'round'\nlogarithmic = ['worst']\n",
        "logarithmic: 'worst' is not among the measures over rounds: there are mean",
        ("['worst']", "['mean']"),
    ),
)


@pytest.mark.parametrize(("text", "message", "remedy"), NOT_DRAWN)
def test_what_cannot_be_drawn_over_rounds_says_how(
    tmp_path: Path, text: str, message: str, remedy: tuple[str, str]
) -> None:
    with pytest.raises(FairbloomError, match=re.escape(message)):
        recipe_of(tmp_path, text + ROW)
    assert recipe_of(tmp_path, text.replace(*remedy) + ROW).rows


def test_a_row_that_is_evaluated_once_is_refused(tmp_path: Path) -> None:
    text = f"x = 'round'\n{ROW}settings = {{ evaluate-every = 0 }}\n"
    with pytest.raises(FairbloomError, match="row 'FedAvg' has evaluate-every = 0"):
        recipe_of(tmp_path, text)


@pytest.mark.parametrize("name", [each for each in names() if "figure" in each])
def test_a_figure_over_rounds_is_drawn_over_rounds(name: str) -> None:
    """Figure 3 of FedMGDA+ has bars. Its Figure 7 has training losses on a logarithmic axis."""
    recipe = load_recipe(name)
    assert recipe.x == ("row" if name.startswith("fedmgda-figure3") else "round")
    has_figure_7 = name in ("fedmgda-figure1", "fedmgda-figures5-9")
    assert recipe.logarithmic == (["train_loss"] if has_figure_7 else [])


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_a_fault_in_a_recipe_is_told_by_recipe_and_key(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(FairbloomError, match=f"^recipe mine.*{re.escape(message)}"):
        recipe_of(tmp_path, text)
    with pytest.raises(FairbloomError, match=r"'fedfv-tabel3': did you mean fedfv-table3\?"):
        load_recipe("fedfv-tabel3")
    with pytest.raises(FairbloomError, match=r"none\.toml"):
        load_recipe(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(
            (f"{ROW}settings = {{ {key} = {value} }}\n", f"recipe mine: row 'FedAvg.*{key}")
            for key, value in (("num-round", 3), ("qfedavg.q", 3), ("batch-size", -1))
        ),
        (f"[settings]\nfedmgdaplus.epsilon = 0.1\n{ROW}", r"fedmgdaplus\.epsilon"),
    ],
)
def test_a_setting_that_cannot_be_is_told_with_its_row(
    tmp_path: Path, text: str, said: str
) -> None:
    recipe = recipe_of(tmp_path, f"{HEAD}{MEASURES}{text}")
    with pytest.raises(FairbloomError, match=said):
        study_of(recipe, recipe.rows)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("80.42 ± 0.76", Printed(80.42, 0.76)),
        ("80.42±0.76", Printed(80.42, 0.76)),
        (".850", Printed(0.85)),
        ("-3.5", Printed(-3.5)),
        ("", None),
    ],
)
def test_printed_numbers_are_read_as_papers_write_them(text: str, printed: Printed | None) -> None:
    assert Printed.of(text) == printed


METHODS = ("FedAvg", "q-FFL", "AFL", "TERM", "PropFair", "GiFair", "Delta-FL", "VRed", "Semi-VRed")

# Semi-VRed, Table 4: the best learning rates, in the order of METHODS.
RATES = {
    "cifar10": (0.005, 0.005, 0.005, 0.01, 0.01, 0.005, 0.005, 0.005, 0.005),
    "cifar100": (0.002, 0.002, 0.005, 0.01, 0.01, 0.005, 0.002, 0.005, 0.005),
    "cinic10": (0.01, 0.005, 0.01, 0.01, 0.02, 0.02, 0.01, 0.005, 0.005),
    "stackoverflow": (0.2, 0.05, 0.05, 0.2, 0.5, 0.2, 0.2, 0.5, 0.5),
}

# Semi-VRed, Table 5: the best parameters, and AFL's default of section B.2. GiFair's λ is at its
# upper bound.
BEST: Mapping[str, Mapping[str, tuple[float, float, float, float]]] = {
    "q-FFL": {"qfedavg.q": (0.1, 0.1, 0.1, 0.1)},
    "AFL": {"afl.gamma": (0.1, 0.1, 0.1, 0.1)},
    "TERM": {"term.tilt": (0.01, 0.5, 0.5, 0.5)},
    "GiFair": {"gifair.strength": (1.0, 1.0, 1.0, 1.0)},
    "PropFair": {"propfair.baseline": (3.0, 3.0, 5.0, 4.0)},
    "Delta-FL": {"deltafl.theta": (0.2, 0.4, 0.5, 0.6)},
    "VRed": {"vred.beta": (0.5, 0.1, 0.2, 0.1)},
    "Semi-VRed": {"semivred.beta": (0.5, 0.01, 0.2, 0.2)},
}


@pytest.mark.parametrize("data", [*RATES, "shakespeare"])
def test_semi_vreds_rows_have_tables_4_and_5(data: str) -> None:
    """Those on Shakespeare have the values for Stack Overflow."""
    recipe = load_recipe(f"semivred-table6-{data}")
    as_printed = "stackoverflow" if data == "shakespeare" else data
    place = [*RATES].index(as_printed)
    rows = {row.label: row.settings for row in recipe.rows if "7×7" not in row.label}
    assert set(rows) == set(METHODS)
    for method, rate in zip(METHODS, RATES[as_printed], strict=True):
        assert {key: value for key, value in rows[method].items() if key != "method"} == {
            "learning-rate": rate,
            **{key: values[place] for key, values in BEST.get(method, {}).items()},
        }
    assert (recipe.settings["num-rounds"], recipe.settings["batch-size"]) == (200, 64)
    assert recipe.seeds == 3


# Of each recipe with printed numbers: how many there are, with those after ±, and their sum, each
# times its place.
PRINTED: Mapping[str, tuple[int, float]] = {
    "fairmoo-fashion-mnist": (48, 80422.4),
    "fcfl-adult": (32, 20351.4),
    "fed-heart": (20, 4328.0),
    "fedfv-figure2": (40, 14592.4),
    "fedfv-table2": (144, 114829.9),
    "fedfv-table3": (200, 342088.4),
    "fedfv-table4-cifar10": (6, 101.6),
    "fedfv-table4-fashion-mnist": (6, 131.4),
    "fedmgda-table6": (56, 26799.2),
    "fedmgda-table7": (108, 120197.9),
    "fedmgda-table7-described": (108, 120197.9),
    "fedmgda-table8": (208, 322292.1),
    "fedmgda-table9": (208, 321273.7),
    "fedmgda-table10": (208, 338936.6),
    "fedmgda-table11": (208, 338606.3),
    "fedmgda-table12": (208, 363504.0),
    "fedmgda-table13": (208, 357262.7),
    "semivred-table2": (64, 24539.0),
    "semivred-table6-cifar10": (120, 67580.8),
    "semivred-table6-cifar100": (132, 37744.2),
    "semivred-table6-cinic10": (132, 140134.0),
    "semivred-table6-stackoverflow": (96, 37568.0),
}


def printed_numbers(name: str) -> list[float]:
    """Return the printed numbers of a recipe's rows, and the numbers after their ±."""
    recipe = load_recipe(name)
    printed = [number for row in recipe.rows for number in recipe.published(row).values()]
    return [number.mean for number in printed] + [
        number.spread for number in printed if number.spread is not None
    ]


@pytest.mark.parametrize("name", names())
def test_no_printed_number_has_changed(name: str) -> None:
    """The sums were taken after all were compared with the papers."""
    found = printed_numbers(name)
    total = sum(place * number for place, number in enumerate(found, 1))
    assert (len(found), round(total, 1)) == PRINTED.get(name, (0, 0.0))


def test_numbers_that_several_rows_print_count_once() -> None:
    """And as run if one of these rows was."""
    row = {"method": "fedavg"}
    rows = [
        {"label": "run", "settings": row, "published": ["1", "2 ± 1"]},
        {"label": "left-out", "settings": row, "published": ["3", ""], "ran": False},
        {"label": "as-above", "settings": row, "published": ["1", "2 ± 1"], "ran": False},
    ]
    of_two = {"measures": ["mean", "std"], "seeds": 1}
    whole = Recipe.model_validate({**of_two, "ran": "in full", "rows": rows})
    quick = Recipe.model_validate({**of_two, "ran": "quick only", "rows": rows})
    assert count_printed([whole]) == (2, 3)
    assert count_printed([quick, whole]) == (2, 3)
    assert count_printed([quick]) == (0, 3)
    assert (whole.ran_in_words, quick.ran_in_words) == ("1 of 3 rows", "quick only")


# FairMOO, the authors' README: accuracy, variance and worst of MLP on FashionMNIST, without DRFL.
FAIRMOO = {
    "FedAvg": ("88.20", "87.26", "66.60", "88.76", "51.54", "71.48"),
    "q-FedAvg": ("89.02", "64.02", "75.50", "89.83", "47.95", "74.74"),
    "AFL": ("84.93", "15.43", "79.00", "86.38", "23.13", "80.07"),
    "FedMGDA+": ("89.90", "91.16", "66.80", "87.56", "82.26", "67.54"),
    "AdaFed": ("89.32", "60.05", "72.50", "90.19", "29.76", "80.93"),
    "FedMDFG": ("86.59", "39.54", "70.80", "88.56", "33.28", "74.40"),
    "FedLF": ("88.56", "50.44", "74.80", "89.65", "27.65", "80.07"),
    "FairMOO": ("86.07", "32.08", "78.10", "87.65", "25.33", "80.16"),
}


def test_fairmoos_table_has_all_methods_but_drfl() -> None:
    recipe = load_recipe("fairmoo-fashion-mnist")
    found: dict[str, tuple[str, ...]] = {}
    for partition in ("class", "dirichlet"):
        for row in recipe.rows:
            if row.settings["partition"] == partition:
                found[row.label] = (*found.get(row.label, ()), *row.published)
    assert found == FAIRMOO


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        # FedFV, section 5.1, and the names of the authors' recorded runs
        ("fedfv-figure2", {"clients": 200, "shards-per-client": 2, "num-rounds": 1001}),
        ("fedfv-figure2", {"batch-size": 0, "learning-rate": 0.1, "fraction": 0.1}),
        ("fedfv-figure2", {"mnist.model-outputs": 62}),
        # FedMGDA+, Table 1 (batches of Fashion-MNIST), section 6.1.1 and the captions
        ("fedmgda-figure1", {"batch-size": 0, "learning-rate": 0.1}),
        ("fedmgda-figure2", {"batch-size": 0, "fraction": 0.2}),
        ("fedmgda-figure3", {"batch-size": 0, "fraction": 0.1, "fedavgn.decay": 0.025}),
        ("fedmgda-figure4", {"batch-size": 0}),
        ("fedmgda-figure3-left", {"batch-size": 10, "learning-rate": 0.01, "num-rounds": 2000}),
        ("fedmgda-figure3-left", {"fedavgn.server-lr": 1.5, "fedavgn.decay": 0.1}),
        ("fedmgda-figure8", {"batch-size": 10, "fraction": 0.1}),
        # q-FFL, Algorithms 1 and 2
        ("qffl-synthetic", {"draw": "examples"}),
        # Semi-VRed, Table 5: GiFair's λ is 1/49 of the smallest share
        ("semivred-table6-cifar10", {"smallest-client": 147}),
        ("semivred-table6-cifar100", {"smallest-client": 637}),
        ("semivred-table2", {"smallest-client": 637}),
        ("semivred-table6-cinic10", {"smallest-client": 661}),
        ("fedmgda-figures5-9", {"batch-size": 0}),
        # section 6.1.2: as Reddi et al., without momentum
        ("fedmgda-table6", {"momentum": 0.0, "num-rounds": 1500, "learning-rate": 0.1}),
        ("fedmgda-table12", {"momentum": 0.0, "batch-size": 20}),
        ("fedmgda-table13", {"momentum": 0.0, "batch-size": 0}),
        ("fedmgda-table14", {"fedprox.mu": 0.001, "batch-size": 10, "test-share": 0.2001}),
        # 0.999 in each of 3,000 rounds; FedMDFG takes one gradient of all examples
        ("fairmoo-fashion-mnist", {"fedmgdaplus.decay": round(0.999**3000, 4)}),
        # section B.2: a third of the step size is left at the end
        ("fedmgda-table7-described", {"fedmgdaplus.decay": 1 / 3, "afl.gamma": 0.5}),
    ],
)
def test_a_value_is_the_printed_one(name: str, printed: Mapping[str, Value]) -> None:
    recipe = load_recipe(name)
    for key, value in printed.items():
        settings = [recipe.settings, *(row.settings for row in recipe.rows)]
        assert {each[key] for each in settings if key in each} == {value}, key


@pytest.mark.parametrize("table", [6, 12, 13])
def test_ten_of_the_3406_users_of_femnist_train_in_a_round(table: int) -> None:
    """FedMGDA+, Table 1 and section 6.1.2."""
    settings = load_recipe(f"fedmgda-table{table}").settings
    assert settings["clients"] == 3406
    assert share(float(settings["fraction"]), 3406, 1) == 10
    assert settings["test-share"] == round(80_011 / (709_385 + 80_011), 4)


RECIPE = """
measures = ["mean", "improved", "train_loss"]
claims = [
  "one has a higher mean than no-training (learning-rate=0)",
  "one has a lower mean than no-training (learning-rate=0)",
]
[settings]
task = "digits"
clients = 4
num-rounds = 3
[[rows]]
label = "one"
[[rows]]
label = "no-training"
settings = { learning-rate = 0.0 }
"""


@pytest.mark.slow
def test_claims_hold_or_do_not_hold_here(tmp_path: Path) -> None:
    """By their difference, paired by seed, with its interval from three seeds on."""
    text = RECIPE.replace("learning-rate = 0.0", "learning-rate = 1e-9").replace("=0)", "=1e-09)")
    done = reproduce(write(tmp_path, text), seeds=3, out=tmp_path / "out", progress=False)
    one, other = ([each["mean"] for each in o.by_seed.values()] for o in done.outcomes)
    higher, lower = done.claims.values()
    expected = difference_of(np.subtract(one, other).tolist()).untested
    assert replace(higher, p_value=0.0) == replace(expected, p_value=0.0)
    assert lower.mean == -higher.mean < 0.0
    (said,) = (str(each) for each in page_of(done).sections if each.id == "claims")
    number = f"{higher.mean:+.2f} ({higher.low:.2f} to {higher.high:.2f})"
    assert f"holds, by {number} with 3 seeds." in said
    assert f"does not hold here, by -{number[1:6]}" in said
    assert [each["holds"] for each in done.as_json["claims"].values()] == [True, False]
    unknown = replace(done.outcomes[0], by_seed={0: {"mean": math.nan}})
    assert {*replace(done, outcomes=[unknown, done.outcomes[1]]).claims.values()} == {None}
    again = reproduce(
        write(tmp_path, text), seeds=3, rows=["one"], out=tmp_path / "out", progress=False
    )
    assert [*again.claims.values()] == [None, None]


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ("one is better", "not a claim"),
        ("one has a higher worst than one", "not a claim"),
        ("two has a higher mean than one", "unknown row 'two'"),
    ],
)
def test_a_claim_names_rows_and_a_measure(tmp_path: Path, claim: str, reason: str) -> None:
    text = RECIPE.replace("one has a higher mean than no-training (learning-rate=0)", claim)
    with pytest.raises(FairbloomError, match=reason):
        recipe_of(tmp_path, text)
