"""Charts of reports as Vega-Lite specifications: pure functions from rows of numbers to a specification.

Colours are CSS variables (`var(--ink)`), so that charts follow light, dark and print without being drawn again;
`for_paper` puts the light colours in their place. Names of clients and methods are only ever values of data or of a
scale's domain, never a part of an expression.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]
"""A Vega-Lite specification, or a part of one."""

Row = Mapping[str, Any]
"""A row of a chart's data, by the names of its columns."""

COLOURS = {
    "ink": ("#1b2430", "#e8ebf0"),
    "muted": ("#566172", "#a3adbb"),
    "line": ("#d8dde5", "#36404e"),
    "grid": ("#e9ecf1", "#28313d"),
    "page": ("#ffffff", "#12171e"),
    "panel": ("#f6f8fa", "#1a212b"),
    "accent": ("#0b5cad", "#7cb8f5"),
    "better": ("#00714e", "#4fd0a1"),
    "worse": ("#b3480f", "#ff9d66"),
    "same": ("#697586", "#939eae"),
    "series-0": ("#5b6675", "#aab4c2"),
    "series-1": ("#0072b2", "#56b4e9"),
    "series-2": ("#d55e00", "#ff8f45"),
    "series-3": ("#008a63", "#35c89b"),
    "series-4": ("#b8568f", "#eb9bc8"),
    "series-5": ("#b07800", "#f0b93a"),
    "series-6": ("#5e4fa2", "#a99bf0"),
    "series-7": ("#8c2d04", "#e5a384"),
    "series-8": ("#1b7f8c", "#6fd3de"),
    "series-9": ("#6b7d00", "#c3d44a"),
}
"""The colours of a page and its charts by their names: in light and in dark. Those of series are close to Okabe and
Ito's, which colour-blind people tell apart, and dark enough for thin lines."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
"""The shapes of points, which tell methods apart without colours."""

PICKED = {"name": "picked", "value": ""}
"""The label that a page's legend emphasises; "" for all."""


def colour(name: str) -> str:
    """Return a colour as specifications and style sheets have it."""
    return f"var(--{name})"


@dataclass(frozen=True)
class Series:
    """How a method, or any other line of a chart, looks; those of personal models are dashed with hollow points."""

    label: str
    colour: str
    shape: str = "circle"
    dashed: bool = False


def series_of(labels: Sequence[str], baseline: str = "", dashed: Iterable[str] = ()) -> list[Series]:
    """Return how each label looks: the baseline is grey, the others have a colour and a shape each."""
    others = [label for label in labels if label != baseline]
    count = sum(name.startswith("series-") for name in COLOURS) - 1
    return [
        Series(
            label,
            "series-0" if label == baseline else f"series-{1 + others.index(label) % count}",
            SHAPES[0] if label == baseline else SHAPES[(1 + others.index(label)) % len(SHAPES)],
            label in dashed,
        )
        for label in labels
    ]


def thin(rounds: Sequence[int], most: int) -> list[int]:
    """Return at most so many of the rounds, in even steps, with the first and the last."""
    if len(rounds) <= most:
        return list(rounds)
    places = {round(i * (len(rounds) - 1) / (most - 1)) for i in range(most)}
    return [rounds[place] for place in sorted(places)]


