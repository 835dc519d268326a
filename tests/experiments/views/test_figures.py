"""Figures: every method can be seen in them, they say what they show, and the same figure is the same file."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fairbloom.experiments.results.comparison import Comparison
from fairbloom.experiments.views.figures import (
    BASELINE,
    TOGETHER,
    _apart_from_each_other,
    draw_sorted_clients,
    write_figure,
)
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


def texts(figure: Figure) -> str:
    told = [text.get_text() for axes in figure.axes for text in axes.texts]
    told += [axes.get_title(loc="left") for axes in figure.axes]
    told += [axes.get_xlabel() + axes.get_ylabel() for axes in figure.axes]
    told += [text.get_text() for text in figure.texts]
    told += [figure.get_supxlabel(), figure.get_supylabel()]
    return " ".join(" ".join(told).split())


@pytest.mark.parametrize("count", [1, 2, 4, TOGETHER, TOGETHER + 1, 8, 16, 30])
def test_every_method_is_named_where_its_line_is(count: int) -> None:
    comparison = made_up(count)
    figure = draw_sorted_clients(comparison)
    told = texts(figure)
    for method in comparison.methods:
        assert method in told
    if count > TOGETHER:
        assert len([axes for axes in figure.axes if axes.get_visible()]) == count - 1
        for axes in figure.axes[: count - 1]:
            baseline, method = axes.get_lines()
            assert to_hex(baseline.get_color()) == BASELINE
            assert baseline.get_linewidth() > method.get_linewidth()  # it shows below a line that covers it
    else:
        lines = figure.axes[0].get_lines()
        assert len({to_hex(line.get_color()) for line in lines}) == count
        assert len({line.get_marker() for line in lines}) == count
        widths = [line.get_linewidth() for line in lines]
        assert widths == sorted(widths, reverse=True)
        assert len(set(widths)) == count


@pytest.mark.parametrize("count", [4, 12])
def test_personal_models_are_dashed_and_global_ones_are_not(count: int) -> None:
    comparison = made_up(count, personal=1)
    lines = [axes.get_lines()[-1] for axes in draw_sorted_clients(comparison).axes if axes.get_lines()]
    if count <= TOGETHER:
        lines = list(draw_sorted_clients(comparison).axes[0].get_lines())
    assert [line.get_linestyle() for line in lines].count("--") == 1
    assert lines[-1].get_linestyle() == "--"


@pytest.mark.parametrize("count", [3, 12])
def test_an_axis_has_the_score_with_its_unit_and_direction(count: int) -> None:
    assert "test accuracy in % (higher is better)" in texts(draw_sorted_clients(made_up(count)))
    assert "test mae (lower is better)" in texts(draw_sorted_clients(made_up(count, MAE)))


@pytest.mark.parametrize("count", [3, 12])
def test_the_worst_served_client_is_on_the_left_whatever_the_direction(count: int) -> None:
    for score, sign in ((ACCURACY, 1), (MAE, -1)):
        for line in draw_sorted_clients(made_up(count, score)).axes[0].get_lines():
            assert (sign * np.diff(np.asarray(line.get_ydata())) >= 0).all()


def test_clients_without_a_score_at_one_seed_leave_the_others_in_the_figure() -> None:
    comparison = made_up(2)
    del comparison.finals["FedAvg"][1]["accuracy"]["c3"]  # type: ignore[attr-defined]
    assert len(draw_sorted_clients(comparison).axes[0].get_lines()[0].get_xdata()) == 12  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 12])
def test_the_same_figure_twice_is_the_same_file_as_png_and_svg(count: int, tmp_path: Path) -> None:
    for name in ("one", "two"):
        files = write_figure(draw_sorted_clients(made_up(count)), tmp_path / f"{name}.v1")
        assert files == [tmp_path / f"{name}.v1.png", tmp_path / f"{name}.v1.svg"]
    for ending in ("png", "svg"):
        assert (tmp_path / f"one.v1.{ending}").read_bytes() == (tmp_path / f"two.v1.{ending}").read_bytes()
    assert (tmp_path / "one.v1.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    drawn = ElementTree.fromstring((tmp_path / "one.v1.svg").read_text())  # noqa: S314 (our own figure)
    assert drawn.tag.endswith("svg")


def test_names_of_lines_do_not_meet_and_stay_in_the_panel() -> None:
    for wanted in ([5.0, 5.0, 5.0], [0.0, 0.1, 9.0], [9.9, 10.0, 10.0], [1.0, 2.0, 3.0, 3.1, 9.0]):
        places = _apart_from_each_other(wanted, [1.0] * len(wanted), 0.0, 10.0)
        assert places == sorted(places)
        assert min(np.diff(places)) >= 1.0 - 1e-9
        assert places[0] >= 0.5 - 1e-9
        assert places[-1] <= 9.5 + 1e-9
    assert _apart_from_each_other([2.0, 7.0], [1.0, 1.0], 0.0, 10.0) == [2.0, 7.0]
