"""Figures: every method can be seen in them, they say what they show, and the same figure is the same file."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.views.figures import draw_svg, write_figure
from fairbloom.experiments.views.report.charts import Spec
from fairbloom.experiments.views.report.sections import TOGETHER
from fairbloom.protocol.scores import ACCURACY, Score

MAE = Score("mae", higher_is_better=False)


def made_up(count: int, score: Score = ACCURACY, clients: int = 12, personal: int = 0) -> Comparison:
    """Return a comparison of so many methods, the last of which are personal models."""
    rng = np.random.default_rng(0)
    names = ["FedAvg", *(f"QFedAvg (q={k}, lipschitz=10)" for k in range(1, count))]
    finals = {
        name: [{score.name: {f"c{k}": float(v) for k, v in enumerate(rng.uniform(0, 90, clients))}} for _ in range(2)]
        for name in names
    }
    return Comparison(finals, "FedAvg", (score,), (0, 1), tuple(names[count - personal :]))


def panels(spec: Spec) -> list[Spec]:
    """Return the charts of a figure."""
    found: list[Spec] = spec.get("concat", [spec])
    return found


def looks(spec: Spec, channel: str) -> dict[str, object]:
    """Return how lines look in a channel, by method."""
    (line,) = (layer for layer in panels(spec)[0]["layer"] if layer["mark"]["type"] == "line")
    scale = line["encoding"][channel]["scale"]
    return dict(zip(scale["domain"], scale["range"], strict=True))


@pytest.mark.parametrize(
    "count", [1, 2, 4, TOGETHER, TOGETHER + 1, 8, *(pytest.param(many, marks=pytest.mark.slow) for many in (16, 30))]
)
def test_every_method_is_named_and_looks_like_no_other(count: int) -> None:
    comparison = made_up(count)
    spec = comparison.chart()
    svg = draw_svg(spec).decode()
    assert "var(" not in svg
    assert all(method in svg for method in comparison.methods)
    colours = looks(spec, "color")
    if count > TOGETHER:
        assert [panel["title"] for panel in panels(spec)] == list(comparison.methods[1:])
        for panel in panels(spec):
            assert {row["method"] for row in panel["data"]["values"]} == {"FedAvg", panel["title"]}
            assert colours["FedAvg"] != colours[panel["title"]]
    else:
        assert len(set(colours.values())) == count
        widths = list(looks(spec, "strokeWidth").values())
        assert widths == sorted(widths, reverse=True), "a line shows at both sides of one that covers it"
        points = [layer for layer in spec["layer"] if layer["mark"]["type"] == "point"]
        assert len(set(points[0]["encoding"]["shape"]["scale"]["range"])) == count


@pytest.mark.parametrize("count", [4, 12])
def test_personal_models_are_dashed_and_global_ones_are_not(count: int) -> None:
    comparison = made_up(count, personal=1)
    dashed = [method for method, dash in looks(comparison.chart(), "strokeDash").items() if dash != [1, 0]]
    assert dashed == [comparison.methods[-1]]


@pytest.mark.parametrize("count", [3, 12])
def test_an_axis_has_the_score_with_its_unit_and_direction(count: int) -> None:
    for score, title in ((ACCURACY, "test accuracy, %, higher is better"), (MAE, "test mae, lower is better")):
        spec = made_up(count, score).chart()
        assert all(panel["layer"][-1]["encoding"]["y"]["title"] == title for panel in panels(spec))


@pytest.mark.parametrize("count", [3, 12])
def test_the_worst_served_client_is_on_the_left_whatever_the_direction(count: int) -> None:
    for score, sign in ((ACCURACY, 1), (MAE, -1)):
        comparison = made_up(count, score)
        for panel in panels(comparison.chart()):
            for method in {row["method"] for row in panel["data"]["values"]}:
                rows = [row for row in panel["data"]["values"] if row["method"] == method]
                assert [row["rank"] for row in rows] == list(range(1, 13))
                assert (sign * np.diff([row["value"] for row in rows]) >= 0).all()


def test_clients_without_a_score_at_one_seed_leave_the_others_in_the_figure() -> None:
    comparison = made_up(2)
    del comparison.finals["FedAvg"][1]["accuracy"]["c3"]  # type: ignore[attr-defined]
    assert sum(row["method"] == "FedAvg" for row in comparison.chart()["data"]["values"]) == 12


@pytest.mark.parametrize("count", [3, 12])
def test_the_same_figure_twice_is_the_same_file_as_png_and_svg(count: int, tmp_path: Path) -> None:
    for name in ("one", "two"):
        files = write_figure(made_up(count), tmp_path / f"{name}.v1")
        assert files == [tmp_path / f"{name}.v1.png", tmp_path / f"{name}.v1.svg"]
    for ending in ("png", "svg"):
        assert (tmp_path / f"one.v1.{ending}").read_bytes() == (tmp_path / f"two.v1.{ending}").read_bytes()
    assert (tmp_path / "one.v1.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    drawn = ElementTree.fromstring((tmp_path / "one.v1.svg").read_text())  # noqa: S314 (our own figure)
    assert drawn.tag.endswith("svg")