def short(value: float) -> float | None:
    """Return a number with five digits, which no chart shows more of; None of what is no number."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def around(value: float, away: float = 0.0) -> dict[str, float | None]:
    """Return what a row has of a number: itself, and the ends of a line that reaches so far to both sides."""
    return {"value": short(value), "low": short(value - away), "high": short(value + away)}


# Charts -------------------------------------------------------------------------------------------------------------


def clients_by_method(
    rows: Sequence[Row],
    series: Sequence[Series],
    clients: Sequence[str],
    axis: str,
    *,
    apart: bool = True,
    of: str = "client",
) -> Spec:
    """Return a row for each client, or what else `of` names, with a point for each method; a line spans the seeds.

    The rows have a field of that name, `method`, `value`, `low` and `high`. The points of a row stand below each other
    (`apart`) where there is room.
    """
    apart = apart and len(series) * len(clients) <= 90
    offset = {"yOffset": {"field": "method", "sort": [each.label for each in series]}} if apart else {}
    common = {
        "y": {**_names(of, clients), "axis": {**NAMES, "grid": True, "tickBand": "extent"}},
        **offset,
        **_method(series),
        "opacity": _emphasis(),
    }
    tooltip = _tooltip((of, of), ("method", "method"), ("value", axis), ("low", "lowest"), ("high", "highest"))
    spans = _layer("rule", {"x": _quantity("low", axis), "x2": {"field": "high"}, **common}, strokeWidth=1.5)
    points = _layer("point", {"x": _quantity("value", axis), "shape": _shape(series), **common, "tooltip": tooltip})
    return {**_spec(rows, [spans, points]), "height": len(clients) * (10 * len(series) + 8 if apart else 24)}


def sorted_clients(rows: Sequence[Row], series: Sequence[Series], axis: str, among: Sequence[Row] = ()) -> Spec:
    """Return a line for each method over its clients, from the worst served to the best; a band spans the seeds.

    The rows have `rank`, `method`, `value`, `low` and `high`. The axis reaches over all rows `among` which these are.
    """
    x: Spec = {"field": "rank", "type": "quantitative", "title": "clients, the worst served first"}
    x |= {"scale": {"nice": False, "zero": False}, "axis": {"tickMinStep": 1, "grid": False}}
    return _bands(rows, series, x, _quantity("value", axis, among))


def over_rounds(rows: Sequence[Row], series: Sequence[Series], axis: str, among: Sequence[Row] = ()) -> Spec:
    """Return a line for each method over the rounds, in a band."""
    x = {"field": "round", "type": "quantitative", "title": "round", "scale": {"nice": False, "zero": False}}
    x |= {"axis": {"tickMinStep": 1, "grid": False}}
    return _bands(rows, series, x, _quantity("value", axis, among))


def differences(rows: Sequence[Row], axis: str) -> Spec:
    """Return the difference of each method to the baseline with its interval; to the right is better.

    The rows have `method`, `mean`, `low`, `high`, and as `clear` a key of CLEAR.
    """
    methods = list(dict.fromkeys(row["method"] for row in rows))
    clear = _scaled("clear", list(CLEAR), [colour(name) for name in CLEAR.values()])
    common = {"y": _names("method", methods), "color": clear, "opacity": _emphasis()}
    tooltip = _tooltip(("method", "method"), ("mean", axis), ("low", "from"), ("high", "to"), ("clear", ""))
    zero = _layer("rule", {"x": {"datum": 0}}, data={"values": [{}]}, color=colour("muted"), strokeDash=[3, 3])
    interval = _layer("rule", {"x": _quantity("low", axis), "x2": {"field": "high"}, **common}, strokeWidth=3)
    point = _layer("point", {"x": _quantity("mean", axis), **common, "tooltip": tooltip}, size=70, filled=True)
    intervals = [interval] if any(row["low"] is not None for row in rows) else []  # two seeds have none
    return {**_spec(rows, [zero, *intervals, point]), "height": 28 * len(methods)}


CLEAR = {"better": "better", "worse": "worse", "not clear": "same", "not tested": "same"}
"""Whether a difference is clear or not tested, in words, and the colour of each."""


def mean_against_worst(
    rows: Sequence[Row], front: Sequence[str], series: Sequence[Series], axes: tuple[str, str], *, lower: bool = False
) -> Spec:
    """Return the methods by their mean (x) and by their worst-served clients (y), with the Pareto front as a line.

    The rows have `method`, `mean`, `worst`, and the bounds `mean_low`, `mean_high`, `worst_low` and `worst_high`. Where
    lower is better, the axes are turned, so that better stays to the right and above.
    """
    scale = {"zero": False, "nice": True, "padding": 18, "reverse": lower}
    x, y = (_quantity(field, axis) | {"scale": scale} for field, axis in zip(("mean", "worst"), axes, strict=True))
    better = sorted((row for row in rows if row["method"] in front), key=lambda row: float(row["mean"]))
    line = _layer(
        "line",
        {"x": x, "y": y, "order": {"field": "mean"}},
        data={"values": [{"mean": row["mean"], "worst": row["worst"]} for row in better]},
        color=colour("muted"),
        strokeDash=[4, 3],
        strokeWidth=1.2,
    )
    common = {**_method(series), "opacity": _emphasis()}
    across = {"x": {**x, "field": "mean_low"}, "x2": {"field": "mean_high"}, "y": y, **common}
    upward = {"x": x, "y": {**y, "field": "worst_low"}, "y2": {"field": "worst_high"}, **common}
    tooltip = _tooltip(("method", "method"), ("mean", axes[0]), ("worst", axes[1]))
    points = {"x": x, "y": y, "shape": _shape(series), **common, "tooltip": tooltip}
    layers = [
        line,
        _layer("rule", across, strokeOpacity=0.45),
        _layer("rule", upward, strokeOpacity=0.45),
        _layer("point", points, size=110),
    ]
    placed = _beside(rows, reverse=lower)
    for side in dict.fromkeys(row["side"] for row in placed):
        dx, dy, align = SIDES[side]
        text = {"x": x, "y": y, "text": {"field": "method"}, **common}
        label = _layer("text", text, dx=dx, dy=dy, align=align, fontSize=11, limit=170, clip=False)
        label["transform"] = [{"filter": f"datum.side == '{side}'"}]
        label["mark"]["fillOpacity"] = {"expr": "width < 420 ? 0 : 1"}
        layers.append(label)
    return {**_spec(placed, layers), "height": 340}


SIDES = {
    "right": (11, -8, "left"),
    "left": (-11, -8, "right"),
    "low right": (11, 10, "left"),
    "low left": (-11, 10, "right"),
}
"""Where the label of a point may stand: away from it in x and y, and how it is aligned."""


def heat_map(
    rows: Sequence[Row], clients: Sequence[str], title: str, ends: tuple[float, float], *, reverse: bool = False
) -> Spec:
    """Return a map of clients × rounds with `ends` as the darkest and the brightest value; what has no row is blank."""
    rounds = sorted({row["round"] for row in rows})
    axis = {"values": thin(rounds, 9), "labelAngle": 0}
    x = {"field": "round", "type": "ordinal", "title": "round", "axis": axis}
    return _map(rows, clients, x, "value", title, {"domain": list(ends), "clamp": True, "reverse": reverse})


def counts_map(rows: Sequence[Row], clients: Sequence[str], classes: Sequence[str]) -> Spec:
    """Return who has how many examples of each class; the rows have `client`, `class` and `count`."""
    x = {"field": "class", "type": "nominal", "sort": list(classes), "title": "class", "axis": {"labelAngle": 0}}
    return _map(rows, clients, x, "count", "training examples", {"reverse": True})


def _map(rows: Sequence[Row], clients: Sequence[str], x: Spec, field: str, title: str, scale: Spec) -> Spec:
    """Return a map with a row for each client, in order, and a field as the colour."""
    legend = {"orient": "top", "title": title, "titleLimit": 260, "gradientLength": 140, "gradientThickness": 9}
    band = {"paddingInner": 0, "paddingOuter": 0}
    colours = {"scale": {"scheme": "viridis", **scale}, "legend": legend}  # readable on light, on dark, and in grey
    encoding: Spec = {
        "x": {**x, "scale": band},
        "y": {**_names("client", clients), "scale": band},
        "color": {"field": field, "type": "quantitative", **colours},
        "tooltip": _tooltip(("client", "client"), (x["field"], x["field"]), (field, title)),
    }
    step = min(26, max(9, 320 // max(1, len(clients))))
    return {**_spec(rows, [_layer("rect", encoding)]), "height": step * len(clients)}


PRINTED_AND_MEASURED = (Series("printed", "series-0", "square"), Series("measured", "series-1"))
"""How numbers of a reproduction look."""


NAMES: Spec = {"domain": False, "ticks": False, "labelPadding": 8}
"""An axis of names."""

# Parts of charts ----------------------------------------------------------------------------------------------------


def _spec(rows: Sequence[Row], layers: list[Spec]) -> Spec:
    """Return a specification of layers over the same rows, as wide as the page lets it be."""
    size = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return {**size, "params": [PICKED], "data": {"values": list(rows)}, "layer": layers}


def _layer(mark: str, encoding: Mapping[str, Any], data: Spec | None = None, **look: Any) -> Spec:
    return {**({"data": data} if data else {}), "mark": {"type": mark, **look}, "encoding": dict(encoding)}


def _bands(rows: Sequence[Row], series: Sequence[Series], x: Spec, y: Spec) -> Spec:
    """Return lines in bands over a quantity."""
    band = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, **_method(series)}
    # The band of a method that is not picked vanishes.
    band["fillOpacity"] = {"condition": {"test": EMPHASISED, "value": 0.16}, "value": 0.0}
    labels = [each.label for each in series]
    dashes = _scaled("method", labels, [[5, 3] if each.dashed else [1, 0] for each in series])
    # Where lines coincide, the wider one below shows at both sides of the one above.
    widths = {**_scaled("method", labels, [max(2.8 - 0.4 * i, 1.4) for i in range(len(series))]), "type": "ordinal"}
    line = {"x": x, "y": y, "strokeDash": dashes, "strokeWidth": widths, **_method(series), "opacity": _emphasis()}
    place = (x["field"], x["field"])
    tooltip = _tooltip(("method", "method"), place, ("value", y["title"]), ("low", "from"), ("high", "to"))
    dots = {"x": x, "y": y, "shape": _shape(series), **_method(series), "tooltip": tooltip}
    layers = [
        _layer("area", band, line=False),
        _layer("line", line, interpolate="linear"),
        _layer("point", dots, size=80, opacity=0.0),
    ]
    if all(row["low"] == row["high"] for row in rows):
        del layers[0]
    return {**_spec(rows, layers), "height": 260}


EMPHASISED = "picked == '' || datum.method == picked"
"""Whether a mark is of the method that the page's legend emphasises, or all are."""


