"""The operator's folder of a federation: certificates, who is enrolled, and the way to its SuperLink."""

import contextlib
import os
import pwd
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import tomli_w

from fairbloom.system.files import write_public

from .. import pki
from ..arguments import EVERY_ADDRESS, check_days, check_host, check_port, join_address, parse_address
from ..bundle import UNIT
from ..errors import DeployError as DeployError
from ..processes import first_names
from .folder import CONNECTION as CONNECTION
from .folder import add_missing_files, create_folder, write_flower_home
from .registry import EnrolledClient, Registry

SERVER_UNIT = UNIT.with_name("fairbloom-server.service")


class Federation:
    """A federation's folder, which `init` made; DeployError where there is none, or it cannot be read.

    `superlink`, `control` and `listen` are HOST:PORT of what clients dial, of the control API, and of where the fleet
    API listens; `operators` is the file of what the server knows of the operator's token.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        file = path / "federation.toml"
        try:
            about = tomllib.loads(file.read_text())
        except FileNotFoundError:
            raise DeployError(
                f"{path} is not a federation's folder: make one with fairbloom deploy init {path} --host NAME, "
                "or name another by --dir"
            ) from None
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DeployError(f"{file} cannot be read: {error}") from error
        self.superlink, self.control = _read_address(file, about, "superlink"), _read_address(file, about, "control")
        everywhere = f"{EVERY_ADDRESS[0]}:{self.superlink.rpartition(':')[2]}"
        self.listen = _read_address(file, {"listen": everywhere, **about}, "listen")
        self.authority, self.authority_key = path / "ca.crt", path / "ca.key"
        self.certificate, self.certificate_key = path / "server.crt", path / "server.key"
        self.operator_token, self.operators = path / "operator.token", path / "operators.toml"
        self.runtime_secret = path / "runtime.secret"
        self.unit = path / SERVER_UNIT.name
        self.state = path / "state"
        self.database = self.state / "superlink.db"
        self.registry = Registry(path / "clients")

    @classmethod
    def init(
        cls,
        path: Path,
        hosts: Sequence[str],
        fleet_port: int,
        control: str,
        days: float,
        listen: str = EVERY_ADDRESS[0],
    ) -> "Federation":
        """Make the folder of a new federation, whole or not at all; DeployError if an argument is impossible.

        `hosts` are the server's names and addresses, the first for clients' bundles; clients connect to `fleet_port`;
        `control` is HOST:PORT of the control API; the certificate is valid for `days`; the fleet API listens at
        `listen`.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise DeployError(
                f"{path} is not empty: choose another folder; fairbloom deploy renew makes a new server certificate"
            )
        if path.exists() and path.stat().st_uid != os.geteuid():
            raise DeployError(
                f"{path} belongs to another account, which could change what is in it: choose another folder"
            )
        names = [check_host("--host", host) for host in hosts]
        control_host, control_port = parse_address("--control", control)
        about = {
            "superlink": join_address(names[0], check_port("--fleet-port", fleet_port)),
            "control": join_address(control_host, control_port),
            "listen": join_address(check_host("--listen", listen), fleet_port),
        }
        if control_host in EVERY_ADDRESS:
            raise DeployError(f"--control {control}: name the one address by which you reach it, 127.0.0.1:8000 say")
        if control_port == fleet_port and (listen in EVERY_ADDRESS or listen == control_host):
            raise DeployError(f"--control {control}: port {control_port} is the --fleet-port already, choose another")
        check_days(days, pki.AUTHORITY_DAYS)
        try:
            with create_folder(path) as folder:
                add_missing_files(folder)
                authority, key = folder / "ca.crt", folder / "ca.key"
                pki.make_authority(authority, key)
                server = (folder / "server.crt", folder / "server.key")
                pki.make_server_certificate(authority, key, *server, [*names, control_host], days)
                token = (folder / "operator.token").read_text()
                write_flower_home(folder / "flower", about["control"], path / "ca.crt", token)
                write_public(folder / SERVER_UNIT.name, server_unit(path).encode())
                write_public(folder / "federation.toml", tomli_w.dumps(about).encode())  # last: it makes a folder one
        except OSError as error:
            raise DeployError(f"{path} cannot be made: {error}") from error
        return cls(path)

    def renew(self, hosts: Sequence[str], days: float) -> list[str]:
        """Make a new server certificate, by default for the old names, and missing credentials; return its names."""
        with explain_os_errors("renew"):
            check_days(days, pki.AUTHORITY_DAYS)
            names = [check_host("--host", host) for host in hosts] or self._hosts()
            control, _ = parse_address(f"control in {self.path / 'federation.toml'}", self.control)
            authority = (self.authority, self.authority_key)
            names = list(dict.fromkeys([*names, *({control} - set(pki.LOCAL))]))
            try:
                pki.make_server_certificate(*authority, self.certificate, self.certificate_key, names, days)
                add_missing_files(self.path)
                write_flower_home(self.path / "flower", self.control, self.authority, self.read_token())
            except (pki.PkiError, OSError) as error:
                raise DeployError(str(error)) from None
        return names

    def _hosts(self) -> list[str]:
        try:
            return [host for host in pki.read_hosts(self.certificate) if host not in pki.LOCAL] or ["localhost"]
        except pki.PkiError as error:
            raise DeployError(f"{error}: say for which hosts the new one is, by --host") from None

    # Clients --------------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> list[EnrolledClient]:
        """All that were ever enrolled, in the order of names."""
        return self.registry.clients()

    @property
    def enrolled(self) -> list[EnrolledClient]:
        """Those that are not revoked."""
        return self.registry.enrolled()

    def find_client(self, name: str) -> EnrolledClient:
        """Return the client of this name that is enrolled and not revoked; raise DeployError when there is none."""
        there = {client.name: client for client in self.enrolled}
        if name not in there:
            known = first_names(there) or "none"
            raise DeployError(f"client {name!r} is not enrolled; enrolled are: {known}")
        return there[name]

    # The way to the SuperLink -----------------------------------------------------------------------------------------

    def read_token(self) -> str:
        """Return the operator's credential; raise DeployError when it cannot be read, or is none."""
        remedy = "bring it back from a copy, or delete it and let fairbloom deploy renew make a new one"
        try:
            token = self.operator_token.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DeployError(f"the credential {self.operator_token} cannot be read: {error}; {remedy}") from None
        if not re.fullmatch(r"[!-~]+", token):
            raise DeployError(f"{self.operator_token} holds no credential: {remedy}")
        return token


