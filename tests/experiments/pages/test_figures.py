"""Figures: every method can be seen in them, they say what they show, and the same figure is the
same file."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fairbloom.experiments.pages.sections import TOGETHER
from fairbloom.experiments.render.figures import draw_svg
from fairbloom.experiments.render.theme import Spec
from fairbloom.experiments.results.presentation import write_figure
from fairbloom.protocol.scores import ACCURACY, Score

from ..helpers import compared_at_random

MAE = Score("mae", higher_is_better=False)


def panels(spec: Spec) -> list[Spec]:
    """Return the charts of a figure."""
    return spec.get("concat", [spec])


def line_of(spec: Spec) -> Spec:
    """Return the encoding of the lines of a figure's first chart."""
    (line,) = (layer for layer in panels(spec)[0]["layer"] if layer["mark"]["type"] == "line")
    encoding: Spec = line["encoding"]
    return encoding


def looks(spec: Spec, key: str) -> dict[str, object]:
    """Return how lines look by a column of the data, by method."""
    return {row["method"]: row[key] for panel in panels(spec) for row in panel["data"]["values"]}


def colours_of(spec: Spec) -> dict[str, object]:
    """Return the colours of lines, by method."""
    scale = line_of(spec)["color"]["scale"]
    return dict(zip(scale["domain"], scale["range"], strict=True))


@pytest.mark.parametrize("count", [1, TOGETHER, TOGETHER + 1])
def test_every_method_is_named_and_looks_like_no_other(count: int) -> None:
    comparison = compared_at_random(count)
    spec = comparison.chart()
    svg = draw_svg(spec).decode()
    assert "var(" not in svg
    assert all(method in svg for method in comparison.methods)
    colours = colours_of(spec)
    if count > TOGETHER:
        assert [panel["title"] for panel in panels(spec)] == list(comparison.methods[1:])
        for panel in panels(spec):
            assert {row["method"] for row in panel["data"]["values"]} == {"FedAvg", panel["title"]}
            assert colours["FedAvg"] != colours[panel["title"]]
    else:
        assert len(set(colours.values())) == count
        assert line_of(spec)["strokeWidth"]["field"] == "width"
        widths = list(looks(spec, "width").values())
        assert widths == sorted(widths, reverse=True), (
            "a line shows at both sides of one that covers it"
        )
        points = [layer for layer in spec["layer"] if layer["mark"]["type"] == "point"]
        assert len(set(points[0]["encoding"]["shape"]["scale"]["range"])) == count


@pytest.mark.parametrize("count", [4, TOGETHER + 1])
def test_lines_have_their_look_axis_and_order(count: int) -> None:
    comparison = compared_at_random(count, personal=1)
    spec = comparison.chart()
    assert line_of(spec)["strokeDash"]["scale"] == {
        "domain": [False, True],
        "range": [[1, 0], [5, 3]],
    }
    assert [method for method, dashed in looks(spec, "dashed").items() if dashed] == [
        comparison.methods[-1]
    ], "personal models alone are dashed"
    for score, sign, title in (
        (ACCURACY, 1, "higher is better"),
        (MAE, -1, "lower is better"),
    ):
        for panel in panels(compared_at_random(count, score).chart()):
            axis = panel["layer"][-1]["encoding"]["y"]["title"]
            assert score.words in axis
            assert title in axis
            rows = [row for row in panel["data"]["values"] if row["method"] == "FedAvg"]
            assert [row["rank"] for row in rows] == list(range(1, 13))
            assert (sign * np.diff([row["value"] for row in rows]) >= 0).all(), (
                "the worst served is on the left"
            )


def test_a_client_without_a_score_leaves_the_others_there() -> None:
    whole = compared_at_random(2)
    lacking = whole.finals.query("method == 'FedAvg' and seed == 1 and client == 'c3'").index
    comparison = replace(whole, finals=whole.finals.drop(lacking))
    assert sum(row["method"] == "FedAvg" for row in comparison.chart()["data"]["values"]) == 12


@pytest.mark.parametrize("count", [2, TOGETHER + 1])
def test_the_same_figure_twice_is_the_same_file(tmp_path: Path, count: int) -> None:
    for name in ("one", "two"):
        write_figure(
            compared_at_random(count), tmp_path / f"{name}.v1.png", tmp_path / f"{name}.v1.svg"
        )
    assert [
        ending
        for ending in ("png", "svg")
        if (tmp_path / f"one.v1.{ending}").read_bytes()
        != (tmp_path / f"two.v1.{ending}").read_bytes()
    ] == []
    assert (tmp_path / "one.v1.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert ElementTree.fromstring(  # noqa: S314 (our own figure)
        (tmp_path / "one.v1.svg").read_text()
    ).tag.endswith("svg")


def test_a_pdf_has_its_fonts(tmp_path: Path) -> None:
    write_figure(compared_at_random(2), tmp_path / "figure.pdf")
    content = (tmp_path / "figure.pdf").read_bytes()
    fonts = re.findall(rb"/BaseFont /(\S+)", content)
    assert fonts
    assert content.count(b"/FontFile2") == len({*fonts})
