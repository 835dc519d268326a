"""The order of the rows on a device: it follows from a secret that no server knows.

A server that knew which rows each step has could solve the rounds of a run for its rows.
"""

from pathlib import Path
from secrets import token_hex

from fairbloom.protocol.settings import RunSettings
from fairbloom.system.versions import secret_of

from ..states import explain_disk_errors, fingerprint_of


def secret_order(settings: RunSettings) -> str:
    """Return the seed of the order by the secret in the state folder, which is made if needed.

    It is the same for the same settings of a run; without a state folder, it is a new one.
    """
    if not settings.state_dir:
        return token_hex()
    with explain_disk_errors("written to"):
        return f"{secret_of(Path(settings.state_dir)).hex()} {fingerprint_of(settings)}"
