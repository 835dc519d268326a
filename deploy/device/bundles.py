"""What a client takes of the bundle (FAB) that comes with a run.

Whoever holds the federation's credential can submit a bundle with any code in it. `Installed` takes the run's settings
from its pyproject.toml and nothing else; the app is the one that is installed here.
"""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, distributions
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

from fairbloom.protocol.settings import Mark, marked

from ..apps import load_app

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp

    from fairbloom.client.limits import Limits

PLACES = marked(Mark.DEVICE)
"""The settings that say where a device keeps things. A bundle with another Fairbloom must not be asked for them."""

SETTINGS = "pyproject.toml"
"""The one file of a bundle that is read."""

LARGEST_BUNDLE, LARGEST_SETTINGS, MOST_MEMBERS = 10 * 2**20, 2**18, 10_000
"""Bytes of a bundle (Flower's own limit), bytes of its unpacked settings, and files in it."""

OURS = "fairbloom"
"""Name of the distribution that has Fairbloom's app."""


class BundleRefusedError(Exception):
    """A run whose bundle or settings this client does not take; the message says which and why."""


@dataclass(frozen=True)
class Installed:
    """The installed app, which is run whatever code comes with a run.

    `app` is the import string module:attribute; `allow` has values of settings that are allowed although they are not
    plain words. A run must be of `distribution`, by name and version; None where the app was not installed but is on
    the path. Any version of Fairbloom itself may do: messages say whether server and client fit (protocol/version.py).
    """

    app: str
    allow: tuple[str, ...] = ()
    distribution: tuple[str, str] | None = None
    limits: Limits | None = None

    @classmethod
    def of(cls, app: str, allow: tuple[str, ...], limits: Limits | None = None) -> Installed:
        """Look up which distribution the app belongs to."""
        return cls(app, allow, distribution_of(app.partition(":")[0]), limits)

    def __call__(self, bundle: bytes, run: Any, context: Context) -> tuple[ClientApp, dict[str, Any]]:
        """Return the installed app, and the settings that a run may set on a device; BundleRefusedError otherwise."""
        self._check_version(run)
        return self._accept({**config_of(bundle), **run.override_config}, run, context)

    def take(self, config: Mapping[str, Any], run: Any, context: Context) -> tuple[ClientApp, dict[str, Any]]:
        """Return the same for a run whose settings came without a bundle."""
        self._check_version(run)
        return self._accept(config, run, context)

    def _accept(self, config: Mapping[str, Any], run: Any, context: Context) -> tuple[ClientApp, dict[str, Any]]:
        from flwr.clientapp import ClientApp

        from fairbloom.client.settings import SettingRefusedError, accepted_settings

        try:
            settings = accepted_settings(config, self.allow)
            if self.limits is not None:
                self.limits.check(settings)
        except SettingRefusedError as error:
            note_refusal(context, run, config, str(error))
            raise BundleRefusedError(str(error)) from error
        return load_app(self.app, ClientApp, "this client"), settings | own_places(context)

    def _check_version(self, run: Any) -> None:
        if self.distribution is None:
            return
        (name, version), wanted = self.distribution, str(run.fab_id).rpartition("/")[2]
        same = _normal(name) == OURS or run.fab_version == version
        if not same or _normal(wanted) != _normal(name):
            raise BundleRefusedError(
                f"the run is of {run.fab_id[:80]} {run.fab_version[:40]}, this client has {name} {version} installed: "
                "install the same version on both"
            )


def note_refusal(context: Context, run: Any, config: Mapping[str, Any], reason: str) -> None:
    """Note in the device's log that a run's settings were refused."""
    from fairbloom.client.record import note

    if folder := context.node_config.get("state-dir"):
        asked = {"run": run.run_id, "asked": "settings", "settings": dict(config), "refused": reason}
        note(Path(str(folder)), asked)


def own_places(context: Context) -> dict[str, Any]:
    """Return where this device keeps things, which wins over a run's settings of the same name."""
    return {key: value for key, value in context.node_config.items() if key in PLACES}


# The run's settings -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def config_of(bundle: bytes) -> Mapping[str, Any]:
    """Return the settings and defaults in a bundle's pyproject.toml, without unpacking the bundle.

    BundleRefusedError: the bundle is too large or damaged, or does not have exactly one such file of a reasonable size.
    """
    try:
        project = tomllib.loads(_read(bundle).decode())
        config = flatten(project["tool"]["flwr"]["app"].get("config", {}))
    except BundleRefusedError:
        raise
    except Exception as error:  # zipfile and tomllib raise a dozen kinds, and a stranger wrote this file
        reason = f"{type(error).__name__}: {error}"[:200]
        raise BundleRefusedError(f"the settings of the run's bundle cannot be read: {reason}") from error
    for key, value in config.items():
        if not isinstance(value, bool | int | float | str):
            raise BundleRefusedError(f"the run's setting {key} is neither a number, a text nor true or false")
    return config


def _read(bundle: bytes) -> bytes:
    if len(bundle) > LARGEST_BUNDLE:
        raise BundleRefusedError(f"the run's bundle has {len(bundle)} bytes: {LARGEST_BUNDLE} are the most")
    # Before zipfile makes an object of each member. The signature begins a member's entry in the directory.
    if bundle.count(b"PK\x01\x02") > MOST_MEMBERS:
        raise BundleRefusedError(f"the run's bundle has more than {MOST_MEMBERS} files")
    with ZipFile(BytesIO(bundle)) as archive:
        found = [member for member in archive.infolist() if SETTINGS in (member.filename, member.orig_filename)]
        if len(found) != 1:
            raise BundleRefusedError(f"the run's bundle has {len(found)} files {SETTINGS}: there must be one")
        if found[0].compress_type not in (ZIP_STORED, ZIP_DEFLATED):  # others take memory by what their header says
            raise BundleRefusedError(f"the {SETTINGS} of the run's bundle is packed in a way that is not read here")
        with archive.open(found[0]) as member:
            text = member.read(LARGEST_SETTINGS + 1)
    if len(text) > LARGEST_SETTINGS:
        raise BundleRefusedError(f"the {SETTINGS} of the run's bundle has more than {LARGEST_SETTINGS} bytes")
    return text


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return tables of tables as settings with dotted keys, as Flower reads them."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        settings |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return settings


# The app ------------------------------------------------------------------------------------------------------------


def distribution_of(module: str) -> tuple[str, str] | None:
    """Return name and version of the installed distribution that a module came with, None where it came with none."""
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return None
    origin, everything = Path(spec.origin).resolve(), list(distributions())
    owner = next((each for each in everything if _has(each, top, origin)), None)
    if owner is None:  # an editable installation lists none of its files
        owner = next((each for each in everything if _is_edited_at(each, origin)), None)
    return None if owner is None else (owner.metadata["Name"], owner.version)


def _has(distribution: Distribution, top: str, origin: Path) -> bool:
    files = (file for file in distribution.files or () if file.parts[0] in (top, origin.name))
    return any(Path(str(distribution.locate_file(file))).resolve() == origin for file in files)


def _is_edited_at(distribution: Distribution, origin: Path) -> bool:
    about = json.loads(distribution.read_text("direct_url.json") or "{}")
    editable = about.get("dir_info", {}).get("editable", False)
    return editable and origin.is_relative_to(Path(url2pathname(urlsplit(about["url"]).path)).resolve())


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
