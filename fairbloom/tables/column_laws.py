"""Draft a column: what its cells say of its field, by one law after the other.

A law gets the column and its draft so far, and returns the next one. The first that leaves the
column out is the last.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fairbloom.text import join_first, plural, text_if

from .ages import Ages, find_ages
from .cells import CODE, WITH_UNIT, find_sign, parse_number, shorten, sort_classes
from .code_signs import CODED, find_code_signs
from .comparison import compare
from .encoding import ColumnValues, explain_cell, is_unknown, measure_moments
from .findings import SHOWN, Explained, join_words
from .flags import find_flags
from .grammar import are_numbers
from .identifiers import (
    NAMED,
    NEVER,
    Judgement,
    Reason,
    are_too_many,
    judge_numbers,
    judge_texts,
    nearly_all_differ,
)
from .missing_words import may_mean_missing
from .profiles import ColumnProfile
from .reasons import MAX_FAULTS, DataError
from .schema import MAX_CATEGORIES, Field, fold, fold_cell, fold_look
from .scripts import show_script
from .site_names import names_the_site
from .survey import Column
from .toml import Note, quote, write_line

# A number with a leading 0, as codes have.
PADDED = re.compile(r"0[0-9]+")

# A target with more distinct whole numbers is a quantity, unless csv.kind is set.
MAX_NUMBERED_CLASSES = 100

# Different values of a column of numbers and other texts that may be categories.
MAX_MIXED = 20

# Share of rows with a text, above which the texts among numbers are categories, and no faults.
MIXED_SHARE = 0.05

# Different whole numbers that may be codes: few of them, or many that leave most numbers between
# them out, and have this many rows each on average.
MAX_FEW = 20
CODE_DENSITY = 0.45  # even numbers have 0.5
CODE_ROWS = 10

# Truth values of programs and spreadsheets, which other sites may write as numbers.
BOOLEANS = {"true", "false", "wahr", "falsch", "vrai", "faux", "vero", "falso", "verdadero"}

# A code with a letter, among others that are numbers: V45.81 of ICD-9.
LETTERED = re.compile(r"[A-Z][0-9]{1,3}(\.[0-9]+)?")

# The key of a field above which a line stands that a person may uncomment.
SUGGESTED = "missing"

# The key at which a question on codes stands.
CODES = ("categories",)

# Of two numbers, codes and amounts are the same input; a target has two classes.
TWO = 2

# Share of a target's rows up to which words for a missing value are no class, and of a site's rows
# up to which what only this site has is not a class; the latter takes FEWEST_SITES.
FEW_OF_CLASS = 0.2
RARE = 0.05
FEWEST_SITES = 3


@dataclass(frozen=True)
class ColumnDraft:
    """A column of a draft, as far as the laws have come.

    Attributes
    ----------
    name
        The column.
    target
        What the target is to be, a value of csv.kind; "" for any other column.
    is_number
        Whether the column has numbers.
    judgement
        Whether it seems to name persons, rows or dates.
    keys
        The keys of the field.
    notes
        Notes on the field, by the key that they stand at, () for the field itself.
    left_out
        Why the column is left out; None if it is a field.
    """

    name: str
    target: str = ""
    is_number: bool = False
    judgement: Judgement = field(default_factory=Judgement)
    keys: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[tuple[tuple[str, ...], Note], ...] = ()
    left_out: Reason | None = None

    def say(self, *texts: str) -> "ColumnDraft":
        """Return it with further comments above the field."""
        return self.note((), *map(Note, texts))

    def note(self, at: tuple[str, ...], *notes: Note) -> "ColumnDraft":
        """Return it with further notes on a key of the field."""
        return replace(self, notes=(*self.notes, *((at, each) for each in notes)))

    def ask(self, *texts: str) -> "ColumnDraft":
        """Return it with further questions above the field."""
        return self.note((), *[Note(text, asks=True) for text in texts])

    def state(self, **keys: Any) -> "ColumnDraft":
        """Return it with further keys of the field."""
        return replace(self, keys={**self.keys, **keys})


@dataclass(frozen=True, eq=False)
class Drafted:
    """A field of a draft: its column, the field, its values by it, and notes by its keys."""

    column: Column
    field: Field
    values: ColumnValues
    notes: tuple[tuple[tuple[str, ...], Note], ...]

    def say(self, text: str) -> "Drafted":
        """Return it with a further comment above the field."""
        return replace(self, notes=(*self.notes, ((), Note(text))))

    def ask(self, text: str) -> "Drafted":
        """Return it with a further question above the field."""
        return replace(self, notes=(*self.notes, ((), Note(text, asks=True))))

    def ask_about_names(self) -> "Drafted":
        """Return it with the question whether its numbers are names, unless it is asked already."""
        if any(note.asks and at[:1] == CODES for at, note in self.notes):
            return self
        kept = tuple((at, note) for at, note in self.notes if at != (SUGGESTED,))
        question = (CODES, ask_about_codes("its numbers act as names, not as amounts", self.column))
        return replace(self, notes=(*kept, question))


def draft_column(name: str, column: Column, target: str = "") -> Drafted | Reason:
    """Return the field that a column suggests, or why it is left out.

    `target` is the kind of target that it is to be, "" for any other column. Raise DataError if it
    cannot be one.
    """
    drafted = ColumnDraft(name, target)
    for law in LAWS:
        drafted = law(column, drafted)
        if drafted.left_out is not None:
            return drafted.left_out
    about = Field(**drafted.keys)
    values = column.encode(about)
    drafted = drafted.say(*_announce(column, drafted, about, values))
    return Drafted(column, about, values, drafted.notes)


# Which columns are fields -------------------------------------------------------------------------


def leave_out_of_few_sites(column: Column, drafted: ColumnDraft) -> ColumnDraft:
    """Leave out what at most half of the sites have."""
    having = column.having
    sites = column.sites.names
    if drafted.target or 2 * len(having) > len(sites) or len(having) == len(sites):
        return drafted
    said = f"only at {join_first(having, SHOWN)}" if having else "lists, bytes or other values"
    return replace(drafted, left_out=Reason(said, of_it=False))


def leave_out_names_of_sites(column: Column, drafted: ColumnDraft) -> ColumnDraft:
    """Leave out a column of which each of several sites has one value, which no other one has."""
    if drafted.target or np.count_nonzero(column.counts) > 1 + len(column.sites.names):
        return drafted
    held = [*filter(None, column.texts_of_sites())]
    different = {text for texts in held for text in texts}
    if not len(held) == len(different) == sum(map(len, held)) > 1:
        return drafted
    return replace(drafted, left_out=Reason("says only which site a row is of"))


def leave_out_identifiers(column: Column, drafted: ColumnDraft) -> ColumnDraft:
    """Leave out what names persons or dates, and what numbers the rows of some sites only."""
    if drafted.target:
        return drafted
    if drafted.is_number:
        judgement = judge_numbers(drafted.name, column)
    else:
        judgement = judge_texts(column)
    left_out = judgement.ignored
    if column.lacking:
        left_out = judgement.unused or left_out
    return replace(drafted, judgement=judgement, left_out=left_out)


def say_who_lacks_it(column: Column, drafted: ColumnDraft) -> ColumnDraft:
    """Say which sites do not have a column that most have."""
    lacking = column.lacking
    return drafted.say(f"not at {join_first(lacking, SHOWN)}") if lacking else drafted


def say_what_it_may_name(_: Column, drafted: ColumnDraft) -> ColumnDraft:
    """Numbers of rows are no input; other numbers that all differ are a question."""
    unused = drafted.judgement.unused
    if unused is not None:
        drafted = drafted.say(f"{unused}: no input of the model; input = true makes it one")
        drafted = drafted.state(input=False)
    remark = drafted.judgement.remark
    return drafted.ask(remark) if remark else drafted


def ask_about_site(column: Column, drafted: ColumnDraft) -> ColumnDraft:
    """Ask of a column with values of one site only whether it tells the site of a row."""
    if drafted.target or not names_the_site(column):
        return drafted
    return drafted.ask(
        "nearly each value is of one site only, which tells the site of a row: if so, put"
        f" {quote(drafted.name)} in ignore in place of this field; if sites write the same in other"
        " words, say spellings"
    )


# Numbers or categories ----------------------------------------------------------------------------


def tell_numbers(column: Column, drafted: ColumnDraft) -> ColumnDraft:
    """Tell columns of numbers from columns of texts."""
    return replace(drafted, is_number=_is_number(drafted.name, column))


def _is_number(name: str, column: Column) -> bool:
    """Return whether a column holds numbers, a few of which may have faults.

    Texts among numbers are categories if there are few, and they are no exceptions (K, 1, 2, 3); or
    else the column is what most cells at half of the sites are.
    """
    odd = {text: count for text, count in column.odd_counts.items() if not may_mean_missing(text)}
    if not odd:
        return bool((~np.isnan(column.numbers) & (column.counts > 0)).any())
    if all(map(LETTERED.fullmatch, odd)) and len(odd) > 1 and find_signs_of_codes(name, column):
        return False
    numbers, counts = column.number_counts
    are_written = are_numbers(odd, len(numbers)) or _find_flags(column) or _find_ages(column)
    if are_written and not NAMED.fullmatch(name):
        return True
    signs = {text: find_sign(text) for text in odd}
    units = {fold(_unit_of(text)) for text, sign in signs.items() if sign == "unit"}
    bounds = {text[0] for text, sign in signs.items() if sign == "bound"}
    are_codes = any(PADDED.fullmatch(text) for text in column.texts.values())
    of_names = {
        "": True,
        "range": True,
        "unit": len(units) > 1 or are_codes,  # as in 0 no, 1 yes; and in 01, 23, 7p
        "bound": len(bounds) > 1 and not len(numbers),  # as in <60, ≥60
    }
    names = {text for text, sign in signs.items() if of_names.get(sign)}
    if not names:
        return True
    is_repeated = min([*odd.values(), *counts.tolist()]) > 1
    rows = sum(odd[text] for text in names)
    total = sum(odd.values()) + int(counts.sum())
    is_usual = rows >= MIXED_SHARE * total or all(signs[text] == "range" for text in names)
    if len(odd) + len(numbers) <= MAX_MIXED and is_repeated and is_usual:
        return False
    gaps = {text for text in column.odd_counts if may_mean_missing(text)}
    is_near = ~np.isnan(column.numbers[column.codes]) | column.rows_of(odd.keys() - names)
    present = column.sites.count(column.is_present & ~column.rows_of(gaps))
    filled = present > 0
    are_near = 2 * column.sites.count(is_near) > present
    return bool(2 * are_near[filled].sum() >= filled.sum())


def _unit_of(text: str) -> str:
    found = WITH_UNIT.fullmatch(text)
    return found["unit"] if found else ""


# Numbers ------------------------------------------------------------------------------------------


def draft_numbers(column: Column, drafted: ColumnDraft) -> ColumnDraft:
    """Draft a column of numbers, some of which may be codes."""
    if drafted.target or not drafted.is_number:
        return drafted
    drafted = _state_numbers(column, drafted)
    if drafted.judgement.unused:
        return drafted
    shown = find_signs_of_codes(drafted.name, column)
    if shown:
        drafted = drafted.note(CODES, ask_about_codes(shown, column))
    elif may_be_codes(drafted.name, column):
        for line in _write_codes(column):
            comment = Note(f"{line}  # for codes: uncomment this line", is_line=True)
            drafted = drafted.note((SUGGESTED,), comment)
    codes = [text for text in column.odd_counts if CODE.fullmatch(text)]
    question = "is read as a number: if it is a code, list all in categories"
    return drafted.ask(*[f"{text!r} {question}" for text in codes])


def find_signs_of_codes(name: str, column: Column) -> str:
    """Return what shows that numbers are codes, by their name and how they are written."""
    if NEVER.fullmatch(name):
        return ""
    found = "by its name, its numbers are codes" if CODED.fullmatch(name) else ""
    for table in column.sites.tables:
        values = None if found else table.find(table.column_name(name))
        if values is not None:
            signs = find_code_signs(values)
            if signs.is_padded:
                found = "zeros are before other digits, as in codes"
            elif signs.has_widths:
                found = "some decimals end with 0 and others are shorter, as in codes"
    # the different numbers are counted last: it takes long
    return text_if(found and len(column.number_counts[0]) > TWO, found)


def ask_about_codes(shown: str, column: Column) -> Note:
    """Return the question whether numbers are codes, with the lines for it; `shown` says why."""
    lines = _write_codes(column)
    if not lines:
        many = (
            f"{shown}: if so, they are too many for categories: write groups, or put it in ignore"
        )
        return Note(many, asks=True)
    return Note(shown, asks=True, lines=lines)


def _write_codes(column: Column) -> tuple[str, ...]:
    """Return the lines that make categories of numbers; () for too many of them.

    Spellings of one number, such as 001 and 1, are one category, unless a site has both.
    """
    counts = column.text_counts
    if not counts or len(counts) > MAX_CATEGORIES:
        return ()
    alike: dict[float | str, list[str]] = {}
    for text in sorted(counts, key=lambda each: (-len(each), each)):
        number = parse_number(text)
        alike.setdefault(text if number is None else number, []).append(text)
    several = [texts for texts in alike.values() if len(texts) > 1]
    of_sites = column.texts_of_sites() if several else []
    merged: Counter[str] = Counter(counts)
    spellings: dict[str, tuple[str, ...]] = {}
    for usual, *others in several:
        if all(len({usual, *others} & texts.keys()) <= 1 for texts in of_sites):
            merged[usual] = sum(counts[text] for text in (usual, *others))
            spellings[usual] = tuple(others)
            for text in others:
                del merged[text]
    about = Field(**{"spellings": spellings, **_categorise(merged)})
    keys = ("categories", "spellings")
    return tuple(write_line(about, key) for key in keys if getattr(about, key))


def _state_numbers(column: Column, drafted: ColumnDraft) -> ColumnDraft:
    """State the flags behind numbers, or the usual unit if each of them has one, and markers."""
    drafted = drafted.state(type="number")
    units = Counter(_unit_of(text) for text in column.odd_counts if not may_mean_missing(text))
    ages = _find_ages(column)
    if ages is not None:
        shown = " and ".join(map(repr, ages.others))
        drafted = drafted.state(unit=ages.unit).say(f"ages: {shown} are read in years")
        if len(column.number_counts[0]):
            drafted = drafted.ask("numbers without a unit are read as years: are they?")
    elif flags := _find_flags(column):
        question = Note("left out: is each a flag, and no unit?", behind=True, asks=True)
        drafted = drafted.state(flags=flags).note(("flags",), question)
    elif units and "" not in units and not len(column.number_counts[0]):
        drafted = drafted.state(unit=units.most_common(1)[0][0])
    return _state_gaps(column, drafted)


def _state_gaps(column: Column, drafted: ColumnDraft) -> ColumnDraft:
    """State the words among numbers that may mean a missing value, and ask whether they do."""
    gaps = sorted({text.casefold() for text in column.odd_counts if may_mean_missing(text)})
    if drafted.target or not gaps:  # in a target they are faults
        return drafted
    question = f"read as missing values: {join_words(gaps)}; is that what they mean?"
    drafted = drafted.state(missingValues=gaps)
    return drafted.note(("missingValues",), Note(question, behind=True, asks=True))


def _find_flags(column: Column) -> list[str]:
    """Return the flags at numbers, as in 5.1 H and L 3.0; [] of units."""
    texts = [text for text in column.odd_counts if not may_mean_missing(text)]
    if not texts:  # the numbers of most columns need not be counted, which takes long
        return []
    return find_flags(texts, len(column.number_counts[0]))


def _find_ages(column: Column) -> Ages | None:
    """Return the units of ages, as in 045Y and 018M; None of one unit."""
    texts = [text for text in column.odd_counts if not may_mean_missing(text)]
    if not texts:
        return None
    return find_ages(texts, len(column.number_counts[0]))


def may_be_codes(name: str, column: Column) -> bool:
    """Return whether whole numbers may be codes: they are few, far between, or begin with a 0."""
    is_whole = np.isnan(column.numbers) | (column.numbers == np.round(column.numbers))
    if column.odd_counts or NEVER.fullmatch(name) or not is_whole.all():
        return False
    numbers, counts = column.number_counts
    if not 2 <= len(numbers) <= MAX_CATEGORIES or numbers[0] < 0.0:
        return False
    if len(numbers) <= MAX_FEW or any(re.match("0[0-9]", text) for text in column.text_counts):
        return True
    others = numbers[numbers != 0.0]  # a 0 often means something else
    are_far_between = len(others) < CODE_DENSITY * (others[-1] - others[0])
    are_frequent = counts.sum() >= CODE_ROWS * len(numbers)
    return bool(are_far_between and are_frequent and counts.max() < counts.sum() / 2)


# Categories ---------------------------------------------------------------------------------------


def draft_texts(column: Column, drafted: ColumnDraft) -> ColumnDraft:
    """Draft a column of texts: its categories, with other spellings of them."""
    if drafted.target or drafted.is_number:
        return drafted
    texts = column.text_counts
    odd = {fold_cell(text) for text in column.odd_counts if not may_mean_missing(text)}
    if odd <= BOOLEANS and len(column.number_counts[0]):  # True may mean 1
        sites = dict(zip(column.sites.names, column.texts_of_sites(), strict=True))
        strange = _find_strange(sites, "categories")
        drafted = drafted.say(*_ask_for_spellings(strange, "categories"))
        texts = _add(sites, strange)
    drafted = drafted.state(**_categorise(texts)).ask(*_ask_about_scripts(texts))
    return drafted.note(CODES, *_ask_about_gaps(texts, drafted.keys))


def _ask_about_gaps(
    texts: Counter[str], keys: Mapping[str, Any], fewest: int = 1
) -> Iterator[Note]:
    """Yield a question on the categories that may mean a missing value; `keys` are the field's.

    If fewer than `fewest` others are left, no line answers it.
    """
    gaps = [text for text in texts if may_mean_missing(text)]
    rest = Counter({text: count for text, count in texts.items() if text not in gaps})
    count = texts.total() - rest.total()
    rows = plural(count, "1 row", f"{count} rows")
    shown = f"{join_words(gaps)} may mean a missing value, in {rows}"
    if gaps and len({*map(fold_cell, rest)}) >= fewest:
        about = Field(**{**_categorise(rest), "type": keys["type"], "missingValues": gaps})
        lines = [write_line(about, key) for key in ("categories", "missingValues")]
        if "spellings" in keys:
            lines.insert(1, write_line(about, "spellings"))
        yield Note(shown, asks=True, lines=tuple(lines))
    elif gaps:
        yield Note(f"{shown}: if they do, leave such rows out, or correct them", asks=True)


def _find_strange(sites: Mapping[str, Counter[str]], part: str) -> list[str]:
    """Return the sites that share no text with the others, or have moved codes."""
    codes = {site: ColumnProfile(counts.total(), {}, counts) for site, counts in sites.items()}
    moved = [
        each.sites[-1]
        for each in compare({part: codes})
        if isinstance(each, Explained) and each.explained_by
    ]
    return [*_find_unlinked(sites), *moved]


def _find_unlinked(sites: Mapping[str, Counter[str]]) -> list[str]:
    """Return the sites that share no class with the others, directly or by way of other sites."""
    looks = {text: fold_look(text) for text in set().union(*sites.values())}
    sets = {
        site: frozenset(map(looks.__getitem__, texts)) for site, texts in sites.items() if texts
    }
    kinds = Counter(sets.values())
    known = set(kinds.most_common(1)[0][0])
    for _ in kinds:  # then all that are linked by shared classes
        known |= set().union(*(kind for kind in kinds if kind & known))
    if len(known) < 2:  # sites of one class each
        return []
    return [site for site, each in sets.items() if not each & known]


def _ask_for_spellings(strange: list[str], part: str) -> Iterator[str]:
    """Yield a comment that names the sites with other texts; `part` says what the texts are."""
    if strange:
        use = plural(len(strange), "uses", "use")
        yield f"{join_first(strange, MAX_FAULTS)} {use} other {part}: map them in spellings"


def _add(sites: Mapping[str, Counter[str]], strange: list[str]) -> Counter[str]:
    """Return the number of rows of each text at the sites that are not strange."""
    usual = (counts for site, counts in sites.items() if site not in strange)
    return sum(usual, Counter[str]())


def _categorise(texts: Counter[str]) -> dict[str, Any]:
    """Return the keys of a field of categories; texts that are alike are one."""
    alike = _find_alike(texts)
    names = sort_classes([spellings[0] for spellings in alike])
    of_numbers = bool(names) and all(re.fullmatch("[0-9]+", name) for name in names)
    keys: dict[str, Any] = {"type": "integer" if of_numbers else "string", "categories": names}
    several = sorted(spellings for spellings in alike if len(spellings) > 1)
    if several:
        keys["spellings"] = {name: others for name, *others in several}
    return keys


def _find_alike(texts: Counter[str]) -> list[list[str]]:
    """Return the texts that are alike if folded, or by the look of their letters, as groups.

    The most frequent of a group is its first.
    """
    groups: list[list[str]] = []
    known: dict[str, list[str]] = {}
    for text in sorted(texts, key=lambda each: (-texts[each], each)):
        keys = (fold_cell(text), fold_look(text))
        group = next((known[key] for key in keys if key in known), [])
        if not group:
            groups.append(group)
        group.append(text)
        known |= dict.fromkeys(keys, group)
    return groups


def _ask_about_scripts(texts: Counter[str]) -> Iterator[str]:
    """Yield a question on the texts that are one by the look of their letters."""
    for usual, *others in _find_alike(texts):
        looks = [show_script(text) for text in others if fold_cell(text) != fold_cell(usual)]
        if looks:
            shown = join_first(looks, SHOWN)
            yield f"{shown} looks like {show_script(usual)}, and is read as it: are they one?"


# The target ---------------------------------------------------------------------------------------


def draft_quantity(column: Column, drafted: ColumnDraft) -> ColumnDraft:
    """Draft a target that is a quantity, in units of its deviation around its mean."""
    if not drafted.target:
        return drafted
    if not column.is_present.any():
        raise _no_target(drafted.name, "has no value")
    is_quantity = drafted.target == "auto" and drafted.is_number and _is_quantity(column)
    if drafted.target != "regression" and not is_quantity:
        return drafted
    numbers = column.numbers[column.codes]
    center, scale = measure_moments(numbers[~np.isnan(numbers)]) or (0.0, 1.0)
    return _state_numbers(column, drafted).state(center=center, scale=scale or 1.0)


def _is_quantity(column: Column) -> bool:
    """Return whether the numbers of a target are too many for classes, or no whole ones."""
    numbers = column.number_counts[0]
    are_whole = (numbers == np.round(numbers)) & (np.abs(numbers) < 2**53)
    return len(numbers) > MAX_NUMBERED_CLASSES or not are_whole.all()


def draft_classes(column: Column, drafted: ColumnDraft) -> ColumnDraft:
    """Draft a target with classes; say which sites have only classes that no other has."""
    if not drafted.target or drafted.keys:
        return drafted
    texts_of_sites = dict(zip(column.sites.names, column.texts_of_sites(), strict=True))
    faulty: set[str] = set()
    if drafted.target == "auto" and drafted.is_number:
        faulty = {*column.odd_counts}
    total = _without(column.text_counts, faulty)
    odd = faulty | _find_odd_classes(texts_of_sites, total)
    sites = {site: _without(texts, odd) for site, texts in texts_of_sites.items()}
    classes = _add(sites, [])
    if _are_no_classes(sites, len(classes)):
        raise _no_target(
            drafted.name,
            f"has {len(classes):,} different values in {classes.total():,} rows, which are no"
            " classes",
        )
    if len({*map(fold_cell, classes)}) < 2:
        shown = repr(next(iter(classes or column.odd_counts), ""))
        or_so = text_if(faulty, " or so")
        raise _no_target(drafted.name, f"is {shown}{or_so} in each row: there is nothing to learn")
    strange = _find_strange(sites, "class names")
    usual = _add(sites, strange)
    drafted = drafted.say(*_ask_for_spellings(strange, "class names"))
    drafted = drafted.state(**_categorise(usual)).ask(*_ask_about_scripts(usual))
    return drafted.note(CODES, *_ask_about_gaps(usual, drafted.keys, TWO))


def _find_odd_classes(sites: Mapping[str, Counter[str]], total: Counter[str]) -> set[str]:
    """Return the texts that are faults of a target, and not classes; `total` counts all.

    They are words that may mean a missing value, and what one of several sites has in few rows
    while all other classes are at two sites or more.
    """
    words = {text for text in total if may_mean_missing(text)}
    rest = _without(total, words)
    if sum(total[text] for text in words) > FEW_OF_CLASS * total.total() or len(rest) < TWO:
        words = set()
        rest = total
    few = [text for text in rest if rest[text] <= RARE * rest.total()]
    if len(sites) < FEWEST_SITES or not few:  # most targets: no site is looked at
        return words
    having: dict[str, list[str]] = {}
    for site, counts in sites.items():
        for text in counts.keys() & rest.keys():
            having.setdefault(text, []).append(site)
    spelled = Counter(map(fold_look, rest))
    of_one: dict[str, list[str]] = {}
    for text, holders in having.items():
        is_alone = len(holders) == 1 and spelled[fold_look(text)] == 1
        if is_alone and parse_number(text) is None:
            of_one.setdefault(holders[0], []).append(text)
    rare: set[str] = set()
    for site, texts in of_one.items():
        if sum(rest[text] for text in texts) <= RARE * sites[site].total():
            rare.update(texts)
    usual = [text for text in rest if text not in rare]
    are_shared = all(len(having[text]) > 1 or spelled[fold_look(text)] > 1 for text in usual)
    return words | rare if len(usual) >= TWO and are_shared else words


def _without(counts: Counter[str], texts: set[str]) -> Counter[str]:
    return Counter({text: count for text, count in counts.items() if text not in texts})


def _are_no_classes(sites: Mapping[str, Counter[str]], different: int) -> bool:
    """Return whether a target's texts are too many, or differ in nearly every row of a site."""
    rows = 0
    for counts in sites.values():
        of_site = counts.total()
        rows += of_site
        if nearly_all_differ(len(counts), of_site) and _has_texts(counts):
            return True
    if different > MAX_NUMBERED_CLASSES:
        return True
    return are_too_many(different, rows) and any(map(_has_texts, sites.values()))


