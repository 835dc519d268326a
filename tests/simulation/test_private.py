"""Private runs in one process: they learn what plain runs learn, and their records say nothing of single clients."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fairbloom import run
from fairbloom.errors import FairbloomError
from fairbloom.experiments.results.run import Run
from fairbloom.private.client import PrivateClient, Round, Work
from fairbloom.private.server import Opened
from fairbloom.private.weighing import MeanWeighing, Sums, bin_of
from fairbloom.rounds.cohort import Cohort
from fairbloom.rounds.method import Method
from fairbloom.rounds.private import PrivateRounds, check_private
from fairbloom.strategies import METHODS
from fairbloom.strategies.term import TERM
from tests.experiments.helpers import fairbloom
from tests.private.federation import Federation

SUMS = {
    "fedavg": {},
    "fedprox": {},
    "fedavgn": {"fedavgn.server-lr": 0.5},
    "propfair": {},
    "qfedavg": {"qfedavg.q": 1.0},
    "qfedsgd": {},
    "term": {},
    "vred": {},
    "semivred": {},
    "fedfa": {},
    "ditto": {},
    "afl": {"afl.gamma": 0.02},
}
"""The methods that need sums alone."""

ANGLES = {
    "fedmgda": {},
    "fedmgdaplus": {"fedmgdaplus.epsilon": 0.2, "fedmgdaplus.server-lr": 0.5},
    "mgdaprox": {"mgdaprox.epsilon": 0.1},
    "torchjd:upgrad": {},
    "torchjd:cagrad": {},
}
"""Methods that need angles."""

COUNTS = {"deltafl": {"deltafl.theta": 0.6, "weighting": "uniform"}}
"""The method that needs counts of losses."""

TIERS = [("deltafl", "counts"), *((method, "sums") for method in SUMS), *((method, "angles") for method in ANGLES)]

MEAN = "test_accuracy_of_global_model_mean"


def trained(out: Path, method: str = "term", privacy: str = "sums", **settings: Any) -> Run:
    """Run digits on ten clients."""
    given = {
        "partition": "iid",
        "engine": "loop",
        "fraction": 1.0,
        **{**SUMS, **ANGLES, **COUNTS}.get(method, {}),
        **settings,
        "privacy": privacy,
    }
    given = {key.replace("_", "-"): value for key, value in given.items()}
    rounds, clients = int(given.pop("rounds", 3)), int(given.pop("clients", 10))
    return run("digits", method=method, rounds=rounds, clients=clients, settings=given, out=out, progress=False)


@pytest.mark.parametrize(("method", "tier"), TIERS)
def test_a_private_run_learns_what_a_plain_one_does(method: str, tier: str, tmp_path: Path) -> None:
    private = trained(tmp_path / "private", method, tier, rounds=2)
    plain = trained(tmp_path / "plain", method, "none", rounds=2)
    assert private.rounds["capped"].sum() == 0
    assert private.rounds["beyond"].sum() == 0
    assert private.rounds[MEAN].to_numpy() == pytest.approx(plain.rounds[MEAN].to_numpy(), abs=0.5)
    ours, theirs = private.arrays(), plain.arrays()
    for name, array in theirs.items():
        assert ours[name] == pytest.approx(array, abs=2e-4)


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The error of each private step, in units of C: the plain step is that of a copy of the method."""
    found, works, plain = list[float](), dict[str, Work](), list[Method]()
    share_work, stepped_by = PrivateClient._share_work, PrivateRounds._stepped_by

    def record(client: PrivateClient, current: Round, model: bytes, done: Work) -> dict[str, bytes]:
        works[current.name] = done
        return share_work(client, current, model, done)

    def compare(rounds: PrivateRounds, number: int, layout: Any, opened: Opened, names: Any) -> Any:
        if not plain:
            plain.append(copy.deepcopy(rounds._method))
        done, (method,) = [works[name] for name in opened.cohort], plain
        U = np.array([each.update for each in done])
        n = np.array([each.metrics["num-examples"] for each in done])
        cohort = Cohort(
            round=number,
            num_rounds=50,
            names=opened.cohort,
            counts=n,
            prior=n / n.sum() if method.weighting == "examples" else np.full(len(n), 1.0 / len(n)),
            draws=np.ones(len(n)),
            metrics={name: np.array([each.metrics[name] for each in done]) for name in method.needs},
            gram_of=lambda: U @ U.T,
            grams_of=lambda: U[None] @ U[None].transpose(0, 2, 1),
            squared_norms_of=lambda: (U**2).sum(axis=1),
        )
        c = method.weigh(cohort)
        method.remember(cohort, c, {})
        whole = np.abs(c) @ np.linalg.norm(U, axis=1)
        found.append(float(np.linalg.norm(opened.step - c @ U) / whole))
        return stepped_by(rounds, number, layout, opened, names)

    monkeypatch.setattr(PrivateClient, "_share_work", record)
    monkeypatch.setattr(PrivateRounds, "_stepped_by", compare)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize(("method", "tier"), TIERS)
