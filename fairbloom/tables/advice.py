"""Say what a finding means, and the line that a person may paste."""

from collections.abc import Mapping, Sequence

from fairbloom.text import join_first, text_if, three_digits

from .cells import format_number, parse_number
from .comparison import Finding
from .conversions import Conversion
from .schema import Field
from .toml import quote, write_key

# Names of sites, and of categories, that a sentence lists.
SHOWN = 3

# Between lines of one proposal.
NEXT = "\n"

# Significant digits of a conversion.
DIGITS = 6

# What stands out, by kind.
SENTENCES = {
    "missing": "{share:.0%} of its rows have no value, and {others:.0%} elsewhere",
    "numbers": "median {value}, and {elsewhere} elsewhere: {cause}",
    "categories": "its categories, {words}, are other ones{known}",
    "lacking": "it lacks {words}, which the others have",
    "spelling": "{first!r} may be a spelling of {last!r}",
    "name": "its column {words} may be this one",
    "one-value": "it is {words} or nothing, in {rows} rows: does nothing mean no?",
    "far": "{code} in {rows} rows, far from the others",
    "negative": "{code} in {rows} rows, and no other number is negative",
    "zero": "0 in {rows} rows, and no other number is near it: it may mean a missing value",
    "two-units": "it seems to be in two units, one {value} times the other: write it in one",
    "exclusive": "it is never filled where {words} is: they may be one column",
    "untold": "too few rows to compare",
    "absent": "it has no such column",
}


def say_and_propose(finding: Finding, about: Field, files: Mapping[str, str]) -> str:
    """Return what stands out, and the lines that a person may paste into the schema, if any.

    `about` is the field, and `files` has each site's key under `files`; none if one file has the
    rows of all.
    """
    proposed = propose(finding, about, files.get(finding.sites[-1], ""))
    lines = [f"{line.replace(NEXT, ' and ')} under {heading}" for heading, line in proposed]
    return say(finding) + text_if(lines, f"; if so, say {' or '.join(lines)}")


def say(finding: Finding) -> str:
    """Return what stands out, without the sites and the column."""
    ways = join_first([*dict.fromkeys(way.about for way in finding.explained_by)], SHOWN)
    known = text_if(ways, f": it looks like {ways}")
    return SENTENCES[finding.kind].format(
        share=finding.value,
        others=finding.elsewhere,
        value=three_digits(finding.value),
        elsewhere=three_digits(finding.elsewhere),
        code=format_number(finding.value),
        rows=f"{finding.rows:,}",
        words=join_first([repr(word) for word in finding.words], SHOWN),
        first=next(iter(finding.words), ""),
        last=next(reversed(finding.words), ""),
        known=known,
        cause=known[2:] or "another quantity, another unit, or other people",
    )


def propose(finding: Finding, about: Field, file: str) -> list[tuple[str, str]]:
    """Return lines of a schema that a finding proposes, each way of them below its heading.

    `file` is the site's key under `files`, "" for none.
    """
    name = write_key(finding.field)
    of_field = f"[fields.{name}]"
    of_site = f"[files.{quote(file)}]"
    match finding.kind:
        case "categories" if file and not finding.explained_by:
            # Of two sites, each may be the one that is to change.
            own = finding.words if len(finding.sites) == 1 else ()
            usual = [each for each in about.categories if each not in own]
            return [(of_site, f"fields.{name}.spellings = {spell(usual or ['USUAL'])}")]
        case "numbers" | "categories" if file:
            return [
                (of_site, f"fields.{name}{_convert(finding, about, way)}")
                for way in finding.explained_by[:SHOWN]
            ]
        case "spelling":
            text, other = finding.words
            return [(of_field, f"spellings = {{{write_key(other)} = [{quote(text)}]}}")]
        case "name" if file:
            return [(of_site, f"fields.{name}.name = {quote(finding.words[0])}")]
        case "one-value":
            (value,) = finding.words
            no = "no" if parse_number(value) is None else "0"
            categories = f"categories = [{quote(no)}, {quote(value)}]"
            lines = NEXT.join([categories, f'spellings = {{{write_key(no)} = [""]}}'])
            return [(of_field, lines)] * (value != no)
        case "far" | "negative" | "zero":
            return [(of_field, f"missingValues = [{quote(format_number(finding.value))}]")]
    return []


def spell(categories: Sequence[str]) -> str:
    """Return spellings of categories, for a person to fill in."""
    return f"{{{', '.join(f'{write_key(each)} = []' for each in categories)}}}"


def _convert(finding: Finding, about: Field, way: Conversion) -> str:
    """Return how a site's numbers, or its codes, become the others'."""
    back = way.inverse()
    if not about.categories:
        offset = f"{NEXT}fields.{write_key(finding.field)}.offset = {back.offset:.{DIGITS}g}"
        return f".factor = {back.factor:.{DIGITS}g}{text_if(back.offset, offset)}"
    pairs = []
    for code in sorted(finding.words):
        usual = (parse_number(code) or 0.0) * back.factor + back.offset
        pairs.append(f"{quote(format_number(round(usual, DIGITS)))} = [{quote(code)}]")
    return f".spellings = {{{', '.join(pairs)}}}"
