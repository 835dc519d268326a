"""The parts of a run that a client accepts: some of its settings, never its code.

The client runs its installed app.
"""

import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

from flwr.app import Context
from flwr.clientapp import ClientApp

from fairbloom.client.guard.accepted_schemas import check_accepted
from fairbloom.client.guard.accepted_settings import SettingRefusedError, accepted_settings
from fairbloom.client.guard.limits import Limits
from fairbloom.client.guard.log_files import open_log
from fairbloom.client.guard.questions import Asking, Questions
from fairbloom.protocol.settings import Mark, marked

from ..processes import load_app

# The distribution with Fairbloom's app.
OURS = "fairbloom"


@dataclass(frozen=True)
class RunDescription:
    """A run as the server describes it: its number, its app's distribution and its settings.

    `question` is the digest of its message, "" if that brings no model.
    """

    number: int
    distribution: str
    version: str
    settings: Mapping[str, Any]
    question: str = ""


@dataclass(frozen=True)
class Installed:
    """The installed app, which answers all runs: no code travels with a run.

    `app` is the import string module:attribute. `allow` has the paths and import strings that a
    run's settings may contain. `distribution` is the name and version that a run's app must have,
    None if the app is on the path without being installed. Fairbloom's own version may differ:
    each message has the number of its protocol (protocol/version.py).
    """

    app: str
    allow: tuple[str, ...] = ()
    distribution: tuple[str, str] | None = None
    limits: Limits | None = None

    @classmethod
    def of(cls, app: str, allow: tuple[str, ...], limits: Limits | None = None) -> Self:
        """Look up the distribution of the app."""
        return cls(app, allow, distribution_of(app.partition(":")[0]), limits)

    def accept(self, run: RunDescription, context: Context) -> tuple[ClientApp, dict[str, Any]]:
        """Return the installed app and the accepted settings of a run.

        Raise SettingRefusedError if the run has another app or a setting that is not accepted, and
        note it in the owner's log.
        """
        try:
            return self._accept(run, context)
        except SettingRefusedError as error:
            place = context.node_config.get("state-dir")
            if place:
                entry = {"run": run.number, "asked": "settings", "refused": str(error)}
                open_log(Path(str(place))).note(entry, run.settings)
            raise

    def _accept(self, run: RunDescription, context: Context) -> tuple[ClientApp, dict[str, Any]]:
        name, version = self.distribution or (run.distribution, run.version)
        same = _normal(name) == OURS or run.version == version
        if not same or _normal(run.distribution) != _normal(name):
            raise SettingRefusedError(
                f"the run is of {run.distribution[:80]} {run.version[:40]}, this client has {name}"
                f" {version} installed: install the same version on both"
            )
        for key, value in run.settings.items():
            if not isinstance(value, bool | int | float | str):
                raise SettingRefusedError(
                    f"the run's setting {key} is neither a number, a text nor true or false"
                )
        place = context.node_config.get("state-dir")
        state_dir = Path(str(place)) if place else None
        settings = accepted_settings(run.settings, self.allow)
        allowed = ""
        if self.limits is not None:
            self.limits.check(settings)
            allowed = self.limits.schema
        check_accepted(settings, state_dir, allowed, run.number)
        if self.limits is not None and state_dir is not None:
            questions = Questions(state_dir)
            asking = Asking.of(run.settings, settings)
            if run.question:
                questions.count(asking, run.question, self.limits)
            else:  # a run asks for the client's name before its first round
                questions.check_left(asking, self.limits)
        # the device's own folders win over settings of the same name
        return load_app(self.app, ClientApp, "this client"), settings | {
            key: value for key, value in context.node_config.items() if key in marked(Mark.DEVICE)
        }


def distribution_of(module: str) -> tuple[str, str] | None:
    """Return the name and version of the distribution that installed a module, or None."""
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin).resolve()
    for each in distributions():
        listed = each.read_text("RECORD")
        if listed is not None and top not in listed:  # to parse all of them takes a second
            continue
        if any(
            Path(str(each.locate_file(file))).resolve() == origin
            for file in each.files or ()
            if file.parts[0] in (top, origin.name)
        ):
            return each.metadata["Name"], each.version
    for each in distributions():  # an editable installation does not list its files
        about = json.loads(each.read_text("direct_url.json") or "{}")
        if about.get("dir_info", {}).get("editable") and origin.is_relative_to(
            Path(url2pathname(urlsplit(about["url"]).path)).resolve()
        ):
            return each.metadata["Name"], each.version
    return None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
