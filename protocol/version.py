"""Whether a server and a client fit: by one number, not by their versions."""

from collections.abc import Mapping
from typing import Any

from fairbloom import __version__
from fairbloom.errors import ReportableError

from .names import PROTOCOL as KEY

PROTOCOL = 2
"""The language that this version's server and clients speak; both must speak the same one.

It is raised by 1 when a server and a client of which one is of the version before would
misunderstand each other: a record, a name or a unit on the wire gets another meaning or is no
longer sent, a setting or a term that a client must not overlook is added, or a client draws other
random numbers or deals data in another way. It stays when something is added that the other side
may do without, and when Flower's version changes. The key under which the number travels, in the
config of every message of our ServerApp, never changes: a client of any version can read it.
"""

RUN_FOLDER_FORMAT = 3
"""The number of the format of a run folder, and of what a device keeps of a run.

It is raised when a folder of before can no longer be continued.
"""


class MisfitError(ReportableError):
    """A server that speaks another protocol than this client.

    The message says which side is to be upgraded.
    """


def check_protocol(config: Mapping[str, Any]) -> None:
    """Raise MisfitError where the config of a message is of a server that speaks another protocol than this client.

    A server that names none is of another kind, which asks for nothing of ours.
    """
    theirs = config.get(KEY, PROTOCOL)
    if theirs != PROTOCOL:
        newer = isinstance(theirs, int) and theirs > PROTOCOL
        remedy = (
            "upgrade fairbloom on this client"
            if newer
            else "upgrade the server, or go back on this client"
        )
        raise MisfitError(
            f"the server speaks protocol {theirs!r:.20}, and this client, with fairbloom"
            f" {__version__}, protocol {PROTOCOL}: {remedy}"
        )