def test_fifty_private_rounds_end_where_plain_ones_do(
    method: str, tier: str, model: str, tmp_path: Path, errors: list[float]
) -> None:
    settings = {"rounds": 50, "model": model, "evaluate-every": 10}
    private = trained(tmp_path / "private", method, tier, **settings)
    assert len(errors) == 50
    assert max(errors) < 2e-5
    plain = trained(tmp_path / "plain", method, "none", **settings)
    last = private.rounds[MEAN].iloc[-1], plain.rounds[MEAN].iloc[-1]
    assert last[0] == pytest.approx(last[1], abs=0.5)
    assert private.rounds["capped"].sum() == 0


@pytest.mark.parametrize(
    ("method", "tier", "engine"), [("term", "sums", "stacked"), ("fedmgdaplus", "angles", "workers")]
)
def test_each_engine_computes_private_rounds(method: str, tier: str, engine: str, tmp_path: Path) -> None:
    other = trained(tmp_path / "other", method, tier, engine=engine, rounds=2)
    looped = trained(tmp_path / "loop", method, tier, rounds=2)
    assert other.rounds[MEAN].to_numpy() == pytest.approx(looped.rounds[MEAN].to_numpy(), abs=0.5)


def test_records_say_nothing_of_single_clients(tmp_path: Path) -> None:
    private = trained(tmp_path)
    assert len(private.clients) == 0
    assert private.coefficients() == {}
    assert private.final() == {}
    rows = private.rounds
    assert rows["replies_used"].tolist() == [10, 10, 10]
    assert rows["test_accuracy_of_global_model_std"].notna().all()
    assert "worst" not in private.opened()
    assert {"mean", "std"} == set(private.opened())


@pytest.mark.parametrize("method", ["term", "ditto"])
def test_an_evaluation_by_counts_shows_worst_and_best_clients(method: str, tmp_path: Path) -> None:
    private = trained(tmp_path / "private", method, evaluation="counts", partition="dirichlet", clients=12)
    plain = trained(tmp_path / "plain", method, "none", partition="dirichlet", clients=12)
    model = "personal" if method == "ditto" else "global"
    for measure in ("worst_10", "best_10", "worst", "best"):
        ours, theirs = (run.rounds[f"test_accuracy_of_{model}_model_{measure}"].to_numpy() for run in (private, plain))
        assert ours == pytest.approx(theirs, abs=0.05 + 1e-9)
    assert len(private.clients) == 0
    assert {"mean", "std", "worst_10", "best_10"} == set(private.opened())


@pytest.mark.parametrize("forged", [{0: 200.0}, {0: -1.0, 1: 1.0}])
def test_bins_that_a_client_forges_are_left_out(
    forged: dict[int, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    honest = MeanWeighing.sums

    def sums(self: MeanWeighing, step: int, own: Any, opened: Sums) -> dict[str, float]:
        bins = {bin_of("accuracy", place): count for place, count in forged.items()}
        return honest(self, step, own, opened) | (bins if own.name.endswith("3") else {})

    monkeypatch.setattr(MeanWeighing, "sums", sums)
    with caplog.at_level("WARNING", "flwr"):
        private = trained(tmp_path, "term", evaluation="counts", rounds=1)
    assert "the bins of accuracy do not count each of 10 clients once" in caplog.text
    assert {"mean", "std"} == set(private.opened())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clients": 9}, "evaluation = 'counts' with clients = 9 would show single clients' scores: leave it out"),
        ({"privacy": "none"}, "evaluation = 'counts' has no effect without privacy: set privacy=sums"),
    ],
)
def test_counts_of_scores_that_cannot_be_are_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match=words):
        trained(tmp_path, "term", evaluation="counts", **settings)


def test_a_run_whose_private_steps_are_zero_ends(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match=r"nothing for 2 rounds: .* too small .* a smaller epsilon, tilt or q"):
        trained(tmp_path, "term", **{"term.tilt": 100.0, "unused-rounds": 2})


def test_a_step_that_the_cap_makes_zero_is_skipped() -> None:
    federation = Federation(8)
    for name in federation.names[1:]:
        federation.updates[name] *= 0.0
    with pytest.raises(ValueError, match="one client was more than all others together"):
        PrivateRounds._stepped_by(SimpleNamespace(_method=TERM()), 1, None, federation.run(), federation.names)


