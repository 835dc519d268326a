"""The protocol number, which decides whether a server and a client are compatible."""

from collections.abc import Mapping
from typing import Any

from fairbloom import __version__
from fairbloom.errors import ReportableError

from .names import PROTOCOL as KEY

# The protocol of this version's server and clients; both must have the same one.
#
# Raise it by 1 if a server and a client, one of them of the version before, would misunderstand
# each other: a record, a name or a unit on the wire gets another meaning or is no longer sent, a
# setting or a term that a client must not ignore is added, or a client draws other random numbers
# or splits data in another way. Do not raise it for an addition that the other side can ignore, or
# for a new version of Flower. The key of the number, in the config of every message of our
# ServerApp, never changes, so that a client of any version can read it.
PROTOCOL = 6

# The format of a run folder, and of the files that a device stores of a run.
#
# Raise it by 1 if earlier folders can no longer be continued.
RUN_FOLDER_FORMAT = 13


def check_protocol(config: Mapping[str, Any]) -> None:
    """Raise ReportableError if the config of a message has another protocol than this client.

    A message without a protocol is not from our ServerApp, and needs no check.
    """
    theirs = config.get(KEY, PROTOCOL)
    if theirs != PROTOCOL:
        remedy = "upgrade the server, or go back on this client"
        if isinstance(theirs, int) and theirs > PROTOCOL:
            remedy = "upgrade fairbloom on this client"
        raise ReportableError(
            f"the server speaks protocol {theirs!r:.20}, and this client, with fairbloom"
            f" {__version__}, protocol {PROTOCOL}: {remedy}"
        )
