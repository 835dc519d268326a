"""Which clients took part in far fewer rounds than the others, and what kept them away."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fairbloom.errors import MAX_LISTED

from .csv_rows import ABSENT, parse_absent
from .files import COEFFICIENTS, ROUNDS

# The kinds of absence of a client that was asked, and was not used; by the others it was not asked.
UNUSED = ("refused", "missing")

# A client is rare if its absences cost it more than this share of its rounds, and if it took part
# in fewer than this share of the rounds that the others did.
RARE = 0.5


@dataclass(frozen=True)
class Attendance:
    """In how many rounds of a run an update of a client was used, and why it was not in others.

    `absent` counts rounds by their kind, one of ABSENT. A round in which the client was merely not
    drawn is in neither.
    """

    client: str
    rounds: int
    used: int
    absent: Mapping[str, int]

    @property
    def rate(self) -> float:
        """The share of its rounds that its absences left it, from 0 to 1.

        It is the share of rounds in which it could be asked, times that of its messages with a used
        reply. How often it was drawn is not in it.
        """
        unused = sum(self.absent.get(kind, 0) for kind in UNUSED)
        away = sum(self.absent.values()) - unused
        answered = self.used / (self.used + unused) if self.used + unused else 1.0
        return (1.0 - away / self.rounds) * answered

    def __str__(self) -> str:
        kinds = [kind for kind in ABSENT if kind in self.absent]
        reasons = ", ".join(f"{kind} in {self.absent[kind]}" for kind in kinds)
        return f"{self.client} took part in {self.used} of {self.rounds} rounds ({reasons})"


def describe_rare(folder: Path, training: Collection[str]) -> list[str]:
    """Return a sentence, without its full stop, on each client that took part far less than others.

    Of many such clients, MAX_LISTED are named. `training` has the clients that train, none for all.
    """
    found = find_rare(read_attendance(folder, training))
    more = len(found) - MAX_LISTED
    sentences = [str(each) for each in found[:MAX_LISTED]]
    if more > 0:
        sentences.append(f"{more} more clients took part in so few rounds ({ROUNDS.name} says why)")
    return sentences


def find_rare(attendances: Sequence[Attendance]) -> list[Attendance]:
    """Return the clients that took part far less than the median of the others, fewest first."""
    counts = sorted(each.used for each in attendances)
    rarely = [each for each in attendances if each.rate < RARE]
    usual = {used: _median_without(counts, used) for used in {each.used for each in rarely}}
    found = [each for each in rarely if each.used < RARE * usual[each.used]]
    return sorted(found, key=lambda each: (each.used, each.client))


def _median_without(counts: Sequence[int], one: int) -> float:
    """Return the median of sorted counts without one of them, 0 if no other is there."""
    place = counts.index(one)
    others = [*counts[:place], *counts[place + 1 :]]
    return median(others) if others else 0.0


def read_attendance(folder: Path, training: Collection[str] = ()) -> list[Attendance]:
    """Return the attendance of each client that a run folder names, of those in `training` if any.

    Without absences there is nothing to tell, and the list is empty.
    """
    rounds = ROUNDS.read(folder)
    absent = [
        {name: kind for kind in reversed(ABSENT) for name in parse_absent(row, kind)}
        for row in rounds
    ]
    if not any(absent) or not COEFFICIENTS.exists_in(folder):
        return []
    used: dict[str, set[str]] = defaultdict(set)
    for row in COEFFICIENTS.read(folder):
        used[row["client"]].add(row["round"])
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for row, by_name in zip(rounds, absent, strict=True):
        for name, kind in by_name.items():
            # A reply to evaluation may be refused in a round that has used the update.
            if row["round"] not in used.get(name, ()):
                kinds[name][kind] += 1
    clients = {*used, *kinds}
    if training:
        clients &= {*training}
    return [
        Attendance(name, len(rounds), len(used.get(name, ())), kinds.get(name, {}))
        for name in sorted(clients)
    ]
