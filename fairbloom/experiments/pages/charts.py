"""Charts of reports: pure functions from rows of numbers to Vega-Lite specifications.

Names of clients and methods are only ever values of data or of a scale's domain, never a part of an
expression.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..render.theme import COLOURS, PICKED, Series, Spec, colour
from ..results.tables import is_shown

# The shapes of points, which tell methods apart without colours.
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")

# The most lines that have bands: more of them would hide each other.
MOST_BANDS = 6

# A row of a chart's data, by the names of its columns.
Row = Mapping[str, Any]


def series_of(labels: Sequence[str], baseline: str, dashed: Iterable[str]) -> list[Series]:
    """Return each label's look: the baseline is grey, others have a colour and a shape."""
    others = [label for label in labels if label != baseline]
    count = sum(name.startswith("series-") for name in COLOURS) - 1
    found = []
    for label in labels:
        place = 0 if label == baseline else 1 + others.index(label)
        colour = 0 if label == baseline else 1 + others.index(label) % count
        shape = SHAPES[place % len(SHAPES)]
        found.append(Series(label, f"series-{colour}", shape, label in dashed))
    return found


def thin(rounds: Sequence[int], most: int) -> list[int]:
    """Return at most `most` rounds in even steps, with the first and the last."""
    if len(rounds) <= most:
        return list(rounds)
    places = {round(i * (len(rounds) - 1) / (most - 1)) for i in range(most)}
    return [rounds[place] for place in sorted(places)]


def short(value: float) -> float | None:
    """Return a number rounded to five digits, None if it cannot be shown."""
    return float(f"{value:.5g}") if is_shown(value) else None


# Charts -------------------------------------------------------------------------------------------


def clients_by_method(
    rows: Sequence[Row],
    series: Sequence[Series],
    clients: Sequence[str],
    axis: str,
) -> Spec:
    """Return a row for each client, with a point for each method; a line spans the seeds.

    The rows have `client`, `method`, `value`, `low` and `high`. The points of a client lie below
    each other if there is room.
    """
    apart = len(series) * len(clients) <= 90
    offset = (
        {"yOffset": {"field": "method", "sort": [look.label for look in series]}} if apart else {}
    )
    common = {
        "y": {**_names("client", clients), "axis": {**NAMES, "grid": True, "tickBand": "extent"}},
        **offset,
        **_method(series),
        "opacity": EMPHASIS,
    }
    tooltip = _tooltip(
        ("client", "client"),
        ("method", "method"),
        ("value", axis),
        ("low", "lowest"),
        ("high", "highest"),
    )
    spans = _layer(
        "rule",
        {"x": {**_quantity("low", axis), **END}, "x2": {"field": "high"}, **common},
        strokeWidth=1.5,
    )
    x = {**_quantity("value", axis), **END}
    points = _layer("point", {"x": x, "shape": _shape(series), **common, "tooltip": tooltip})
    return {
        **_spec(rows, [spans, points]),
        "height": len(clients) * (10 * len(series) + 8 if apart else 24),
    }


def sorted_clients(
    rows: Sequence[Row], series: Sequence[Series], axis: str, among: Sequence[Row] = ()
) -> Spec:
    """Return a line for each method over its clients, from the worst served to the best.

    A band spans the seeds.

    The rows have `rank`, `method`, `value`, `low` and `high`. The axis reaches over all rows
    `among` which these are.
    """
    x = {
        "field": "rank",
        "type": "quantitative",
        "title": "clients, the worst served first",
        "scale": {"nice": False, "zero": False},
        "axis": {"tickMinStep": 1, "grid": False},
    }
    return _bands(rows, series, x, _quantity("value", axis, among))


def over_rounds(
    rows: Sequence[Row],
    series: Sequence[Series],
    axis: str,
    among: Sequence[Row] = (),
    *,
    logarithmic: bool = False,
) -> Spec:
    """Return a line for each method over the rounds, in a band.

    With a logarithmic axis, all numbers are above 0.
    """
    x = {
        "field": "round",
        "type": "quantitative",
        "title": "round",
        "scale": {"nice": False, "zero": False},
        "axis": {
            "values": thin(sorted({row["round"] for row in rows}), 9),
            "format": "d",
            "grid": False,
        },
    }
    y = _quantity("value", axis, among)
    if logarithmic:
        y["scale"] = {"type": "log", "nice": False}  # whole decades would flatten the lines
    return _bands(rows, series, x, y)