def _read_address(file: Path, about: Mapping[str, object], key: str) -> str:
    if key not in about:
        raise DeployError(f"{file} lacks {key}: bring it back from a copy")
    given = about[key]
    if not isinstance(given, str):
        raise DeployError(f'{key} = {given!r} in {file}: write it as "HOST:PORT", in quotes')
    parse_address(f"{key} in {file}:", given)
    return given


@contextlib.contextmanager
def explain_os_errors(command: str) -> Iterator[None]:
    """Raise DeployError, with the name of a command, in place of an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise DeployError(f"{command}: {error}") from error


def account_name() -> str:
    """Return the name of the account that this process runs as, or its number where it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user has often no name
        return str(os.geteuid())


def server_unit(folder: Path) -> str:
    """Return the systemd unit that runs the server of a folder, as the account that asks."""
    place = folder.absolute()
    names = {
        "account": account_name(),
        "python": sys.executable,
        "folder": str(place),
        "parent": str(place.parent),
    }
    # To systemd, a percent sign begins a specifier.
    return SERVER_UNIT.read_text().format(**{name: value.replace("%", "%%") for name, value in names.items()})


def warn(words: str) -> None:
    """Print a line for the operator on stderr."""
    print(f"fairbloom deploy: {words}", file=sys.stderr, flush=True)
