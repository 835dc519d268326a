"""A search: arms judged on validation examples, the best of each method tested with fresh seeds."""

import itertools
import json
import math
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fairbloom as api
from fairbloom.errors import FairbloomError
from fairbloom.experiments.arms import Arm
from fairbloom.experiments.results.measures import REGISTRY, ClientScores, find_measure
from fairbloom.experiments.results.presentation import page_of
from fairbloom.experiments.results.run import REPORT, load
from fairbloom.experiments.results.search import ArmScore, choose, near_best_mean, read_scores
from fairbloom.experiments.studies.search import arms_of, choose_arms, parse_grid
from fairbloom.experiments.study import SearchOutcome, Study
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.protocol.settings import Value
from fairbloom.strategies import METHODS

from ..helpers import as_json, captured, times_in
from ..pages.parsed import Parsed

SMALL: dict[str, Any] = {
    "clients": 5,
    "rounds": 2,
    "jobs": 1,
    "progress": False,
    "settings": {"device": "cpu"},
}
WORDS: dict[str, Any] = {"methods": "fedfv(alpha=0.5),fedfv(alpha=0)", "seeds": 2, **SMALL}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> api.Search:
    return api.search(out=tmp_path_factory.mktemp("search") / "out", **WORDS)


def labels(
    words: str, grid: dict[str, list[Value]] | None = None, baseline: str = "fedavg"
) -> list[str]:
    return [arm.label for arm in arms_of(words, grid or {}, baseline, {})]


# What is tried ------------------------------------------------------------------------------------


def test_a_method_tries_what_is_declared_given_or_written() -> None:
    assert labels("ditto") == ["Ditto (lam=0.1)", "Ditto (lam=1)", "FedAvg"]
    assert [arm.label for arm in arms_of("fedfv", {}, "fedavg", {"fedfv.alpha": 0.2})] == [
        *(f"FedFV (tau={tau})" for tau in (0, 1, 3, 10)),
        "FedAvg",
    ]
    assert labels("qfedavg", {"learning-rate": [0.1]})[:3] == [
        f"QFedAvg (q=0.001, lipschitz={L}, learning-rate=0.1)" for L in ("0.1", "1", "10")
    ]
    assert labels("fedfv,fedavg", {"alpha": [0.0]}) == ["FedFV (alpha=0)", "FedAvg"]
    assert labels("fedfv(alpha=1)") == ["FedFV (alpha=1)", "FedAvg"]
    arms = arms_of("ditto,local,fedfv(alpha=1)", {}, "fedavg", {})
    assert {arm.method for arm in arms if arm.evaluated == "personal"} == {"ditto", "local"}
    assert labels("fedfv(alpha=1)", {"learning-rate": [0.1, 0.2]}) == [
        f"{name}learning-rate={rate})"
        for name in ("FedFV (alpha=1, ", "FedAvg (")
        for rate in (0.1, 0.2)
    ]
    within = labels("fedavg", {"num-rounds": [1, 2]})
    assert within == ["FedAvg (num-rounds=1)", "FedAvg (num-rounds=2)"]
    assert labels("qfedavg(q=1),qfedavg(q=2)", baseline="qfedavg(q=2)") == [
        "QFedAvg (q=1)",
        "QFedAvg (q=2)",
    ]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (name, each)
        for name, cls in METHODS.items()
        for each in itertools.product(*cls.tries.values())
    ],
)
def test_every_method_declares_values_that_it_accepts(name: str, values: tuple[Any, ...]) -> None:
    METHODS[name](**dict(zip(METHODS[name].tries, values, strict=True)))


@pytest.mark.parametrize(("rounds", "count"), [(50, 20), (300, 140)])
def test_values_that_change_nothing_are_not_tried(rounds: int, count: int) -> None:
    assert len(arms_of("fedmgdaplus", {}, "fedavg", {"num-rounds": rounds})) == count + 1