def bars(rows: Sequence[Row], series: Sequence[Series], names: Sequence[str], axis: str) -> Spec:
    """Return a group of bars for each name, one of each series, with a line from low to high.

    The rows have `name`, the series as `method`, `value`, `low` and `high`.
    """
    common = {
        "y": {**_names("name", names), "axis": {**NAMES, "labelLimit": 400}},
        "yOffset": {"field": "method", "sort": [look.label for look in series]},
        "opacity": EMPHASIS,
    }
    tooltip = _tooltip(
        ("name", "row"), ("method", ""), ("value", axis), ("low", "from"), ("high", "to")
    )
    x = {**_quantity("value", axis), "scale": {"zero": True, "nice": True}, "stack": None, **END}
    spans = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, **common}
    layers = [
        _layer("bar", {"x": x, **common, **_method(series), "tooltip": tooltip}),
        _layer("rule", spans, color=colour("ink"), strokeWidth=1.2),
    ]
    return {**_spec(rows, layers), "height": (12 * len(series) + 6) * len(names)}


def differences(rows: Sequence[Row], axis: str) -> Spec:
    """Return the difference of each method to the baseline with its interval.

    To the right is better.

    The rows have `method`, `mean`, `low`, `high`, and as `clear` a key of CLEAR.
    """
    methods = list(dict.fromkeys(row["method"] for row in rows))
    common = {
        "y": _names("method", methods),
        "color": _scaled("clear", list(CLEAR), [colour(name) for name in CLEAR.values()]),
        "opacity": EMPHASIS,
    }
    tooltip = _tooltip(
        ("method", "method"), ("mean", axis), ("low", "from"), ("high", "to"), ("clear", "")
    )
    interval = _layer(
        "rule", {"x": _quantity("low", axis), "x2": {"field": "high"}, **common}, strokeWidth=3
    )
    point = _layer(
        "point", {"x": _quantity("mean", axis), **common, "tooltip": tooltip}, size=70, filled=True
    )
    # two seeds have none
    intervals = [interval] if any(row["low"] is not None for row in rows) else []
    zero = _layer(
        "rule", {"x": {"datum": 0}}, data={"values": [{}]}, color=colour("muted"), strokeDash=[3, 3]
    )
    return {**_spec(rows, [zero, *intervals, point]), "height": 28 * len(methods)}


def boxes(rows: Sequence[Row], sites: Sequence[str], axis: str) -> Spec:
    """Return a box for each site: nine tenths of its numbers, a half of them, and the median.

    The rows have `site`, `low`, `lower`, `value`, `upper`, `high`, and whether it stands `apart`.
    """
    common = {
        "y": _names("site", sites),
        "color": _scaled("apart", [True, False], [colour("worse"), colour("same")]),
    }
    names = ("low", "lower", "value", "upper", "high")
    tooltip = _tooltip(
        ("site", "site"), *zip(names, ("5 %", "25 %", "50 %", "75 %", "95 %"), strict=True)
    )
    layers = [
        _layer(
            "rule",
            {"x": _quantity(low, axis), "x2": {"field": high}, **common, "tooltip": tooltip},
            strokeWidth=width,
        )
        for low, high, width in (("low", "high", 1), ("lower", "upper", 9))
    ]
    at = {"x": _quantity("value", axis), "y": _names("site", sites)}
    layers.append(_layer("tick", at, color=colour("ink"), size=14, thickness=2))
    return {**_spec(rows, layers), "height": 18 * len(sites)}


def shares(rows: Sequence[Row], sites: Sequence[str], axis: str) -> Spec:
    """Return a bar for each site, divided by the shares of values.

    The rows have `site`, `text` and `value`.
    """
    texts = [*dict.fromkeys(row["text"] for row in rows)]
    bars = {
        "x": {**_quantity("value", axis), "stack": "zero"},
        "y": _names("site", sites),
        "color": {
            **_scaled("text", texts, [colour(f"series-{k}") for k in range(len(texts))]),
            "legend": {"title": None, "orient": "top"},
        },
        "tooltip": _tooltip(("site", "site"), ("text", "value"), ("value", axis)),
    }
    return {**_spec(rows, [_layer("bar", bars, height=12)]), "height": 18 * len(sites)}


# How the numbers of a reproduction look.
PRINTED_AND_MEASURED = (Series("printed", "series-0"), Series("measured", "series-1"))


