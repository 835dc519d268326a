"""Whether devices can honour a run's settings, looked at before the run is submitted."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairbloom.client.settings import settings_to_allow
from fairbloom.imports import is_import_string
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.settings import Settings
from fairbloom.tasks import find_task

from ..fleet.enrolment import describe_clients_beyond
from ..fleet.members import Member


def check_honoured(members: Sequence[Member], settings: Settings, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the operator must know of how devices take a run's settings; SettingsError if no device takes one."""
    refused = settings_to_allow(given)
    if "device" in refused:
        raise SettingsError(f"device = {refused['device']!r}: devices accept auto, cpu, cuda, cuda:1 or mps")
    info = find_task(settings.task)
    for key, value in refused.items():
        module = ", and its module installed there" if is_import_string(value) else ""
        yield (
            f"{key} = {value!r} is accepted only by devices with owners who allow it (allow = [{value!r}] in "
            f"owner.toml{module}); the others are refused, by name in each round"
        )
    dealt = info.setup(given).clients
    if dealt and not info.is_user_defined and (far := describe_clients_beyond(members, dealt)):
        yield far


def check_not_pythons(given: Mapping[str, Any]) -> None:
    """Raise SettingsError where an import string names a part of Python itself, which holds nothing of the kind."""
    for key in ("task", "model", "optimizer", "partition", "client-rule"):
        value = str(given.get(key, ""))
        module = value.partition(":")[0].partition(".")[0]
        if is_import_string(value) and module in sys.stdlib_module_names:
            raise SettingsError(
                f"{key} = {value!r}: {module} belongs to Python and holds no {key}, so no device allows it: name your "
                f"own, as in my_module:{key}"
            )
