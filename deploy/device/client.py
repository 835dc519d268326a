"""The settings of one client, from its bundle, the device's owner and the command line."""

import importlib.util
import json
import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from fairbloom.imports import is_import_string
from fairbloom.protocol.names import (
    ACCOUNT_FILE,
    FILES,
    MIN_ROWS,
    ORDER,
    PRIVACY_LIMIT,
    RELEASE_LIMIT,
)
from fairbloom.system.files import expand_home, read_toml

from ..errors import DeployError
from ..processes import split_address

# Import string of a client's ClientApp, unless its settings name another.
APP = "fairbloom.client.app:app"

# Settings that a client must have; the bundle's client.toml has all of them.
NEEDED = ("server", "ca", "key", "certificate", "state-dir")

PATHS = ("ca", "key", "certificate", "data-dir", "state-dir")

# The types of all settings in TOML.
KINDS: Mapping[str, type] = {
    **dict.fromkeys((*NEEDED, "data-dir", "app", "unit"), str),
    "partition-id": int,
    **dict.fromkeys(("allow", "not-persons"), list),
    **dict.fromkeys(("limits", "files", "node-config"), dict),
}

# The file of the device's owner next to client.toml. It is never in a bundle, and its keys
# override client.toml's.
OWNERS_FILE = "owner.toml"

# Keys of Flower's node config that are settings of client.toml.
NODE_CONFIG = ("partition-id", "name", "data-dir", "state-dir", FILES)