def _emphasis() -> Spec:
    return {"condition": {"test": EMPHASISED, "value": 1.0}, "value": 0.12}


def _names(field: str, names: Sequence[str]) -> Spec:
    return {"field": field, "type": "nominal", "sort": list(names), "title": None, "axis": NAMES}


def _scaled(field: str, domain: Sequence[str], looks: Sequence[Any]) -> Spec:
    """Return how marks look by a field; the page has the legend."""
    return {"field": field, "type": "nominal", "scale": {"domain": list(domain), "range": list(looks)}, "legend": None}


def _method(series: Sequence[Series]) -> dict[str, Spec]:
    return {"color": _scaled("method", [each.label for each in series], [colour(each.colour) for each in series])}


def _shape(series: Sequence[Series]) -> Spec:
    return _scaled("method", [each.label for each in series], [each.shape for each in series])


def _quantity(field: str, title: str, among: Sequence[Row] = ()) -> Spec:
    """Return the axis of a field; it reaches from the lowest to the highest of the rows among which it is drawn."""
    scale: Spec = {"zero": False, "nice": True}
    if among:
        scale["domain"] = [min(row["low"] for row in among), max(row["high"] for row in among)]
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def _tooltip(*fields: tuple[str, str]) -> list[Spec]:
    numbers = ("value", "low", "high", "mean", "worst", "rank", "count")
    return [{"field": f, "title": title, **({"format": ".4~g"} if f in numbers else {})} for f, title in fields]