@pytest.mark.parametrize("method", ["fedfa", "afl"])
def test_a_continued_private_run_ends_like_a_whole_one(method: str, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", method, rounds=3)
    trained(tmp_path / "parts", method, rounds=1)
    parts = trained(tmp_path / "parts", method, rounds=3)
    assert parts.rounds["replies_used"].tolist() == [10] * 3
    assert parts.rounds[MEAN].to_numpy() == pytest.approx(whole.rounds[MEAN].to_numpy(), abs=0.5)


def test_a_server_optimizer_sees_the_sum_alone(tmp_path: Path) -> None:
    settings = {"server-optimizer": "adam", "server-optimizer-lr": 0.01}
    private, plain = (trained(tmp_path / kind, "fedavg", kind, **settings) for kind in ("sums", "none"))
    assert private.rounds[MEAN].to_numpy() == pytest.approx(plain.rounds[MEAN].to_numpy(), abs=2.0)


def test_rounds_of_fewer_than_five_clients_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match="a private round needs 5"):
        trained(tmp_path, clients=4)


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(SUMS)))
def test_other_methods_are_refused_with_their_reason(method: str, tmp_path: Path) -> None:
    declared = METHODS[method].beyond_sums
    assert declared != Method.beyond_sums
    words = rf"privacy = 'sums': \w+ needs {declared[0]}: .*tier.*: leave privacy out|group"
    with pytest.raises(FairbloomError, match=words):
        trained(tmp_path, method)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(SUMS) - set(ANGLES)))
def test_angles_refuse_other_methods_with_their_reason(method: str, tmp_path: Path) -> None:
    words = rf"privacy = 'angles': \w+ needs {METHODS[method].beyond_sums[0]}: .*tier.*: leave privacy out|group"
    with pytest.raises(FairbloomError, match=words):
        trained(tmp_path, method, "angles")
    assert not list(tmp_path.iterdir())


def test_a_method_of_sums_runs_where_angles_may_be_opened(tmp_path: Path) -> None:
    private = trained(tmp_path / "private", "term", "angles")
    assert private.arrays()["1.weight"] == pytest.approx(trained(tmp_path / "sums").arrays()["1.weight"], abs=2e-4)


@pytest.mark.parametrize("method", ["fedmgdaplus", "mgdaprox"])
def test_an_epsilon_that_lets_one_client_dominate_is_refused(method: str, tmp_path: Path) -> None:
    for clients, most in ((10, 0.2), (8, 0.25)):
        words = rf"(?s)epsilon = 1 gives one client.*with {clients} clients in a round, set it to at most {most}"
        with pytest.raises(FairbloomError, match=words):
            trained(tmp_path, method, "angles", clients=clients, **{f"{method}.epsilon": 1.0})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["krum", "pcgrad", "gradvac", "pcd"])
def test_other_weightings_of_torchjd_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match=r"privacy = 'angles' works with weightings of TorchJD .*torchjd:upgrad"):
        trained(tmp_path, f"torchjd:{name}", "angles")


def test_a_tail_of_too_few_clients_is_refused(tmp_path: Path) -> None:
    for theta, words in ((0.4, "theta = 0.4 leaves fewer than 5 of 10 clients"), (0.1, "set it to at least 0.2")):
        with pytest.raises(FairbloomError, match=words):
            trained(tmp_path, "deltafl", "counts", **{"deltafl.theta": theta, "clients": 60 if theta == 0.1 else 10})
    with pytest.raises(FairbloomError, match="weighting = 'examples' does not work with privacy = 'counts': set it to"):
        trained(tmp_path, "deltafl", "counts", weighting="examples")
    assert not list(tmp_path.iterdir())


def test_weighting_by_examples_is_refused_with_angles(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match="weighting = 'examples' does not work with privacy = 'angles': leave it"):
        trained(tmp_path, "fedmgda", "angles", weighting="examples")


def test_a_large_model_needs_a_sketch_for_angles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairbloom.rounds.private.MOST_NUMBERS", 500)
    with pytest.raises(FairbloomError, match=r"650 trained numbers.* exact up to 500: set angles-sketch=1024"):
        trained(tmp_path / "exact", "fedmgdaplus", "angles")
    sketched = trained(tmp_path / "sketched", "fedmgdaplus", "angles", angles_sketch=1024)
    plain = trained(tmp_path / "plain", "fedmgdaplus", "none")
    assert sketched.rounds["replies_used"].tolist() == [10, 10, 10]
    assert sketched.rounds[MEAN].iloc[-1] == pytest.approx(plain.rounds[MEAN].iloc[-1], abs=5.0)


def test_a_sketch_that_its_products_would_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match="angles-sketch = 100 is too small to hide the sketches: set it to 1024"):
        trained(tmp_path, "fedmgda", "angles", angles_sketch=100)


