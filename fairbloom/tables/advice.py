"""Say what a finding means, and the line that a person may paste."""

from collections.abc import Mapping

from fairbloom.text import join_first, text_if, three_digits

from .cells import format_number, parse_number
from .comparison import Finding
from .conversions import Conversion
from .schema import Field
from .toml import quote, write_key

# Names of sites, and of categories, that a sentence lists.
SHOWN = 3

# Significant digits of a conversion.
DIGITS = 6


def say_and_propose(finding: Finding, about: Field, files: Mapping[str, str]) -> str:
    """Return what stands out, and the lines that a person may paste into the schema, if any.

    `about` is the field, and `files` has each site's key under `files`; none if one file has the
    rows of all.
    """
    lines = propose(finding, about, files.get(finding.sites[-1], ""))
    return say(finding) + text_if(lines, f"; if so, say {' or '.join(lines)}")


def say(finding: Finding) -> str:
    """Return what stands out, without the sites and the column."""
    value = three_digits(finding.value)
    rows = f"{finding.rows:,} rows"
    words = join_first([repr(word) for word in finding.words], SHOWN)
    known = join_first([*dict.fromkeys(way.about for way in finding.explained_by)], SHOWN)
    match finding.kind:
        case "missing":
            elsewhere = f"{finding.elsewhere:.0%} elsewhere"
            return f"{finding.value:.0%} of its rows have no value, and {elsewhere}"
        case "numbers":
            told = f"median {value}, and {three_digits(finding.elsewhere)} elsewhere"
            other = "another quantity, another unit, or other people"
            return f"{told}: {text_if(known, f'it looks like {known}') or other}"
        case "categories":
            told = f"its categories, {words}, are not those of the others"
            return f"{told}{text_if(known, f': it looks like {known}')}"
        case "lacking":
            return f"it lacks {words}, which the others have"
        case "spelling":
            return f"{finding.words[0]!r} may be a spelling of {finding.words[1]!r}"
        case "name":
            return f"its column {words} may be this one"
        case "one-value":
            return f"it is {words} or nothing, in {rows}: does nothing mean no?"
        case "far":
            return f"{format_number(finding.value)} in {rows}, far from the others"
        case "negative":
            return f"{format_number(finding.value)} in {rows}, and no other number is negative"
        case "zero":
            return f"0 in {rows}, and no other number is near it: it may mean a missing value"
        case "two-units":
            return f"it seems to be in two units, one {value} times the other: write it in one"
        case "exclusive":
            return f"it is never filled where {words} is: they may be one column"
        case "untold":
            return "too few rows to compare"
    raise AssertionError(finding.kind)


def propose(finding: Finding, about: Field, file: str) -> list[str]:
    """Return the lines of a schema that a finding proposes, each with its heading.

    `file` is the site's key under `files`, "" for none.
    """
    name = write_key(finding.field)
    of_field = f"under [fields.{name}]"
    match finding.kind:
        case "categories" if file and not finding.explained_by:
            own = quote(finding.words[0])
            return [f"fields.{name}.spellings = {{USUAL = [{own}]}} under [files.{quote(file)}]"]
        case "numbers" | "categories" if file:
            return [
                f"fields.{name}{_convert(finding, about, way)} under [files.{quote(file)}]"
                for way in finding.explained_by[:SHOWN]
            ]
        case "spelling":
            text, usual = finding.words
            return [f"spellings = {{{write_key(usual)} = [{quote(text)}]}} {of_field}"]
        case "name" if file:
            own = quote(finding.words[0])
            return [f"fields.{name} = {{name = {own}}} under [files.{quote(file)}]"]
        case "one-value":
            (value,) = finding.words
            no = "no" if parse_number(value) is None else "0"
            categories = f"categories = [{quote(no)}, {quote(value)}]"
            return [f'{categories} and spellings = {{{write_key(no)} = [""]}} {of_field}']
        case "far" | "negative" | "zero":
            return [f"missingValues = [{quote(format_number(finding.value))}] {of_field}"]
    return []


def _convert(finding: Finding, about: Field, way: Conversion) -> str:
    """Return how a site's numbers, or its codes, become the others'."""
    back = way.inverse()
    if not about.categories:
        offset = text_if(back.offset, f", offset = {back.offset:.{DIGITS}g}")
        return f" = {{factor = {back.factor:.{DIGITS}g}{offset}}}"
    pairs = []
    for code in finding.words:
        usual = (parse_number(code) or 0.0) * back.factor + back.offset
        pairs.append(f"{quote(format_number(round(usual, DIGITS)))} = [{quote(code)}]")
    return f".spellings = {{{', '.join(pairs)}}}"
