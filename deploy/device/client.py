"""The settings of one client, from client.toml and the command line."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import ClientError
from ..flower.environment import HOME
from ..processes import split_address
from .connectivity import tls_context

APP = "fairbloom.client.app:app"
"""Import string of the ClientApp that a client answers with, unless its settings name another."""

PATHS = ("ca", "key", "data-dir", "state-dir")
LIMIT_ROWS = "limit-rows"
"""Key of the node config for the owner's limit `rows`, as `fairbloom.client.limits` calls it."""

NODE_CONFIG = ("partition-id", "name", "data-dir", "state-dir")
"""Keys of Flower's node config that are settings of client.toml."""

IMPORT_STRING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Settings of one client, as in client.toml, with hyphens there.

    `ca`, `key`, `name`, `data_dir` and `state_dir` are "" for none. A run cannot set `data_dir` and `state_dir`. With
    `insecure` there is no TLS: anyone on the way reads and changes models. `limits`: see
    `fairbloom.client.limits.Limits`.
    """

    superlink: str
    ca: str = ""
    key: str = ""
    insecure: bool = False
    partition_id: int = 0
    name: str = ""
    data_dir: str = ""
    state_dir: str = ""
    app: str = APP
    allow: tuple[str, ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)
    node_config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            split_address(self.superlink)
        except ValueError as error:
            raise ClientError(f"superlink = {error}") from None
        if not IMPORT_STRING.fullmatch(self.app):
            raise ClientError(f"app = {self.app!r}: write it as module:attribute, {APP} say")
        self._check_node_config()
        if self.partition_id < 0:
            raise ClientError(f"partition-id = {self.partition_id}: it is counted from 0")
        if self.insecure and (self.ca or self.key):
            raise ClientError("insecure = true with ca or key: without TLS neither is used; leave them or insecure out")
        if not self.insecure and not self.ca:
            raise ClientError("ca is missing: name the CA certificate of your bundle, or say insecure")
        if self.ca and not Path(self.ca).is_file():
            raise ClientError(f"ca = {self.ca}: there is no such file")
        if self.key and not Path(self.key).is_file():
            raise ClientError(
                f"key = {self.key}: there is no such file. Keys are made on the device, by fairbloom client keys NAME "
                f"--out {Path(self.key).parent}; the federation's operator enrolls the request that it prints"
            )

    def _check_node_config(self) -> None:
        if self.node_config and self.app == APP:
            raise ClientError("node-config is for an app of your own: name it by app, or leave node-config out")
        for key, value in self.node_config.items():
            setting = f"node-config has {key} = {value!r}"
            if key == LIMIT_ROWS:
                raise ClientError(f"{setting}: write rows into the table limits")
            if key in NODE_CONFIG:
                raise ClientError(f"{setting}: write {key} outside node-config")
            if not isinstance(value, bool | int | float | str):
                raise ClientError(f"{setting}: it must be a number, true, false, or a text")

    @classmethod
    def of(cls, given: Mapping[str, Any], file: Path | None = None) -> ClientSettings:
        """Return the settings of `file`, overridden by those given as well; its relative paths begin at its folder.

        ClientError: the file, its certificate or its key cannot be used, or a setting is unknown or impossible.
        """
        merged = (_read(file) if file else {}) | {key: value for key, value in given.items() if value is not None}
        kinds = {each.name.replace("_", "-"): type(each.default) for each in fields(cls)}
        kinds |= {"superlink": str, "allow": list, "limits": dict, "node-config": dict}
        for key, value in merged.items():
            if key not in kinds:
                raise ClientError(f"unknown setting {key} = {value!r}: there are {', '.join(sorted(kinds))}")
            if type(value) is not kinds[key]:
                raise ClientError(f"{key} = {value!r}: it must be of type {kinds[key].__name__}")
        if "superlink" not in merged:
            raise ClientError("superlink is missing: give --superlink HOST:PORT, or the client.toml of a bundle")
        merged |= {key: str(Path(merged[key]).expanduser().absolute()) for key in PATHS if merged.get(key)}
        if not all(isinstance(value, str) for value in merged.get("allow", [])):
            raise ClientError(f"allow = {merged['allow']!r}: it must be a list of texts")
        merged["allow"] = tuple(merged.get("allow", []))
        client = cls(**{key.replace("-", "_"): value for key, value in merged.items()})
        client.check_files()
        return client

    def check_files(self) -> None:
        """Raise ClientError unless certificate, key and app can be used; the message names the file."""
        if self.ca:
            tls_context(self.ca)
        if self.key:
            from .. import pki  # loads a library that the loop does without

            try:
                pki.read_node_key(Path(self.key))
            except pki.PkiError as error:
                raise ClientError(f"key = {error}") from error
        from fairbloom.client.limits import Limits, LimitsError  # not in the loop, either

        try:
            Limits.of(self.limits)
        except LimitsError as error:
            raise ClientError(str(error)) from error
        if importlib.util.find_spec(self.app.partition(".")[0].partition(":")[0]) is None:
            raise ClientError(f"app = {self.app!r}: there is no such module here; install it, or name another app")

    def node(self) -> dict[str, Any]:
        """Return Flower's node config, which the app finds in its context."""
        own = (self.partition_id, self.name, self.data_dir, self.state_dir)
        node = {**dict(zip(NODE_CONFIG, own, strict=True)), **self.node_config}
        node |= {LIMIT_ROWS: self.limits["rows"]} if "rows" in self.limits else {}
        return {key: value for key, value in node.items() if value != ""}

    def worker(self, pipe: int) -> list[str]:
        """Return the command by which this process runs the worker, which inherits this descriptor."""
        given: dict[str, Any] = {
            "app": self.app,
            "allow": self.allow,
            "limits": dict(self.limits),
            "node": self.node(),
        }
        # The worker ends with this process and gets its id here: asked for later, the id might be another process's.
        code = f"from fairbloom.deploy.flower.device.app_process import main; main({os.getpid()})"
        return [sys.executable, "-P", "-c", code, str(pipe), json.dumps(given)]

    def environment(self) -> dict[str, str]:
        """Return the worker's environment: Flower's files in the state folder, unless ours says so."""
        # Threads that spin while they wait for each other slow several clients on one machine down threefold.
        defaults = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
        if self.state_dir:
            defaults[HOME] = str(Path(self.state_dir, "flower"))
        return defaults | dict(os.environ)


def _read(file: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(file.read_text())
    except OSError as error:
        raise ClientError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ClientError(f"{file} is not a TOML file: {error}") from error
    folder = file.absolute().parent
    return settings | {
        key: str(folder / settings[key]) for key in PATHS if isinstance(settings.get(key), str) and settings[key]
    }
