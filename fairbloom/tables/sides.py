"""For whom a line is proposed: the sites that may have to change, each of two sides its own."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from .comparison import Profiles
from .findings import Explained, Finding
from .schema import Field, fold


def settle(
    findings: Iterable[Finding],
    fields: Mapping[str, Profiles],
    right: Collection[str] = (),
    schema: Mapping[str, Field] = {},
) -> Iterator[Finding]:
    """Yield findings, each about the sites that may have to change.

    A schema has one unit. So of two sides each has its own line, the inverse of the other's, which
    says when it is the right one; and the sites that are read by the schema have none because of
    others that are not. If that does not decide, the field's unit does, where a conversion names
    it.

    Parameters
    ----------
    findings
        What stands out.
    fields
        The profiles of each field by site.
    right
        The sites that are read by the schema.
    schema
        The fields of the schema, as far as they are known.
    """
    for finding in findings:
        if not isinstance(finding, Explained) or not (finding.odd and finding.has_line):
            yield finding
            continue
        columns = fields[finding.field]
        rest = finding.others or tuple(site for site in columns if site not in finding.sites)
        turned = finding.turn(rest, [columns[site].values for site in rest])
        is_right = not {*finding.odd}.isdisjoint(right)
        rest_is_right = not {*rest}.isdisjoint(right)
        if is_right == rest_is_right and finding.field in schema:
            unit = fold(schema[finding.field].unit)
            is_right = unit in {fold(way.unit) for way in finding.explained_by} - {""}
            rest_is_right = unit in {fold(way.other) for way in finding.explained_by} - {""}
        settled = [replace(finding, sites=finding.odd, others=())]
        if is_right and not rest_is_right:
            settled = [turned]
        elif finding.others and is_right == rest_is_right:
            settled = [
                replace(settled[0], if_as=finding.others),
                replace(turned, if_as=finding.odd),
            ]
        for each in settled:
            yield replace(each, mended=not {*each.odd}.isdisjoint(right))