@pytest.mark.parametrize(
    ("method", "grid", "words"),
    [
        ("fedfv", {"clients": [4, 5]}, "clients"),
        ("fedfv", {"seed": [1, 2]}, "--seeds"),
        ("fedfv", {"alphq": [0.1]}, "alphq.*alpha"),
        ("fedfv", {"alpha": [2.0]}, "fedfv.alpha = 2.0"),
        ("fedfv", {"alpha": [0.1, 0.1]}, "0.1 is there twice"),
        ("fedavg", {}, "nothing to choose from but FedAvg: name more --methods"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_a_remedy(
    method: str, grid: dict[str, Any], words: str
) -> None:
    with pytest.raises(FairbloomError, match=words):
        labels(method, grid)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("q=0,.1", [0, 0.1]),
        ("q='0',\"0.1\"", [0, 0.1]),
        ("draw=uniform,'examples'", ["uniform", "examples"]),
        ("personal-parameters='head, *.bias',body", ["head, *.bias", "body"]),
    ],
)
def test_a_value_in_quotes_may_have_a_comma(text: str, values: list[Any]) -> None:
    assert [*parse_grid([text]).values()] == [values]


@pytest.mark.parametrize("text", ["alpha", "alpha=", "=1", "alpha=1,,2"])
def test_a_grid_is_written_as_key_and_values(text: str) -> None:
    with pytest.raises(FairbloomError, match="write it as KEY=VALUE,VALUE"):
        parse_grid([text])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seeds": 0}, "seeds = 0"),
        ({"mean_within": -0.1}, r"mean-within = -0\.1.*at least 0"),
        ({"mean_within": math.nan}, "mean-within = nan"),
        ({"mean_within": math.inf}, "mean-within = inf"),
        ({"criterion": "wurst"}, "'wurst'.*worst"),
        ({"criterion": "suffering_share"}, "compares with the baseline.*take another measure"),
        ({"criterion": "client:nobody"}, "nobody is not a client"),
        ({"criterion": "group-gap:accuracy"}, "no groups"),
        ({"settings": {"validation-share": 0.0}}, "validation-share = 0"),
    ],
)
def test_impossible_options_are_refused_before_any_training(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(FairbloomError, match=words):
        api.search(out=tmp_path / "out", **{**WORDS, **options})
    assert not [*tmp_path.glob("out/**/rounds.csv")]


# How it is judged ---------------------------------------------------------------------------------


def test_the_best_of_each_method_is_tested_with_fresh_seeds(
    found: api.Search, subtests: pytest.Subtests
) -> None:
    study = found.study
    assert (found.study.seeds, found.study.found.fresh) == ([0, 1], [1000, 1001])
    assert study.settings["validation-share"] == 0.2
    worth = {}
    for arm in study.arms:
        with subtests.test(arm=arm):
            finals = [
                load(found.folder / study.folder(arm, seed)).final(split="validation")
                for seed in (0, 1)
            ]
            worth[arm.label] = statistics.fmean(min(each.values()) for each in finals)
            assert found.of(arm.label).mean == pytest.approx(worth[arm.label])
    best = max((label for label in worth if label != "FedAvg"), key=lambda label: worth[label])
    assert {*found.study.found.best} == {best, "FedAvg"}
    assert found.best == max((best, "FedAvg"), key=lambda label: worth[label])
    assert (set(found.comparison.methods), found.comparison.seeds) == (
        {best, "FedAvg"},
        (1000, 1001),
    )
    assert found.best in found.sentences[0]
    verdict = found.comparison.verdict
    assert found.sentences[1:] == (
        f"On the test examples of 2 fresh seeds: {verdict.headline}",
        *verdict.sentences,
    )
    assert {path.name for path in found.folder.iterdir() if not path.name.startswith(".")} == {
        "study.json",
        "comparison.csv",
        "differences.csv",
        "clients.csv",
        REPORT,
        "runs",
    }


def test_the_best_arm_of_one_method_is_tested_alone(tmp_path: Path) -> None:
    words = {**SMALL, "methods": "fedavg", "grid": "learning-rate=0.01,0.3", "seeds": 1}
    found = api.search(out=tmp_path / "out", **words)
    assert [arm.label for arm in found.study.arms] == [
        "FedAvg (learning-rate=0.01)",
        "FedAvg (learning-rate=0.3)",
    ]
    assert (found.baseline, found.comparison.methods) == (found.best, (found.best,))


def test_the_same_folder_gives_the_same_answer(
    found: api.Search, capsys: pytest.CaptureFixture[str]
) -> None:
    before = times_in(found.folder / "runs")
    again = api.search(out=found.folder, **WORDS)
    assert times_in(found.folder / "runs") == before
    assert again.as_json == found.as_json == api.load(found.folder).as_json
    assert as_json(capsys, "show", found.folder) == json.loads(json.dumps(found.as_json))
    assert found.best in captured(capsys, "show", found.folder).out
    assert (
        "a search has its own: leave it out"
        in captured(capsys, "show", found.folder, "--score", "loss", code=2).err
    )


def test_the_page_has_the_arms_and_the_comparison(found: api.Search) -> None:
    page = Parsed.of((found.folder / REPORT).read_text(encoding="utf-8"))
    rows = {row["arm"]: row for row in page.rows("arms")}
    assert [*rows] == sorted(rows, key=lambda label: -found.of(label).mean)
    described = {each["arm"]: each for each in found.as_json["arms"]}
    chosen = {label for label, row in rows.items() if row["state"] == "chosen"}
    assert chosen == {label for label, each in described.items() if each["chosen"]}
    assert chosen == {*found.study.found.best}
    assert {row["method"] for row in page.rows("methods")} == {*found.study.found.best}


def test_as_many_fresh_seeds_are_tested_as_asked_for(tmp_path: Path) -> None:
    study = api.search(out=tmp_path / "out", test_seeds=1, **WORDS).study
    assert (study.found.fresh, study.seeds) == ([1000], [0, 1])


def test_runs_of_a_search_may_stop_early(tmp_path: Path) -> None:
    """A search has validation examples without being asked for them."""
    settings: dict[str, Value] = {"early-stopping": 1, "best-model": "worst-10"}
    options = {**SMALL, "rounds": 20, "seeds": 1, "settings": settings}
    search = api.search(methods="fedavg", grid="learning-rate=0.1,1.5", out=tmp_path, **options)
    assert search.study.settings["validation-share"] == 0.2
    stopped = [load(path).stopped for path in (tmp_path / "runs").iterdir()]
    assert all("of the worst 10 % of clients" in each for each in stopped)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "judged"), [([40, 10, 40], [0, 2]), ([10, 10, 10], [0, 1, 2])], ids=["one", "all"]
)
def test_small_clients_have_a_part_if_all_are_small(
    tmp_path: Path, rows: list[int], judged: list[int]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for client, count in enumerate(rows):
        lines = [f"{k * k % 7},{'yes' if k % 2 else 'no'}" for k in range(count)]
        folder.joinpath(f"site-{client}.csv").write_text("\n".join(["x,target", *lines]) + "\n")
    search = api.search(
        "csv",
        methods="fedavg",
        grid={"learning-rate": [0.1, 0.2]},
        seeds=1,
        rounds=1,
        jobs=1,
        data_dir=folder,
        out=tmp_path / "out",
        progress=False,
    )
    run, *_ = (tmp_path / "out" / "runs").glob("*-seed0")
    assert sorted(read_scores(load(run), "global").values) == [
        f"site-{client}" for client in judged
    ]
    left_out = [note for note in search.notes if "fewer than 4 test examples: site-1." in note]
    assert bool(left_out) == (len(judged) < len(rows))


def test_the_best_arm_is_chosen_by_the_score() -> None:
    worst = find_measure("worst-10")
    arms = [*(ArmScore(Arm(x, x), [v]) for x, v in {"a": 70.0, "b": 60.0}.items()), UNJUDGED]
    assert choose(worst, ACCURACY, arms).arm.label == "a"
    assert choose(worst, ACCURACY, [UNJUDGED]) is None
    assert choose(worst, Score("mae", higher_is_better=False), arms).arm.label == "b"


UNJUDGED = ArmScore(Arm("c", "c"))


def judged_arm(label: str, method: str, worst: float, *means: float) -> ArmScore:
    return ArmScore(Arm(label, method), [worst] * len(means), means)


@pytest.mark.parametrize(
    ("within", "best_high", "best_low"),
    [
        (None, "abc", "abc"),
        (0.0, "a", "c"),
        (1.0, "ab", "c"),
        (2.0, "ab", "bc"),
        (3.0, "abc", "abc"),
    ],
)
def test_arms_far_from_the_best_mean_are_left_out(
    within: float | None, best_high: str, best_low: str
) -> None:
    """Means are over the seeds; of an error, the lowest is best."""
    arms = [
        judged_arm("a", "one", 1.0, 89.0, 91.0),
        judged_arm("b", "one", 2.0, 89.0, 89.0),
        judged_arm("c", "two", 3.0, 87.0, 87.0),
        UNJUDGED,
    ]
    error = Score("mae", higher_is_better=False)
    for score, left in ((ACCURACY, best_high), (error, best_low)):
        found = near_best_mean(score, arms, within)
        assert "".join(arm_score.arm.label for arm_score in found) == left
    assert near_best_mean(ACCURACY, [UNJUDGED], within) == []


def search_within(within: float | None, *judged: ArmScore) -> api.Search:
    """Return a search of these arms, by the worst tenth, before its choice."""
    arms = [arm_score.arm for arm_score in judged]
    study = Study("search", arms, [0], "fedavg", criterion="worst_10", mean_within=within)
    return api.Search(study, judged, ACCURACY)


FAIR = judged_arm("FedFV (alpha=0)", "fedfv", 70.0, 80.0)
EVEN = judged_arm("FedFV (alpha=1)", "fedfv", 60.0, 89.0)
UNFAIR = judged_arm("FedAvg", "fedavg", 50.0, 90.0)
SLOW = judged_arm("FedAvg (learning-rate=0.01)", "fedavg", 75.0, 79.0)


@pytest.mark.parametrize(
    ("within", "judged", "best", "sentence"),
    [
        (None, [FAIR, EVEN, UNFAIR, SLOW], [SLOW, FAIR], ""),
        (1.0, [FAIR, EVEN, UNFAIR, SLOW], [EVEN, UNFAIR], ""),
        (0.5, [FAIR, EVEN, UNFAIR, SLOW], [UNFAIR], "No arm of FedFV has a mean within 0.5 points"),
        (0.5, [EVEN, SLOW], [EVEN, SLOW], "; FedAvg is tested as the baseline."),
    ],
)
def test_the_goal_decides_among_arms_with_a_near_mean(
    within: float | None, judged: list[ArmScore], best: list[ArmScore], sentence: str
) -> None:
    """A baseline without such an arm is not the best one."""
    search = search_within(within, *judged)
    labels = choose_arms(search)
    assert labels == [arm_score.arm.label for arm_score in best]
    chosen = replace(search, study=replace(search.study, found=SearchOutcome(labels)))
    assert ("of the arms with a mean within" in chosen.sentences[0]) == (within is not None)
    assert sentence in " ".join(chosen.sentences[1:])
    assert (len(chosen.sentences) == 1) == (sentence == "")


def test_a_search_is_asked_again_with_a_bound(found: api.Search, tmp_path: Path) -> None:
    """Only tests of another choice are run, and the page has the means that decide."""
    shutil.copytree(found.folder, tmp_path / "out")
    again = api.search(out=tmp_path / "out", mean_within=0.0, **WORDS)
    best = max(again.judged, key=lambda arm_score: statistics.fmean(arm_score.means))
    assert again.best == best.arm.label
    page = Parsed.of((again.folder / REPORT).read_text(encoding="utf-8"))
    rows = {row["arm"]: row for row in page.rows("arms")}
    for arm in again.as_json["arms"]:
        assert rows[arm["arm"]]["mean, validation"] == f"{arm['mean']:.1f}"
        is_near = arm["mean"] == statistics.fmean(best.means)
        assert (rows[arm["arm"]]["state"] == "mean too far from the best") == (
            not is_near and not arm["chosen"]
        )
    assert api.load(again.folder).study.mean_within == 0.0


# The registry of measures -------------------------------------------------------------------------


def test_measures_are_found_by_their_names(subtests: pytest.Subtests) -> None:
    served = ClientScores({"a": 10.0, "b": 30.0}, ACCURACY, {"a": 1, "b": 3})
    for name, value in {
        "mean": 20.0,
        "worst-10": 10.0,
        "worst_10": 10.0,
        "client:b": 30.0,
        "uniform": 25.0,
        "3*mean+worst": 0.75 * 20.0 + 0.25 * 10.0,
        "client:z": math.nan,
        "group-gap:accuracy": math.nan,
    }.items():
        with subtests.test(name=name, value=value):
            assert find_measure(name).of(served) == pytest.approx(value, nan_ok=True)
    assert {name: find_measure(name) for name in REGISTRY} == REGISTRY


@pytest.mark.parametrize(
    ("name", "high", "high_of_an_error"),
    [
        ("mean", True, False),
        ("std", False, False),
        ("jain", True, True),
    ],
)
def test_measures_know_which_direction_is_good(
    name: str, high: bool, high_of_an_error: bool
) -> None:
    error = Score("mae", higher_is_better=False)
    assert (find_measure(name).better(1.0, 0.0, ACCURACY) > 0.0) is high
    assert (find_measure(name).better(1.0, 0.0, error) > 0.0) is high_of_an_error
    assert find_measure("group-gap:accuracy").better(3.0, 5.0, ACCURACY) == 2.0


def test_a_search_that_is_begun_is_shown_as_far_as_it_is(found: api.Search, tmp_path: Path) -> None:
    shutil.copytree(found.folder, tmp_path / "out")
    replace(found.study, found=SearchOutcome()).write(tmp_path / "out")
    begun = api.load(tmp_path / "out")
    assert (begun.best, begun.comparison) == ("", None)
    assert "the same command continues" in begun.sentences[0]
    assert [section.id for section in page_of(begun).sections] == ["arms"]
