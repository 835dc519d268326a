"""Values that the papers print, and the recipes that repeat them."""

from collections.abc import Mapping

import pytest

from fairbloom.experiments.recipe import load_recipe
from fairbloom.protocol.settings import Value
from fairbloom.rounds.sampling import share

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
    recipe = load_recipe(f"semivred-table6-{data}")
    as_printed = "stackoverflow" if data == "shakespeare" else data
    place = [*RATES].index(as_printed)
    rows = {row.label: row.settings for row in recipe.rows}
    assert set(rows) == set(METHODS)
    for method, rate in zip(METHODS, RATES[as_printed], strict=True):
        best = {key: values[place] for key, values in BEST.get(method, {}).items()}
        assert {key: value for key, value in rows[method].items() if key != "method"} == {
            "learning-rate": rate,
            **best,
        }
    assert (recipe.settings["num-rounds"], recipe.settings["batch-size"]) == (200, 64)
    assert recipe.seeds == 3


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
        # FedMGDA+, Table 1 (batches of Fashion-MNIST), section 6.1.1 and the captions
        ("fedmgda-figure1", {"batch-size": 0, "learning-rate": 0.1}),
        ("fedmgda-figure2", {"batch-size": 0, "fraction": 0.2}),
        ("fedmgda-figure3", {"batch-size": 0, "fraction": 0.1, "fedavgn.decay": 0.025}),
        ("fedmgda-figure4", {"batch-size": 0}),
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
