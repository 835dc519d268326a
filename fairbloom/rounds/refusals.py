"""Why replies of a round are not used."""

import re
from collections import Counter
from collections.abc import Mapping

from fairbloom.errors import join_names
from fairbloom.logs import log
from fairbloom.protocol.advice import advice_on
from fairbloom.protocol.error_codes import ErrorCode

from .updates import NotFiniteError

# The longest reason that is stored: a client's error may be a whole traceback, or a flood.
MAX_REASON_CHARACTERS = 2000

# A number in a reason. Digits in a name, such as client-1, are none.
NUMBER_IN_REASON = re.compile(r"(?<![\w.-])-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan)(?![\w-])")

# The folders of an absolute path, which reasons leave out: they show where a site keeps its files.
FOLDERS = re.compile(r"(?<![\w/.:])/(?:[^/\s'\"]+/)+")


class NotFiniteMetricError(NotFiniteError):
    """A reply in which a metric that the method needs is NaN or infinite."""


def lacking_metric(metric: str, value: object = None) -> ValueError:
    """Return the error of a needed metric that is missing (None) or not a finite number."""
    reason = f"metric {metric!r} must be a finite number, got {value!r}"
    if isinstance(value, float):
        return NotFiniteMetricError(reason)
    return ValueError(f"{reason}: {advice_on([metric])}" if value is None else reason)


class Refusals:
    """Why replies of a round are not used, by client name."""

    def __init__(self, server_round: int) -> None:
        self.round = server_round
        self._reasons: dict[str, list[str]] = {}
        # The errors of arrays or needed metrics that are not finite, by client name.
        self.not_finite: dict[str, NotFiniteError] = {}
        # The clients that have sent an error with a code, by the code.
        self._senders: dict[int, set[str]] = {}

    def add(self, name: str, reason: ValueError | str, code: int | None = None) -> None:
        """Note why a reply of `name` is not used; an error in its place has a code."""
        shown = FOLDERS.sub("", one_line(str(reason)))
        self._reasons.setdefault(name, []).append(shown)
        if isinstance(reason, NotFiniteError):
            self.not_finite[name] = reason
        if code is not None:
            self._senders.setdefault(code, set()).add(name)

    def with_code(self, code: ErrorCode) -> frozenset[str]:
        """Return the clients that have sent an error with this code."""
        return frozenset(self._senders.get(code, ()))

    def log(self, said: Counter[tuple[str, str]]) -> None:
        """Log each reason in a line, with its clients, unless it was said of a client before.

        `said` counts how often a client was refused for a reason, and is continued.
        """
        news = {name: why for name, why in self.reasons.items() if (name, why) not in said}
        said.update(self.reasons.items())
        for reason, names in join_alike(news).items():
            replies = f"a reply of client {names[0]}"
            if len(names) > 1:
                replies = f"the replies of {len(names)} clients ({join_names(names)})"
            log.warning("refused %s: %s", replies, reason)

    @property
    def reasons(self) -> dict[str, str]:
        """The reasons by client, in the order of names."""
        return {name: "; ".join(texts) for name, texts in sorted(self._reasons.items())}

    @property
    def count(self) -> int:
        """How many replies were refused; a client may have sent several."""
        return sum(map(len, self._reasons.values()))


def log_repeated(said: Counter[tuple[str, str]]) -> None:
    """Log of which clients further replies were refused for reasons that were said once."""
    again = Counter[str]()
    for (name, _), times in said.items():
        again[name] += times - 1
    repeated = [f"{name} ({times} times)" for name, times in sorted((+again).items())]
    if repeated:
        log.warning("refused again, for the reasons above: %s", join_names(repeated))


def join_alike(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the clients of each reason; reasons that differ in numbers only are joined.

    A joined reason has the numbers of the first clients, and how many others there are.
    """
    clients: dict[tuple[str, ...], list[str]] = {}
    for name, reason in reasons.items():
        texts = tuple(NUMBER_IN_REASON.split(reason))
        clients.setdefault(texts, []).append(name)
    joined: dict[str, list[str]] = {}
    for texts, names in clients.items():
        columns = zip(*(NUMBER_IN_REASON.findall(reasons[name]) for name in names), strict=True)
        numbers = [values[0] if len({*values}) == 1 else join_names(values) for values in columns]
        parts = zip(texts, [*numbers, ""], strict=True)
        joined["".join(text + number for text, number in parts)] = names
    return joined


def one_line(text: str) -> str:
    """Return a client's text as one line that is safe to print; a long text loses its middle."""
    if len(text) > MAX_REASON_CHARACTERS:
        text = f"{text[: MAX_REASON_CHARACTERS // 2]} … {text[-MAX_REASON_CHARACTERS // 2 :]}"
    line = " ".join(text.split())
    return "".join(character if character.isprintable() else "\ufffd" for character in line)
