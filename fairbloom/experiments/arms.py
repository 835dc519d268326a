"""Arms of a study: methods with their own settings, written as qfedavg(q=1)."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.settings import Settings
from fairbloom.strategies import FairStrategy, name_of
from fairbloom.strategies.named import (
    format_value,
    method_options,
    parse_method,
    short_key,
    split_parts,
    title,
)

# The methods that are compared by default: those that docs/which_method.py recommends to try.
METHODS = "fedavg,feddyn,qfedavg,fedfv,ditto,local"

# Those that are compared by default in a Flower app: `fair` has what they ask of clients.
APP_METHODS = "fedavg,qfedavg,fedfv"

# The most characters of a run folder's name before its seed; file systems take 255.
LONGEST_NAME = 100


@dataclass(frozen=True)
class Arm:
    """A method with its own settings, which are added to those that all runs of a study share."""

    label: str  # in tables: `QFedAvg (q=1)`
    method: str  # as in settings
    settings: Mapping[str, Value] = field(default_factory=dict)  # its own, by their run-config keys
    evaluated: Literal["global", "personal"] = "global"  # the models that are judged
    # in a reproduction, the name of its row; the row's other arms are other points of its grid
    row: str = ""

    @property
    def config(self) -> dict[str, Value]:
        """Its part of a run config."""
        return {"method": self.method, **self.settings}

    @property
    def folder(self) -> str:
        """A name for its run folders that is valid in every file system: `qfedavg-q=1`.

        It depends only on the arm. A digest distinguishes it from others if characters were
        replaced, or if it has upper case, which some file systems ignore.
        """
        exact = "-".join(
            (
                self.method,
                *(
                    f"{short_key(key)}={format_value(value)}"
                    for key, value in self.settings.items()
                ),
            )
        )
        plain = exact.replace(":", "-", 1)
        odd = any(
            isinstance(value, str) and re.search(r"[^\w.]|[A-Z]", value, re.ASCII)
            for value in self.settings.values()
        )
        safe = re.sub(r"[^\w.=+-]", "-", plain, flags=re.ASCII)[:LONGEST_NAME]
        if safe == plain and not odd:
            return safe
        return f"{safe}-{hashlib.sha256(exact.encode()).hexdigest()[:8]}"

    def is_same(self, other: "Arm") -> bool:
        """Return whether both have the same settings, including defaults."""
        if self.method != other.method:
            return False
        defaults = {key: option.default for key, option in method_options(self.method).items()}
        return {**defaults, **self.settings} == {**defaults, **other.settings}


# A method by its name, perhaps with parameters, or by its class.
Named = str | type[FairStrategy]


def parse_arms(
    words: Named | Iterable[Named], shared: Mapping[str, Value] | None = None
) -> list[Arm]:
    """Return the methods that words name, each once, with distinct labels.

    "fedavg, qfedavg(q=1), my_module:Mine(share=0.3)" names three; a class can replace its name. No
    method may set a key of `shared`.
    """
    if isinstance(words, str | type):
        words = [words]
    texts = [name_of(word) for word in words]
    found: list[Arm] = []
    for text in [part for whole in texts for part in split_parts(whole)]:
        arm = make_arm(*parse_method(text))
        twice = [key for key in arm.settings if key in (shared or {})]
        if twice:
            raise SettingsError(
                f"{twice[0]} is given twice, in {text} and for all methods: give it in one place"
            )
        if not any(arm.is_same(other) for other in found):
            found.append(arm)
    if not found:
        raise SettingsError(
            f"methods = {', '.join(texts)!r} names no method: write them as in fedavg,qfedavg(q=1)"
        )
    return label_arms(found)


def settings_of_method(method: Named | None, config: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return a run's method and its parameters, as in qfedavg(q=1), as settings; {} without one."""
    if method is None:
        return {}
    found = parse_arms([method], config)
    if len(found) > 1:
        raise SettingsError(
            f"method = {method!r}: a run has one method; fairbloom compare --methods takes several"
        )
    return found[0].config


def make_arm(method: str, given: Mapping[str, Value]) -> Arm:
    """Return a method with its own settings, its parameters first, in their order."""
    ordered = {key: given[key] for key in (*method_options(method), *given) if key in given}
    return Arm(label_of(title(method), ordered), method, ordered)


def baseline_of(name: str, among: Sequence[Arm]) -> str:
    """Return the label of the arm with a name; by default of FedAvg, or else of the first arm."""
    if not name:
        plain = [arm for arm in among if arm.method == "fedavg"]
        return min(plain or among[:1], key=lambda arm: len(arm.settings)).label
    for arm in among:
        if arm.label.casefold() == name.strip().casefold():
            return arm.label
    wanted = make_arm(*parse_method(name))
    for arm in among:
        if arm.label == wanted.label or arm.is_same(wanted):
            return arm.label
    raise SettingsError(
        f"baseline = {name!r} is not among the methods: there are"
        f" {', '.join(arm.label for arm in among)}"
    )


def find_label(method: Named, labels: Sequence[str]) -> str | None:
    """Return the label of a method: as tables print it, or as it is written for a comparison.

    A name without parameters also finds the only label of that method. None if no label
    fits, or several do.
    """
    name = name_of(method).strip()
    folded = {label.casefold(): label for label in labels}
    if name.casefold() in folded:
        return folded[name.casefold()]
    try:
        wanted = make_arm(*parse_method(name))
    except FairbloomError:  # no method; it may be a part of a label
        return None
    alike = [label for label in labels if label.startswith(f"{wanted.label} (")]
    if wanted.label in labels:
        return wanted.label
    return alike[0] if len(alike) == 1 and not wanted.settings else None


def label_arms(found: Sequence[Arm]) -> list[Arm]:
    """Return arms with distinct labels: classes with the same name get their modules."""
    counts = Counter(map(title, {arm.method for arm in found}))
    names = {
        arm.method: title(arm.method) if counts[title(arm.method)] == 1 else arm.method
        for arm in found
    }
    return [replace(arm, label=label_of(names[arm.method], arm.settings)) for arm in found]


# Names in tables ----------------------------------------------------------------------------------


def label_of(name: str, given: Mapping[str, Value]) -> str:
    """Return a name with parameters for tables: `QFedAvg (q=1)`."""
    words = []
    for key, value in given.items():
        text = format_value(value)
        plain = re.fullmatch(r"[\w.+:/-]*", text)
        words.append(f"{short_key(key)}={text if plain else json.dumps(text)}")
    return f"{name} ({', '.join(words)})" if words else name


def fitting(arms: Sequence[Arm], shared: Mapping[str, Value]) -> list[Arm]:
    """Return the first of a study's arms, and the others that can be run with the shared settings.

    Those that cannot be run are logged. Raise SettingsError if the first one cannot.
    """
    first, *others = arms
    Settings.of({**shared, **first.config})
    found = [first]
    for arm in others:
        try:
            Settings.of({**shared, **arm.config})
        except SettingsError as error:
            log.warning("%s is left out: %s", arm.label, error)
        else:
            found.append(arm)
    return found
