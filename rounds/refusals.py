"""Why replies of a round are not used."""

import re

from fairbloom.errors import join_names
from fairbloom.logs import log
from fairbloom.protocol.advice import advice_on

from .updates import NotFiniteError

MAX_REASON_CHARACTERS = 2000
"""The longest reason that is kept: a client's error may be a whole traceback, or a flood."""

FOLDERS = re.compile(r"(?<![\w/.:])/(?:[^/\s'\"]+/)+")
"""The folders of an absolute path, which are left out of a reason: they say where a site keeps its
files."""


class NotFiniteMetricError(NotFiniteError):
    """A reply in which a metric that the method needs is NaN or infinite."""


def lacking_metric(metric: str, value: object = None) -> ValueError:
    """Return why a reply is refused whose value of a metric that the method needs is no finite number; None: none."""
    if isinstance(value, float):
        return NotFiniteMetricError(f"metric {metric!r} must be a finite number, got {value!r}")
    remedy = f": {advice_on([metric])}" if value is None else ""
    return ValueError(f"metric {metric!r} must be a finite number, got {value!r}{remedy}")


class Refusals:
    """Why replies of a round are not used, by client name; `log` says each reason once."""

    def __init__(self, server_round: int) -> None:
        self.round = server_round
        self._reasons: dict[str, list[str]] = {}
        self.not_finite: dict[str, NotFiniteError] = {}
        """What is not finite, arrays or a needed metric, by client name."""

    def add(self, name: str, reason: ValueError | str) -> None:
        """Note why a reply of `name` is not used."""
        words = FOLDERS.sub("", one_line(str(reason)))
        self._reasons.setdefault(name, []).append(words)
        if isinstance(reason, NotFiniteError):
            self.not_finite[name] = reason

    def log(self) -> None:
        """Log each reason in a line, with the clients that it is about."""
        clients: dict[str, list[str]] = {}
        for name, reason in self.reasons.items():
            clients.setdefault(reason, []).append(name)
        for reason, names in clients.items():
            who = (
                f"a reply of client {names[0]}"
                if len(names) == 1
                else f"the replies of {len(names)} clients"
            )
            them = f" ({join_names(names)})" if len(names) > 1 else ""
            log.warning("refused %s%s: %s", who, them, reason)

    @property
    def reasons(self) -> dict[str, str]:
        """The reasons by client, in the order of names."""
        return {name: "; ".join(given) for name, given in sorted(self._reasons.items())}

    @property
    def count(self) -> int:
        """How many replies were refused; a client may have sent several."""
        return sum(map(len, self._reasons.values()))


def one_line(text: str) -> str:
    """Return what a client may have written as one line that is safe to print, without its middle where it is long."""
    if len(text) > MAX_REASON_CHARACTERS:
        text = f"{text[: MAX_REASON_CHARACTERS // 2]} … {text[-MAX_REASON_CHARACTERS // 2 :]}"
    return "".join(
        character if character.isprintable() else "\ufffd" for character in " ".join(text.split())
    )