# The keys of the table limits that the app reads, and their keys in Flower's node config.
LIMITS = {"rows": MIN_ROWS, "order": ORDER, "release": RELEASE_LIMIT}


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Settings of one client; client.toml and owner.toml have them with hyphens.

    `name` is the name in the certificate. `data_dir` is "" without a folder of data; a run can set
    neither `data_dir` nor `state_dir`. `unit` is the column of each row's person, "row" if each row
    is another one, "" if the owner has not said so. The columns `not_persons` repeat, and name no
    person. `limits`: see `client.guard.limits.Limits`.
    `files` are the tables of a schema that describe the format of the device's files.
    """

    server: str
    ca: str
    key: str
    certificate: str
    state_dir: str
    name: str = ""
    partition_id: int = 0
    data_dir: str = ""
    app: str = APP
    unit: str = ""
    not_persons: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    node_config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            split_address(self.server)
        except ValueError as error:
            raise DeployError(f"server = {error}") from None
        if not is_import_string(self.app):
            raise DeployError(
                f"app = {self.app!r}: write it as module:attribute, for example {APP}"
            )
        if self.node_config and self.app == APP:
            raise DeployError(
                "node-config is only for your own app: set app to its import string, or remove"
                " node-config"
            )
        for key, value in self.node_config.items():
            setting = f"node-config has {key} = {value!r}"
            if key in (*LIMITS.values(), PRIVACY_LIMIT):
                raise DeployError(f"{setting}: write it into the table limits")
            if key in NODE_CONFIG:
                raise DeployError(f"{setting}: write {key} outside node-config")
            if not isinstance(value, bool | int | float | str):
                raise DeployError(f"{setting}: it must be a number, true, false, or a text")
        if self.app != APP and self.has_account:
            raise DeployError(
                f"app = {self.app!r}: the data have a privacy account, or limits.privacy asks for"
                " one, and only Fairbloom's own app works by it: remove app, or both of them"
            )
        if self.partition_id < 0:
            raise DeployError(f"partition-id = {self.partition_id}: it is counted from 0")
        for key, file in (("ca", self.ca), ("certificate", self.certificate)):
            if not Path(file).is_file():
                raise DeployError(
                    f"{key} = {file}: file not found; take it from the client's bundle"
                )
        if not Path(self.key).is_file():
            raise DeployError(
                f"key = {self.key}: file not found. Keys are made on the device, by"
                f" fairbloom client keys NAME --out {Path(self.key).parent}; the federation's"
                " operator enrolls the request that it prints"
            )

    @property
    def has_account(self) -> bool:
        """Whether the device works by a privacy account, or its owner asks for one."""
        from fairbloom.tables.folders import place_of  # imported late: it loads NumPy

        data = Path(place_of(self.data_dir, self.name))
        folder = data.parent if data.is_file() else data
        return "privacy" in self.limits or bool(self.data_dir and (folder / ACCOUNT_FILE).exists())

    @classmethod
    def of(cls, given: Mapping[str, Any], file: Path) -> Self:
        """Return the settings of client.toml, of owner.toml and those given; the last one wins.

        Relative paths in a file start at its folder. Raise DeployError if a file cannot be used,
        or a setting is unknown or invalid.
        """
        merged = _read(file)
        owners = file.with_name(OWNERS_FILE)
        if owners.exists():
            merged |= _read(owners)
        merged |= {key: value for key, value in given.items() if value is not None}
        for key, value in merged.items():
            if key not in KINDS:
                raise DeployError(
                    f"unknown setting {key} = {value!r}: there are {', '.join(sorted(KINDS))}"
                )
            if type(value) is not KINDS[key]:
                raise DeployError(f"{key} = {value!r}: it must be of type {KINDS[key].__name__}")
        for key in NEEDED:
            if not merged.get(key):
                raise DeployError(
                    f"{key} is missing in {file}: take the client.toml of this client's bundle"
                )
        for key in PATHS:
            if merged.get(key):
                place = expand_home(merged[key])
                merged[key] = str(place.absolute())
        for key in ("allow", "not-persons"):
            texts = merged.get(key, [])
            if not all(isinstance(value, str) for value in texts):
                raise DeployError(f"{key} = {texts!r}: it must be a list of texts")
            merged[key] = tuple(texts)
        client = cls(**{key.replace("-", "_"): value for key, value in merged.items()})
        client.check_files()
        return replace(client, name=read_name(client.certificate))

    def check_files(self) -> None:
        """Raise FairbloomError unless certificates, key, limits, files and app can be used."""
        self.tls_context()
        # imported late: the small process of a client does without them
        from fairbloom.client.guard.limits import Limits
        from fairbloom.tables.schema import with_files

        Limits.of(self.limits)
        with_files("", self.files)
        if importlib.util.find_spec(self.app.partition(".")[0].partition(":")[0]) is None:
            raise DeployError(
                f"app = {self.app!r}: module not found; install it, or name another app"
            )

    def check_own_files(self) -> None:
        """Raise DeployError if `files` fits no accepted schema, so that every run would fail."""
        from fairbloom.client.guard.accepted_schemas import Schemas
        from fairbloom.tables.schema import SchemaError, with_files

        if not self.files or self.limits.get("schema") == "any":
            return
        schemas = Schemas(Path(self.state_dir))
        fault: SchemaError | None = None
        for schema in schemas.accepted():
            try:
                with_files(schemas.text_of(schema), self.files)
            except SchemaError as error:
                fault = error
            else:
                return
        if fault is not None:
            raise DeployError(f"{fault} of the schema that is accepted") from fault

    def tls_context(self) -> ssl.SSLContext:
        """Return a TLS context that checks certificates as leniently as gRPC does."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # ssl.SSLError is one
            if isinstance(error, ssl.SSLError):
                reason = "it holds no certificate"
            else:
                reason = f"it cannot be read: {error.strerror}"
            raise DeployError(
                f"ca = {self.ca}: {reason}; take ca.crt from the client's bundle again"
            ) from error
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        try:
            # without a password, OpenSSL would ask for that of an encrypted key on the terminal
            context.load_cert_chain(self.certificate, self.key, password="")
        except OSError as error:
            if isinstance(error, ssl.SSLError):
                words = "is not the key of"
            else:
                words = "cannot be read with"
            raise DeployError(
                f"key = {self.key} {words} certificate = {self.certificate}"
                f" ({error.strerror or error}): take both from this client's last enrolment"
            ) from error
        return context

    def node(self) -> dict[str, Any]:
        """Return Flower's node config, which the app reads from its context."""
        node: dict[str, Any] = {
            "partition-id": self.partition_id,
            "name": self.name,
            "data-dir": self.data_dir,
            "state-dir": self.state_dir,
        }
        if self.files:
            node[FILES] = json.dumps(self.files)
        if "privacy" in self.limits:
            node[PRIVACY_LIMIT] = json.dumps(self.limits["privacy"])
        node |= self.node_config
        node |= {key: self.limits[name] for name, key in LIMITS.items() if name in self.limits}
        return {key: value for key, value in node.items() if value != ""}

    def worker(self, pipe: int) -> list[str]:
        """Return the command of the worker, which inherits the descriptor `pipe`."""
        given: dict[str, Any] = {
            "app": self.app,
            "allow": self.allow,
            "limits": dict(self.limits),
            "node": self.node(),
        }
        # The worker must end with this process. It gets the id of this process here: os.getppid()
        # in the worker might be the id of another process already.
        code = f"from fairbloom.deploy.fleet.app_process import main; main({os.getpid()})"
        return [sys.executable, "-P", "-c", code, str(pipe), json.dumps(given)]

    def environment(self) -> dict[str, str]:
        """Return the worker's environment; by default, Flower's files are in the state folder."""
        # With spinning threads, several clients on one machine take three times as long.
        return {
            "OMP_WAIT_POLICY": "PASSIVE",
            "PYTHONUNBUFFERED": "1",
            "FLWR_HOME": str(Path(self.state_dir, "flower")),
            **os.environ,
        }


def _read(file: Path) -> dict[str, Any]:
    try:
        settings = read_toml(file)
    except OSError as error:
        raise DeployError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DeployError(f"{file} is not a TOML file: {error}") from error
    folder = file.absolute().parent
    return settings | {
        key: str(folder / settings[key])
        for key in PATHS
        if isinstance(settings.get(key), str) and settings[key]
    }


def read_name(certificate: str) -> str:
    """Return the client's name: the common name of its certificate."""
    from .. import pki  # imported late: the small process of a client does without cryptography

    try:
        name = pki.read_name(Path(certificate))
    except DeployError as error:
        raise DeployError(f"certificate = {error}") from error
    if not name:
        raise DeployError(
            f"certificate = {certificate} names no client: take it from the client's bundle again"
        )
    return name