def _beside(rows: Sequence[Row], *, reverse: bool) -> list[dict[str, Any]]:
    """Return the rows with the side of the point at which a label meets the fewest others.

    Lengths are those of a chart 640 wide and 340 high; a narrow one shows no labels.
    """

    def place(row: Row, field: str, width: float) -> float:
        low, high = min(each[f"{field}_low"] for each in rows), max(each[f"{field}_high"] for each in rows)
        part = (row[field] - low) / max(high - low, 1e-12)
        return width * float(1.0 - part if reverse else part)

    points = [(40 + place(row, "mean", 560), 310 - place(row, "worst", 280)) for row in rows]
    boxes: list[Sequence[float]] = []
    found = []
    for row, (left, top) in zip(rows, points, strict=True):
        length = 6.2 * min(len(row["method"]), 27)
        options = []
        for number, (side, (dx, dy, align)) in enumerate(SIDES.items()):
            begin = left + dx if align == "left" else left + dx - length
            box = (begin, top + dy - 6, begin + length, top + dy + 6)
            meets = sum(_overlap(box, other) for other in boxes)
            meets += sum(_overlap(box, (x - 6, y - 6, x + 6, y + 6)) for x, y in points if (x, y) != (left, top))
            outside = box[0] < 0 or box[2] > 640
            options.append((meets + 3 * outside, number, side, box))
        best = min(options)
        boxes.append(best[3])
        found.append({**row, "side": best[2]})
    return found


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


