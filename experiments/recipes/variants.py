"""The methods of a comparison, each with its parameters: fedavg, qfedavg(q=1), my_module:Mine(share=0.3)."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fairbloom.protocol.parameters import Parameter
from fairbloom.protocol.settings import SETTINGS, Mark, SettingsError, Value, key_of, parsed
from fairbloom.server.settings import parameters
from fairbloom.strategies import FairStrategy, canonical, find_method, name_of

from .labels import format_value, label_of, short_key, title

COMMON = {key: setting for key, setting in SETTINGS.items() if Mark.VARIANT in setting.marks}
"""The settings of every method that a variant may have of its own."""

LONGEST_NAME = 100
"""The most characters of a run folder's name before its seed; file systems take 255."""


@dataclass(frozen=True)
class Variant:
    """A method with the parameters that it has in a comparison, next to the settings that all runs share."""

    method: str
    given: Mapping[str, Value] = field(default_factory=dict)  # by run-config keys, in the order of its signature
    all_parameters: Mapping[str, Value | None] = field(default_factory=dict)  # also the common ones; given or default
    label: str = ""

    @property
    def config(self) -> dict[str, Value]:
        """What a run config has of it."""
        return {"method": self.method, **self.given}

    @property
    def folder_name(self) -> str:
        """A name for its run folders that every file system takes: `qfedavg-q=1`.

        It depends on nothing but the variant. Where characters had to give way, a digest tells it from others.
        """
        words = [self.method, *(f"{short_key(key)}={format_value(value)}" for key, value in self.given.items())]
        exact = "-".join(words)
        plain = exact.replace(":", "-", 1)
        odd = any(re.search(r"[^\w.]", value, re.ASCII) for value in self.given.values() if isinstance(value, str))
        safe = re.sub(r"[^\w.=+-]", "-", plain, flags=re.ASCII)[:LONGEST_NAME]
        if safe == plain and not odd:
            return safe
        return f"{safe}-{hashlib.sha256(exact.encode()).hexdigest()[:8]}"

    def is_same(self, other: "Variant") -> bool:
        """Return whether both say the same, one perhaps by a default."""
        return (self.method, self.all_parameters) == (other.method, other.all_parameters)


Named = str | type[FairStrategy]
"""A method by its name, perhaps with parameters, or by its class."""


def variants(words: Named | Iterable[Named], shared: Mapping[str, Value] | None = None) -> list[Variant]:
    """Return the methods that words name, each once, with labels that tell them apart.

    "fedavg, qfedavg(q=1), my_module:Mine(share=0.3)" names three; a class stands for its name. No method may set what
    `shared` has.
    """
    texts = [name_of(each) for each in ([words] if isinstance(words, str | type) else words)]
    found: list[Variant] = []
    for text in (part for each in texts for part in split_parts(each)):
        variant = variant_of(text)
        for key in variant.given:
            if shared and key in shared:
                raise SettingsError(f"{key} is given twice, in {text} and for all methods: give it in one place")
        if not any(variant.is_same(other) for other in found):
            found.append(variant)
    if not found:
        said = ", ".join(texts)
        raise SettingsError(f"methods = {said!r} names no method: write them as in fedavg,qfedavg(q=1)")
    return _labelled(found)


