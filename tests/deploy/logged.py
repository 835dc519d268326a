"""The server's log lines on what was done and refused, read again."""

import re
from collections.abc import Iterable

LINE = re.compile(r"(?P<event>[^(]+?)(?: \((?P<about>.*)\))?")


def read_events(lines: Iterable[str]) -> list[dict[str, str]]:
    """Return each line's event, and what it says of it by keys: "refused: a key (peer 192.0.2.7, times 2)"."""
    found = []
    for line in lines:
        if matched := LINE.fullmatch(line):
            pairs = [pair.partition(" ") for pair in (matched["about"] or "").split(", ")]
            found.append({"event": matched["event"], **{key: value for key, _, value in pairs if key}})
    return found