# Whether a difference is clear or not tested, in words, and the colour of each.
CLEAR = {"better": "better", "worse": "worse", "not clear": "same", "not tested": "same"}


# An axis of names.
NAMES: Spec = {"domain": False, "ticks": False, "labelPadding": 8}

# An axis next to names: its title ends with the chart, so that it has room on a narrow page.
END: Spec = {"axis": {"titleAnchor": "end"}}

# Parts of charts ----------------------------------------------------------------------------------


def _spec(rows: Sequence[Row], layers: list[Spec]) -> Spec:
    """Return a specification of layers over the same rows, as wide as the page lets it be."""
    size = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return {**size, "params": [PICKED], "data": {"values": list(rows)}, "layer": layers}


def _layer(mark: str, encoding: Mapping[str, Any], data: Spec | None = None, **look: Any) -> Spec:
    return {
        **({"data": data} if data else {}),
        "mark": {"type": mark, **look},
        "encoding": dict(encoding),
    }


def _bands(rows: Sequence[Row], series: Sequence[Series], x: Spec, y: Spec) -> Spec:
    """Return lines over a quantity, in bands unless they are many."""
    band = {
        "x": x,
        "y": {**y, "field": "low"},
        "y2": {"field": "high"},
        **_method(series),
        # The band of a method that is not picked vanishes.
        "fillOpacity": {"condition": {"test": EMPHASISED, "value": 0.16}, "value": 0.0},
    }
    # Where lines coincide, the wider one below shows at both sides of the one above.
    widths = {look.label: max(2.8 - 0.4 * i, 1.4) for i, look in enumerate(series)}
    dashed = {look.label: look.dashed for look in series}
    rows = [
        {**row, "dashed": dashed[row["method"]], "width": widths[row["method"]]} for row in rows
    ]
    line = {
        "x": x,
        "y": y,
        "strokeDash": _scaled("dashed", [False, True], [[1, 0], [5, 3]]),
        "strokeWidth": {"field": "width", "type": "quantitative", "scale": None, "legend": None},
        **_method(series),
        "opacity": EMPHASIS,
    }
    tooltip = _tooltip(
        ("method", "method"),
        (x["field"], x["field"]),
        ("value", y["title"]),
        ("low", "from"),
        ("high", "to"),
    )
    dots = {"x": x, "y": y, "shape": _shape(series), **_method(series), "tooltip": tooltip}
    layers = [
        _layer("area", band, line=False),
        _layer("line", line, interpolate="linear", strokeJoin="round"),  # no spikes at peaks
        _layer("point", dots, size=80, opacity=0.0),
    ]
    if len(series) > MOST_BANDS or all(row["low"] == row["high"] for row in rows):
        del layers[0]
    return {**_spec(rows, layers), "height": 260}


# Whether a mark is of the method that the page's legend emphasises, or all are.
EMPHASISED = "picked == '' || datum.method == picked"


EMPHASIS: Spec = {"condition": {"test": EMPHASISED, "value": 1.0}, "value": 0.12}


def _names(field: str, names: Sequence[str]) -> Spec:
    return {"field": field, "type": "nominal", "sort": list(names), "title": None, "axis": NAMES}


def _scaled(field: str, domain: Sequence[object], looks: Sequence[Any]) -> Spec:
    """Return how marks look by a field; the page has the legend."""
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": list(domain), "range": list(looks)},
        "legend": None,
    }


def _method(series: Sequence[Series]) -> dict[str, Spec]:
    return {
        "color": _scaled(
            "method", [look.label for look in series], [colour(look.colour) for look in series]
        )
    }


def _shape(series: Sequence[Series]) -> Spec:
    return _scaled("method", [look.label for look in series], [look.shape for look in series])


def _quantity(field: str, title: str, among: Sequence[Row] = ()) -> Spec:
    """Return the axis of a field.

    It reaches from the lowest to the highest of the rows among which it is drawn.
    """
    scale: Spec = {"zero": False, "nice": True}
    if among:
        scale["domain"] = [min(row["low"] for row in among), max(row["high"] for row in among)]
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def _tooltip(*fields: tuple[str, str]) -> list[Spec]:
    numbers = ("value", "low", "high", "mean", "rank")
    return [
        {"field": f, "title": title, **({"format": ".4~g"} if f in numbers else {})}
        for f, title in fields
    ]