def _has_texts(cells: Iterable[str]) -> bool:
    return any(parse_number(text) is None for text in cells)


def _no_target(name: str, problem: str) -> DataError:
    return DataError(f"the target, column {name!r}, {problem}: name the right column by csv.target")


# Faults -------------------------------------------------------------------------------------------


def _announce(
    column: Column, drafted: ColumnDraft, about: Field, values: ColumnValues
) -> Iterator[str]:
    """Yield a comment for each kind of cells, or each category, that is a fault by the draft."""
    is_target = bool(drafted.target)

    def explain(entry: int, file: str) -> tuple[str, str]:
        decimal = column.marks[entry].decimal
        return explain_cell(column.texts[entry], drafted.name, about, is_target, decimal, file)

    kinds: dict[tuple[str, str], list[int]] = {}
    for entry in np.unique(column.codes[is_unknown(values)]).tolist():
        problem, _ = explain(entry, "")
        kinds.setdefault((problem, text_if(about.categories, column.texts[entry])), []).append(
            entry
        )
    for (problem, text), entries in kinds.items():
        rows = np.isin(column.codes, entries)
        count = int(rows.sum())
        having = column.sites.having(rows)
        _, remedy = explain(entries[0], column.sites.table_of(having[0]).file.key)
        cells = plural(count, "1 cell", f"{count} cells")
        others = text_if(len(entries) > 1 and not text, " and the like")
        yield (
            f"{join_first(having, MAX_FAULTS)}: {shorten(column.texts[entries[0]])!r}{others} in"
            f" {cells}, {problem}: {remedy}"
        )


# What is said of a column, in this order.
LAWS = (
    leave_out_of_few_sites,
    leave_out_names_of_sites,
    tell_numbers,
    say_who_lacks_it,
    leave_out_identifiers,
    draft_quantity,
    draft_classes,
    draft_numbers,
    draft_texts,
    say_what_it_may_name,
    ask_about_site,
)
