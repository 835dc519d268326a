"""The page of profiles: a picture of each field in which sites stand out, with a line to paste."""

from collections import Counter
from collections.abc import Mapping, Sequence

from fairbloom.tables.comparison import Profiles, quantiles_of
from fairbloom.tables.findings import Finding, Quiet
from fairbloom.tables.profiles import ColumnProfile
from fairbloom.text import join_first, plural, text_if

from ..render.page import Cell, Chart, Charts, Note, Page, Section, Table
from .charts import Row, boxes, shares, short

# Sites of a picture: those that stand out come first.
MAX_SITES = 12

# Fields with a picture; the others have a row in a table.
MAX_PICTURES = 12

# Values of a picture; the rest are one.
MAX_VALUES = 7


def profiles_page(
    fields: Mapping[str, Profiles], findings: Sequence[Finding], advice: Sequence[str]
) -> Page:
    """Return the page of the profiles of sites, by field.

    `advice` has a sentence for each of the findings, with the lines that a person may paste.
    """
    ranked = [each for each in findings if not isinstance(each, Quiet)]
    names = [*dict.fromkeys(each.field for each in ranked)]
    sections: list[Section] = []
    for name in names[:MAX_PICTURES]:
        about = [place for place, each in enumerate(findings) if each.field == name]
        sentences = [f"{join_first(findings[k].sites)}: {advice[k]}" for k in about]
        of_field = [each for each in ranked if each.field == name]
        apart = [*dict.fromkeys(site for each in of_field for site in each.sites)]
        of_missing = all(each.is_of_missing for each in of_field)
        chart = _picture(name, fields[name], apart, of_missing)
        sections.append(Section(f"field-{len(sections)}", name, "", [Note(sentences), chart]))
    rest = [name for name in fields if name not in names[:MAX_PICTURES]]
    if rest:
        remarks = {
            name: [
                f"{join_first(each.sites, 3)}: {each.say()}"
                for each in findings
                if each.field == name
            ]
            for name in rest
        }
        rows = [
            [Cell(name), Cell.of(len(fields[name])), Cell("; ".join(said))]
            for name, said in remarks.items()
        ]
        sections.append(
            Section(
                "others",
                "All other fields",
                "",
                [Table("others", "Fields without a picture", ["field", "sites", "remark"], rows)],
            )
        )
    sites = {site for columns in fields.values() for site in columns}
    return Page(
        "Profiles of the sites",
        f"In {len(names)} of {len(fields)} fields some sites stand out.",
        [
            "Sites differ by nature: a site stands out if it is farther from the rest than the"
            " other sites are from each other. What is said is advice, and blocks no site."
        ],
        [("sites", f"{len(sites):,}"), ("fields", f"{len(fields):,}")],
        sections,
    )


def _picture(name: str, columns: Profiles, apart: Sequence[str], of_missing: bool) -> Charts:
    """Return sites one below the other, those that stand out first."""
    ordered = [*dict.fromkeys([*(site for site in apart if site in columns), *columns])]
    sites = ordered[:MAX_SITES]
    title = name + text_if(len(ordered) > len(sites), f" ({len(sites)} of {len(ordered)} sites)")
    if of_missing or not any(column.quantiles for column in columns.values()):
        spec = shares(_shares(columns, sites, of_missing), sites, "share of the rows")
    else:
        keys = ("low", "lower", "value", "upper", "high")  # at 5, 25, 50, 75 and 95 %
        rows = [
            {"site": site, "apart": site in apart}
            | dict(zip(keys, map(short, quantiles_of(columns[site])[[0, 2, 3, 4, 6]]), strict=True))
            for site in sites
        ]
        spec = boxes(rows, sites, name)
    about = f"{title} by site; {join_first(apart, 3)} {plural(len(apart), 'stands', 'stand')} out"
    return Charts([Chart(f"picture-{name}", title, about, spec)])


def _shares(columns: Profiles, sites: Sequence[str], of_missing: bool) -> list[Row]:
    """Return the share of the rows of each value at each site, of rare ones together."""
    counts = {site: _count(columns[site], of_missing) for site in sites}
    totals = sum(map(Counter, counts.values()), Counter[str]())
    named = [text for text, _ in totals.most_common(MAX_VALUES)]
    return [
        {"site": site, "text": text, "value": short(count / max(sum(held.values()), 1))}
        for site, held in counts.items()
        for text, count in {
            **{text: held.get(text, 0) for text in named},
            "others": sum(count for text, count in held.items() if text not in named),
        }.items()
        if count
    ]


def _count(column: ColumnProfile, of_missing: bool) -> dict[str, int]:
    if of_missing:
        return {"no value": column.empty, "a value": column.rows - column.empty}
    return {**column.values, "not listed": column.others}
