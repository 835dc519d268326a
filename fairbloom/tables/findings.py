"""What a finding is: who stands out in a field, how that is said, and what a person may change."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self

from fairbloom.text import join_first, text_if

from .cells import format_number, parse_number
from .conversions import Conversion
from .schema import EVERY_FILE, Field, FileField
from .toml import quote, write_key, write_table, write_value

# Names of sites, and of categories, that a sentence lists.
SHOWN = 3

# When lines are right that nothing else is said of.
IF_SO = "if so"

# Significant digits of a conversion.
DIGITS = 6


@dataclass(frozen=True)
class Change:
    """What a person may write, in one of several ways: keys of a field, or of a site's field.

    `file` is the key of the site's table under `files`, "" for the field of all. The values in
    `ways` are written as TOML.
    """

    field: str
    file: str
    ways: Sequence[Mapping[str, str]]

    @property
    def heading(self) -> str:
        """The table that the lines belong to."""
        return f"[files.{quote(self.file)}]" if self.file else f"[fields.{write_key(self.field)}]"

    @property
    def lines(self) -> list[list[str]]:
        """The lines of each way."""
        return [[*self._write(way)] for way in self.ways]

    def _write(self, way: Mapping[str, str]) -> Iterator[str]:
        before = f"fields.{write_key(self.field)}." if self.file else ""
        for key, value in way.items():
            yield f"{before}{key} = {value}"

    def __str__(self) -> str:
        """Return the ways in a sentence."""
        return " or ".join(f"{' and '.join(way)} under {self.heading}" for way in self.lines)


@dataclass(frozen=True)
class Finding(ABC):
    """A way in which sites stand out in a field; each kind is a class.

    Attributes
    ----------
    kind
        A word for tables.
    is_of_missing
        Whether it is about the share of rows without a value: a page draws these shares.
    field
        The column.
    sites
        The sites that stand out; where they are as many as the rest, all.
    size
        How far they stand out, in multiples of the limit; findings are ranked by it.
    others
        The other side: the sites for which nothing is proposed.
    """

    kind: ClassVar[str]
    is_of_missing: ClassVar[bool] = False

    field: str
    sites: tuple[str, ...]
    size: float = 1.0
    _: KW_ONLY
    others: tuple[str, ...] = ()

    @property
    def odd(self) -> tuple[str, ...]:
        """The sites that the proposed lines are for."""
        return tuple(site for site in self.sites if site not in self.others)

    @property
    def condition(self) -> str:
        """When the proposed lines are right, for a sentence."""
        return IF_SO

    @abstractmethod
    def say(self) -> str:
        """Return what stands out, without the sites and the column."""

    def change_field(self) -> Mapping[str, str]:
        """Return the keys that the field of all may get, with their values as TOML."""
        return {}

    def change_site(self, about: Field) -> Sequence[Mapping[str, str]]:
        """Return the ways to say how the site has the field: keys with their values as TOML."""
        del about
        return ()

    def propose(self, about: Field, file: str) -> Change | None:
        """Return what a person may change in the schema, or say of the site's files.

        `about` is the field, and `file` the site's key under `files`, "" for none.
        """
        of_field = self.change_field()
        if of_field:
            return Change(self.field, "", [of_field])
        ways = self.change_site(about)
        return Change(self.field, file, ways) if file and ways else None

    def change_own(self, about: Field) -> FileField:
        """Return the spellings and markers that a device's owner may add to owner.toml.

        `about` is the field; without a schema, a number. A category that it lacks is for all sites,
        and no line of an owner.
        """
        del about
        return FileField()

    def propose_own(self, about: Field, own: FileField) -> Change | None:
        """Return what a device's owner may say of all its files in owner.toml.

        `own` has its present lines: a new one repeats their values, as it goes in their place.
        """
        added = self.change_own(about)
        lines = write_added(own, added)
        return Change(self.field, EVERY_FILE, [lines]) if lines else None


class Quiet(Finding):
    """A finding that is not ranked; `has` says what its sites are or have, before fields."""

    has: ClassVar[str]


@dataclass(frozen=True)
class Explained(Finding):
    """A finding that conversions may explain.

    They go from the others' numbers, or codes, into the site's, the most usual first. The sites are
    one of two sides, if `if_as` names the other one: the schema may be as either has it. Some of
    them may have a factor already, if they are `mended`.
    """

    explained_by: tuple[Conversion, ...] = ()
    if_as: tuple[str, ...] = ()
    mended: bool = False

    @property
    def condition(self) -> str:
        """When the proposed lines are right, for a sentence."""
        factor = text_if(self.mended and self.explained_by, " (times a factor that is there)")
        if not self.if_as:
            return f"{IF_SO}{factor}"
        for way in self.explained_by[:1]:
            if way.unit and way.other:
                return f"if the schema is in {way.other}{factor}"
        return f"if the schema is as at {join_first(self.if_as, SHOWN)}{factor}"

    def turn(self, sites: Sequence[str], columns: Sequence[Collection[str]]) -> Self:
        """Return it as a finding about the other side, of these sites.

        `columns` has the values that each of them lists.
        """
        del columns
        ways = tuple(way.inverse() for way in self.explained_by)
        return replace(self, sites=tuple(sites), others=(), explained_by=ways)

    @property
    def has_line(self) -> bool:
        """Whether it proposes anything."""
        return bool(self.explained_by)

    @property
    def looks_like(self) -> str:
        """The conversions as a sentence; "" without one."""
        ways = [*dict.fromkeys(way.about for way in self.explained_by)]
        return text_if(ways, f"it looks like {join_first(ways, SHOWN)}")

    def convert(self, codes: Sequence[str], about: Field) -> Sequence[Mapping[str, str]]:
        """Return the ways in which the site's numbers, or its `codes`, become the others'."""
        return [_convert(codes, about, way) for way in self.explained_by[:SHOWN]]


def _convert(codes: Sequence[str], about: Field, way: Conversion) -> dict[str, str]:
    back = way.inverse()
    if about.categories:
        spellings: dict[str, list[str]] = {}
        for code in sorted(codes):
            number = parse_number(code) or 0.0
            usual = back.offset + back.factor * number
            spellings[format_number(round(usual, DIGITS))] = [code]
        return {"spellings": write_table(spellings, quote)}
    keys = {"factor": f"{back.factor:.{DIGITS}g}"}
    if back.offset:
        keys["offset"] = f"{back.offset:.{DIGITS}g}"
    return keys


def say_and_propose(finding: Finding, about: Field, files: Mapping[str, str]) -> str:
    """Return what stands out, and the lines that a person may paste into the schema, if any.

    `about` is the field, and `files` has each site's key under `files`; none if one file has the
    rows of all.
    """
    keys = [files[site] for site in finding.odd if site in files]
    change = finding.propose(about, keys[-1] if keys else "")
    said = _join(finding, change)
    if change is None or not change.file or len(keys) == 1:
        return said
    also = join_first([f"[files.{quote(key)}]" for key in keys[:-1]], SHOWN)
    return f"{said}, and the same under {also}"


def say_and_propose_own(finding: Finding, about: Field, own: FileField) -> str:
    """Return what stands out, and the lines that a device's owner may paste into owner.toml."""
    return _join(finding, finding.propose_own(about, own))


def join_own(own: FileField, added: FileField) -> FileField:
    """Return what an owner says of a column with further spellings and markers, or a unit."""
    spellings = dict(own.spellings)
    for name, texts in added.spellings.items():
        spellings[name] = tuple(dict.fromkeys((*spellings.get(name, ()), *texts)))
    markers = tuple(dict.fromkeys((*own.missingValues, *added.missingValues)))
    unit = added.unit or own.unit
    stated = {"unit": unit, "spellings": spellings, "missingValues": markers}
    return FileField.model_validate({key: value for key, value in stated.items() if value})


def write_added(own: FileField, added: FileField) -> dict[str, str]:
    """Return the keys of what is added as TOML, with what the owner says already."""
    joined = join_own(own, added)
    return {key: write_value(getattr(joined, key)) for key in sorted(added.model_fields_set)}


def _join(finding: Finding, change: Change | None) -> str:
    return f"{finding.say()}; {finding.condition}, say {change}" if change else finding.say()


def join_words(words: Sequence[str]) -> str:
    """Return categories for a sentence."""
    return join_first([repr(word) for word in words], SHOWN)


def spell(categories: Sequence[str]) -> str:
    """Return spellings of categories, for a person to fill in."""
    return write_table({each: [] for each in categories})