def settings_of_method(method: Named | None, config: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return a run's method and its parameters, as in qfedavg(q=1), as settings; none without a method."""
    if method is None:
        return {}
    found = variants([method], config)
    if len(found) > 1:
        raise SettingsError(f"method = {method!r}: a run has one method; fairbloom compare --methods takes several")
    return found[0].config


def variant_of(text: str) -> Variant:
    """Return the method that one of the words names; see `variants`."""
    match = re.fullmatch(r"([^\s(),=]+)\s*(?:\((.*)\))?", text.strip(), re.DOTALL)
    if match is None:
        raise SettingsError(f"methods: {text!r} is no method with parameters: write it as in qfedavg(q=1)")
    method = canonical(match[1])
    known = method_parameters(method)
    given: dict[str, Value] = {}
    for assignment in split_parts(match[2] or ""):
        name, equals, value = (part.strip() for part in assignment.partition("="))
        if not equals and given:
            *_, (last, first) = given.items()
            raise SettingsError(
                f"{text}: {assignment!r} has no name: write each parameter with its value, as in qfedavg(q=1); "
                f"fairbloom sweep --method {method} --grid {short_key(last)}={format_value(first)},{assignment} tries "
                "several values of one"
            )
        if not equals or not value:
            raise SettingsError(f"{text}: write {assignment!r} as a parameter with its value, as in qfedavg(q=1)")
        key = _key(name, text, title(method), known)
        if key in given:
            raise SettingsError(f"{text}: {name} is given twice: give it once")
        given[key] = {**known, **COMMON}[key].checked(parsed(value))
    return make_variant(method, given, title(method))


def make_variant(method: str, given: Mapping[str, Value], label: str) -> Variant:
    """Return a method with what is given of its parameters, by their run-config keys."""
    defaults = {key: each.default for key, each in {**method_parameters(method), **COMMON}.items()}
    return Variant(method, {key: given[key] for key in defaults if key in given}, {**defaults, **given}, label)


def baseline_of(name: str, among: Sequence[Variant]) -> str:
    """Return the label of the variant that a name means; without a name that of FedAvg, or the first."""
    if not name:
        plain = [variant for variant in among if variant.method == "fedavg"]
        return min(plain or among[:1], key=lambda variant: len(variant.given)).label
    by_label = [variant.label for variant in among if variant.label.casefold() == name.strip().casefold()]
    wanted = None if by_label else variant_of(name)
    same = by_label or [variant.label for variant in among if wanted and variant.is_same(wanted)]
    if not same:
        there = ", ".join(variant.label for variant in among)
        raise SettingsError(f"baseline = {name!r} is not among the methods: there are {there}")
    return same[0]


def config_of(variant: Variant, among: Sequence[Variant], config: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of a variant's runs: those that all share but for parameters of the others, and its own."""
    others = {owner_of(other.method) for other in among} - {owner_of(variant.method)}
    return {key: value for key, value in config.items() if key.partition(".")[0] not in others} | variant.config


def folder_names(among: Sequence[Variant]) -> dict[str, str]:
    """Return the beginnings of the run folders' names, by label; a digest separates names that differ in case."""
    names = {variant.label: variant.folder_name for variant in among}
    folded = [name.casefold() for name in names.values()]
    return {
        label: name if folded.count(name.casefold()) == 1 else f"{name}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        for label, name in names.items()
    }


def owner_of(method: str) -> str:
    """Return what the keys of a method's parameters begin with."""
    return find_method(method).__name__.lower()


def method_parameters(method: str) -> Mapping[str, Parameter]:
    """Return the parameters of a method by their run-config keys."""
    return {key: each for key, each in parameters(methods=[method]).items() if each.owner == owner_of(method)}


def find_key(name: str, known: Iterable[str]) -> str | None:
    """Return the one of these run-config keys that a name means: as in Python, as a setting, or with its method."""
    return next((key for key in known if key_of(name) in (key, short_key(key))), None)


def _key(name: str, text: str, method: str, known: Mapping[str, Parameter]) -> str:
    """Return the run-config key of a parameter of a variant."""
    key = find_key(name, known) or find_key(name, COMMON)
    if key is not None:
        return key
    if key_of(name) in SETTINGS:
        raise SettingsError(
            f"{text}: {key_of(name)} is the same for all methods of a comparison, as clients and draws are then: set "
            f"it for all by --set {key_of(name)}=…; methods may differ in {', '.join(COMMON)}"
        )
    there = ", ".join(map(short_key, known)) or "none of its own"
    raise SettingsError(f"{text}: {method} has no parameter {name}; there are {there}, and for all {', '.join(COMMON)}")


def _labelled(found: Sequence[Variant]) -> list[Variant]:
    """Return the variants with labels; classes of one name are distinguished by their modules."""
    labelled = []
    for variant in found:
        alike = {other.method for other in found if title(other.method) == title(variant.method)}
        name = title(variant.method) if len(alike) == 1 else variant.method
        labelled.append(replace(variant, label=label_of(name, variant.given)))
    return labelled


def split_parts(text: str) -> list[str]:
    """Return the parts of a text between commas outside parentheses and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    if depth or quote:
        raise SettingsError(f"methods = {text!r}: a parenthesis or quote is open at one end: write fedavg,qfedavg(q=1)")
    return [part.strip() for part in parts if part.strip()]
