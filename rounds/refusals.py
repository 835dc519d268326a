"""Why replies of a round are not used."""

import math
import re
from collections.abc import Sequence

from fairbloom.logs import log
from fairbloom.protocol.helper import advice_on
from fairbloom.protocol.names import SNAPSHOT

from .quorum import listed
from .updates import NotFiniteError

MAX_REASON_CHARACTERS = 2000
"""The longest reason that is kept: a client's error may be a whole traceback, or a flood."""

FOLDERS = re.compile(r"(?<![\w/.:])/(?:[^/\s'\"]+/)+")
"""The folders of an absolute path, which are left out of a reason: they say where a site keeps its files."""


class MissingError(ValueError):
    """A reply without a part that the method needs of all; `what` names it, as "the metric 'loss-before'"."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what = what


class MissingMetricError(MissingError):
    """A reply without a metric that the method needs, or with one that is no finite number."""

    def __init__(self, metric: str, value: object) -> None:
        remedy = f": {advice_on([metric])}" if value is None else ""
        message = f"metric {metric!r} must be a finite number, got {value!r}{remedy}"
        super().__init__(f"the metric {metric!r}", message)
        self.metric, self.value = metric, value


class MissingSecondError(MissingError):
    """A reply without the record of the second model that the method needs of all."""

    def __init__(self, record: str) -> None:
        which = ", the model after `snapshot-step` of the `local-steps` steps" if record == SNAPSHOT else ""
        missing = f"ArrayRecord {record!r} is missing{which}: {advice_on([record])}"
        super().__init__(f"the ArrayRecord {record!r}", missing)


class Refusals:
    """Why replies of a round are not used, by client name; `log` says each reason once."""

    def __init__(self, server_round: int) -> None:
        self.round = server_round
        self._reasons: dict[str, list[str]] = {}
        self._lacking: dict[str, str] = {}
        self._strange: dict[str, tuple[str, float]] = {}
        self._not_finite: list[str] = []

    def add(self, name: str, reason: ValueError | str) -> None:
        """Note why a reply of `name` is not used."""
        words = FOLDERS.sub("", one_line(str(reason)))
        self._reasons.setdefault(name, []).append(words)
        if isinstance(reason, MissingMetricError) and isinstance(reason.value, float):
            self._strange[name] = reason.metric, reason.value
            self._not_finite.append(name)
        elif isinstance(reason, MissingError):
            self._lacking[name] = reason.what
        elif isinstance(reason, NotFiniteError):
            self._not_finite.append(name)

    def log(self) -> None:
        """Log each reason in a line, with the clients that it is about."""
        clients: dict[str, list[str]] = {}
        for name, reason in self.reasons.items():
            clients.setdefault(reason, []).append(name)
        for reason, names in clients.items():
            who = f"a reply of client {names[0]}" if len(names) == 1 else f"the replies of {len(names)} clients"
            them = f" ({listed(names)})" if len(names) > 1 else ""
            log.warning("refused %s%s: %s", who, them, reason)

    @property
    def not_finite(self) -> Sequence[str]:
        """The clients with arrays, or a needed metric, that are not finite numbers."""
        return self._not_finite

    def explain(self, name: str, words: str) -> None:
        """Add the cause to the last reason of a client that is refused already."""
        self._reasons[name][-1] += f"; {words}"

    @property
    def reasons(self) -> dict[str, str]:
        """The reasons by client, in the order of names."""
        return {name: "; ".join(given) for name, given in sorted(self._reasons.items())}

    @property
    def count(self) -> int:
        """How many replies were refused; a client may have sent several."""
        return sum(map(len, self._reasons.values()))

    @property
    def lacked_by_all(self) -> str:
        """What every refused reply lacks and the method needs, "" where they were refused for something else."""
        lacking = set(self._lacking.values())
        return lacking.pop() if len(lacking) == 1 and self._lacking.keys() == self._reasons.keys() else ""

    @property
    def strange_at_all(self) -> str:
        """Which metric that the method needs is no finite number in every refused reply, with a value, or ""."""
        metrics = {metric for metric, _ in self._strange.values()}
        if len(metrics) != 1 or self._strange.keys() != self._reasons.keys():
            return ""
        value = next(iter(self._strange.values()))[1]
        return f"{metrics.pop()} is {'NaN' if math.isnan(value) else value}"


def one_line(text: str) -> str:
    """Return what a client may have written as one line that is safe to print, without its middle where it is long."""
    if len(text) > MAX_REASON_CHARACTERS:
        text = f"{text[: MAX_REASON_CHARACTERS // 2]} … {text[-MAX_REASON_CHARACTERS // 2 :]}"
    return "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))