# How charts look ----------------------------------------------------------------------------------------------------

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
"""What pages and charts are set in: fonts that the reader's machine has."""

CONFIG: Spec = {
    "background": None,
    "aria": False,  # the page describes each chart as a whole
    "font": FONT,
    "view": {"stroke": None},
    "title": {"color": colour("ink"), "fontSize": 12, "fontWeight": 600},
    "axis": {
        "labelColor": colour("muted"),
        "titleColor": colour("ink"),
        "gridColor": colour("grid"),
        "domainColor": colour("line"),
        "tickColor": colour("line"),
        "labelFontSize": 11.5,
        "titleFontSize": 12,
        "titleFontWeight": 500,
        "titlePadding": 8,
        "labelOverlap": True,
        "tickCount": 6,
    },
    "legend": {
        "labelColor": colour("muted"),
        "titleColor": colour("ink"),
        "titleFontWeight": 500,
        "labelFontSize": 11,
        "titleFontSize": 11.5,
    },
    "point": {"filled": True, "size": 60, "opacity": 1.0},
}
"""How all charts look."""


def for_paper(*panels: tuple[str, Spec]) -> Spec:
    """Return a specification that stands alone, for a paper: light colours, a legend, a width.

    The panels have a title each; more than one stand in rows of three, with their titles.
    """
    config = {**CONFIG, "font": "sans-serif", "background": "white", "concat": {"columns": 3, "spacing": 24}}
    config["legend"] = {**CONFIG["legend"], "symbolLimit": 0, "labelLimit": 300}
    parts, looks = [], _looks(spec for _, spec in panels)
    for title, spec in panels:
        part = {key: value for key, value in spec.items() if key not in ("autosize", "params")}
        part |= {"width": 520} if len(panels) == 1 else {"width": 190, "title": title}
        few = len(spec["data"]["values"]) <= 240  # so many points of lines are marked
        part["layer"] = [_for_paper(layer, few, looks) for layer in spec["layer"]]
        parts.append(part)
    whole = parts[0] if len(parts) == 1 else {"concat": parts}
    text = json.dumps({"params": [PICKED], **whole, "config": config})
    for name, (light, _) in COLOURS.items():
        text = text.replace(colour(name), light)
    paper: Spec = json.loads(text)
    return paper


def _for_paper(layer: Spec, few: bool, looks: Mapping[str, Mapping[str, Any]]) -> Spec:
    """Return a layer with its legend; a page shows the points of lines under the pointer alone, a figure if few."""
    mark, encoding = layer["mark"], dict(layer["encoding"])
    if few and mark.get("opacity") == 0.0:
        mark = {**mark, "opacity": 1.0, "size": 32}
    for channel, look in looks.items():
        if channel in encoding:
            scale = {"domain": list(look), "range": list(look.values())}
            encoding[channel] |= {"scale": scale, "legend": {"orient": "bottom", "title": None, "columns": 3}}
    return {**layer, "mark": mark, "encoding": encoding}


def _looks(specs: Iterable[Spec]) -> dict[str, dict[str, Any]]:
    """Return by channel how each label looks, over all charts: beside each other they share their legends."""
    found: dict[str, dict[str, Any]] = {}
    for layer in (layer for spec in specs for layer in spec["layer"]):
        for channel, each in layer["encoding"].items():
            if isinstance(each, dict) and each.get("legend", ...) is None:
                found.setdefault(channel, {}).update(zip(each["scale"]["domain"], each["scale"]["range"], strict=True))
    return found