@pytest.mark.parametrize("tier", ["none", "sums"])
def test_a_sketch_without_angles_is_refused(tier: str, tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match=r"angles-sketch = 1024 has no effect with privacy = .*set privacy=angles"):
        trained(tmp_path, "term", tier, angles_sketch=1024)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fedmgda", "FedMGDA needs angles between updates: the tier angles shows that: set privacy=angles"),
        (
            "deltafl",
            "DeltaFL needs which clients' losses are the largest: the tier counts shows that: set privacy=counts",
        ),
        ("aaggff", "AAggFF needs each client's loss: no tier of privacy shows that: leave privacy out, or choose"),
    ],
)
def test_a_refusal_names_reason_and_tier(method: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match=words):
        trained(tmp_path, method)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("update-limit", 5.0), ("loss-limit", 5.0), ("max-growth", 2.0)),
        *(("enrolled-sizes", "client-0=5"), ("control-variates", True), ("client-rule", "tests.client.rules:Rule")),
        *(("validation-share", 0.2), ("pooled", True), ("attack", "sign-flip"), ("defence", "nnm")),
    ],
)
def test_settings_that_need_single_clients_are_refused(key: str, value: object, tmp_path: Path) -> None:
    words = rf"^{key}( = \S+)? .*privacy = 'sums'.*: leave (it out|one)"
    with pytest.raises(FairbloomError, match=words):
        trained(tmp_path, "fedavg", **{key: value}, **({"attackers": "0.2"} if key == "attack" else {}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("function", ["train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"])
def test_private_methods_refuse_users_aggregation_of_metrics(function: str) -> None:
    method = METHODS["term"](**{function: lambda *given: {}})
    with pytest.raises(ValueError, match=rf"{function} needs single clients' numbers, which privacy = 'sums' hides"):
        check_private(method, "sums")


class Own(TERM):
    """A user's method, which weighs otherwise than the one whose sums it inherits."""

    def weigh(self, cohort: Cohort) -> Any:
        """Return the prior."""
        return cohort.prior


@pytest.mark.parametrize("tier", ["sums", "angles", "counts"])
def test_a_users_method_that_declares_no_sums_is_refused(tier: str, tmp_path: Path) -> None:
    words = rf"privacy = '{tier}': Own needs numbers, updates or states of single clients: no tier of privacy shows"
    with pytest.raises(FairbloomError, match=words):
        trained(tmp_path, "tests.simulation.test_private:Own", tier)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "tier"), [("term", "sums"), ("fedmgdaplus", "angles")])
def test_a_hundred_clients_make_a_private_round(method: str, tier: str, tmp_path: Path, errors: list[float]) -> None:
    epsilon = {"fedmgdaplus.epsilon": 0.02} if tier == "angles" else {}
    private = trained(tmp_path, method, tier, clients=100, rounds=2, **epsilon)
    assert private.rounds["replies_used"].tolist() == [100, 100]
    assert max(errors) < 1e-4


def test_a_loss_bound_without_privacy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match="loss-bound = 2 has no effect without privacy"):
        trained(tmp_path, "term", "none", **{"loss-bound": 2.0})


def test_private_afl_refuses_to_draw_some_of_the_clients(tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match=r"fraction = 0.5: all clients of AFL take part in each round"):
        trained(tmp_path, "afl", fraction=0.5)


def test_methods_are_not_compared_by_private_runs(tmp_path: Path) -> None:
    from fairbloom.experiments.results.run import final_of

    with pytest.raises(FairbloomError, match="compare methods without privacy"):
        final_of(trained(tmp_path, rounds=1))


def test_tables_of_private_runs_have_their_own_columns(tmp_path: Path) -> None:
    trained(tmp_path, rounds=1)
    rows = pd.read_csv(tmp_path / "rounds.csv")
    assert {"capped", "beyond", "lost"} <= set(rows.columns)


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--methods", "fedavg,fedmgda"),
        ("sweep", "--method", "term", "--grid", "term.tilt=0.1,1"),
        ("recommend", "--wish", "worst as high as possible", "--budget", "1s"),
        ("reproduce", "qffl-synthetic"),
    ],
    ids=lambda words: words[0],
)
def test_studies_refuse_private_runs_before_any_begins(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom(*words, "--set", "privacy=sums", "--out", tmp_path / "study") == 2
    said = capsys.readouterr().err
    assert "privacy = 'sums' hides single clients' scores" in said
    assert "leave it out, or make private runs one by one with fairbloom run" in said
    assert not (tmp_path / "study").exists()


def test_a_sweep_does_not_try_values_of_privacy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sweep", "--method", "term", "--grid", "privacy=none,sums", "--out", tmp_path / "study")
    assert fairbloom(*words) == 2
    assert "a sweep cannot try values of privacy: a private run hides the scores" in capsys.readouterr().err
