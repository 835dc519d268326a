"""Table 1 of a study, as clinicians print it: each column at each site, and in all."""

from collections.abc import Mapping

import numpy as np

from fairbloom.text import text_if, three_digits

from .determining import present_values
from .encoding import ColumnValues
from .schema import Field, Schema

SiteRow = Mapping[str | None, str | int]


def table_one(schema: Schema, columns: Mapping[str, Mapping[str, ColumnValues]]) -> list[SiteRow]:
    """Return a row for each number's median and quartiles, and for each category's rows.

    `columns` has the values of each column by site; a row has its cells by site, that of all
    sites together by None. The last cell of a row of numbers has the
    largest difference of a site's median from the others', in interquartile ranges of the others.
    Shares are of the rows with a value; rows without one are counted in a row of their own.
    """
    rows: list[SiteRow] = []
    for name, sites in columns.items():
        field = schema.fields[name]
        own = dict[str | None, ColumnValues](sites.items())
        cells = {None: np.concatenate([*sites.values()]), **own} if sites else own
        present = {at: present_values(values) for at, values in cells.items()}
        counts = {at: len(values) for at, values in cells.items()}
        missing = {at: _share(count - len(present[at]), count) for at, count in counts.items()}
        rows.append({"field": name, "value": "n", **counts})
        rows.append({"field": name, "value": "missing, n (%)", **missing})
        for place, category in enumerate(field.categories):
            having = {
                at: _share(int((values == place).sum()), len(values))
                for at, values in present.items()
            }
            rows.append({"field": name, "value": f"{category}, n (%)", **having})
        if not field.categories:
            rows.append(_of_numbers(name, field, present))
    return rows


def _of_numbers(name: str, field: Field, present: Mapping[str | None, ColumnValues]) -> SiteRow:
    cells: dict[str | None, str | int] = {
        "field": name,
        "value": f"median [25 %, 75 %]{text_if(field.unit, f' ({field.unit})')}",
    }
    apart = 0.0
    for at, values in present.items():
        cells[at] = ""
        if not len(values):
            continue
        low, middle, high = np.percentile(values, [25, 50, 75]).tolist()
        cells[at] = f"{three_digits(middle)} [{three_digits(low)}, {three_digits(high)}]"
        others = [each for site, each in present.items() if site not in (at, None)]
        if len(rest := np.concatenate([values[:0], *others])):
            low, other, high = np.percentile(rest, [25, 50, 75]).tolist()
            apart = max(apart, abs(middle - other) / (high - low) if high > low else 0.0)
    return {**cells, "largest difference, in IQR": f"{apart:.2f}"}


def _share(count: int, total: int) -> str:
    return f"{count:,} ({100 * count / max(total, 1):.1f})"
