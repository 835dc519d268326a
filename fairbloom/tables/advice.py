"""Say what a finding means, and the line that a person may paste."""

from fairbloom.text import join_first, text_if, three_digits

from .cells import format_number, parse_number
from .comparison import Finding
from .toml import quote, write_key

# Names of sites, and of categories, that a sentence lists.
SHOWN = 3

# Significant digits of a conversion.
DIGITS = 6


def say(finding: Finding) -> str:
    """Return what stands out, without the sites and the column."""
    value = three_digits(finding.value)
    rows = f"{finding.rows:,} rows"
    words = join_first([repr(word) for word in finding.words], SHOWN)
    known = ", or ".join(dict.fromkeys(way.about for way in finding.explained_by))
    match finding.kind:
        case "missing":
            shares = f"{finding.value:.0%} of its rows have no value, and {finding.elsewhere:.0%}"
            return f"{shares} of the others' have none"
        case "numbers":
            told = f"median {value}, and {three_digits(finding.elsewhere)} elsewhere"
            other = "another quantity, another unit, or other people"
            return f"{told}: {text_if(known, f'it looks like {known}') or other}"
        case "categories":
            told = f"its categories, {words}, are frequent at no other site"
            return f"{told}{text_if(known, f': it looks like {known}')}"
        case "lacking":
            return f"it lacks {words}, which the others have"
        case "spelling":
            return f"{finding.words[0]!r} may be a spelling of {finding.words[1]!r}"
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


def propose(finding: Finding, file: str) -> tuple[str, str]:
    """Return the heading of a schema and the line below it that a finding proposes; "" for none.

    `file` is the site's key under `files`.
    """
    name = write_key(finding.field)
    of_field = f"[fields.{name}]"
    of_site = f"[files.{quote(file)}]"
    match finding.kind:
        case "numbers" if finding.explained_by:
            back = finding.explained_by[0].inverse()
            offset = text_if(back.offset, f", offset = {back.offset:.{DIGITS}g}")
            return of_site, f"fields.{name} = {{factor = {back.factor:.{DIGITS}g}{offset}}}"
        case "categories" if finding.explained_by:
            return of_site, f"fields.{name}.spellings = {{{_spell_codes(finding)}}}"
        case "spelling":
            text, usual = finding.words
            return of_field, f"spellings = {{{write_key(usual)} = [{quote(text)}]}}"
        case "one-value":
            (value,) = finding.words
            no = "no" if parse_number(value) is None else "0"
            categories = f"categories = [{quote(no)}, {quote(value)}]"
            return of_field, f'{categories}\nspellings = {{{write_key(no)} = [""]}}'
        case "far" | "negative" | "zero":
            return of_field, f"missingValues = [{quote(format_number(finding.value))}]"
    return "", ""


def _spell_codes(finding: Finding) -> str:
    """Return the spelling of each code as the others have it."""
    back = finding.explained_by[0].inverse()
    pairs = []
    for code in finding.words:
        usual = (parse_number(code) or 0.0) * back.factor + back.offset
        pairs.append(f"{quote(format_number(round(usual, DIGITS)))} = [{quote(code)}]")
    return ", ".join(pairs)
