"""First of all services: check the settings, give the volumes to the federation's user, make what the server needs.

Begins as root, because a new volume, and a runs folder that Docker made, belong to root; goes on as $RUN_AS.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

from fairbloom.deploy import pki
from fairbloom.deploy.operator.federation import Federation
from fairbloom.protocol.settings import parse_assignments
from fairbloom.server.settings import Settings, check_used
from fairbloom.system.files import write_private, write_public

FEDERATION, SERVER, STATE = Path("/federation"), Path("/server"), Path("/state")
CLIENTS, SIGNALS, RUNS = Path("/clients"), Path("/signals"), Path("/runs")
NAMES = ("server", "control")

PUBLIC = ("federation.toml", "ca.crt", "server.crt")
PRIVATE = ("server.key", "operators.toml", "runtime.secret")
"""What the server has of the operator's folder; not the authority's key, and of the credential only what checks it."""


def check_settings() -> None:
    """End with the reason where the run's settings are impossible, before anything else is started."""
    try:
        config = parse_assignments(shlex.split(os.environ.get("SETTINGS", "")))
        settings = Settings.of({"clients": len(os.environ["CLIENTS"].split()), **config})
        check_used(config, [settings.method], settings.task, deployed=True)
        settings.check_deployed()
    except ValueError as error:
        sys.exit(f"SETTINGS: {error}")


def become_user(user: int, group: int) -> None:
    """Give the volumes to the user, and the runs folder where it is nobody's; then be the user."""
    for folder in (FEDERATION, SERVER, STATE, CLIENTS, SIGNALS):
        os.chown(folder, user, group)
    if RUNS.stat().st_uid == 0:
        os.chown(RUNS, user, group)
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    os.umask(0o077)


def certify(hosts: list[str]) -> None:
    """Make what is missing, and a new server certificate where the old one runs out or lacks a name."""
    if not (FEDERATION / "federation.toml").exists():
        if any((FEDERATION / "clients").glob("*")):
            sys.exit(
                "federation.toml is missing beside enrolled clients, whom a new federation would lock out: put "
                "the file back, or let docker compose down --volumes delete the whole federation"
            )
        for left_over in FEDERATION.iterdir():  # of a first start that was cut off
            shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()
        Federation.init(FEDERATION, hosts, fleet_port=9092, control="control:8000", days=pki.SERVER_DAYS)
        print(f"new authority, and a certificate for {', '.join(hosts)}")
    federation = Federation(FEDERATION)
    missing = set(hosts) - set(pki.read_hosts(federation.certificate))
    if missing or pki.days_left(federation.certificate) < 30:
        print(f"new server certificate, for {', '.join(federation.renew(hosts, pki.SERVER_DAYS))}")
    for name in PUBLIC:
        write_public(SERVER / name, (FEDERATION / name).read_bytes())
    for name in PRIVATE:
        write_private(SERVER / name, (FEDERATION / name).read_bytes())
    for place in ("state", "clients"):  # where other volumes are mounted
        (SERVER / place).mkdir(exist_ok=True)


def main() -> None:
    """Prepare a federation's volumes."""
    check_settings()
    user, _, group = os.environ["RUN_AS"].partition(":")
    become_user(int(user), int(group or user))
    if not os.access(RUNS, os.W_OK):
        owner = RUNS.stat()
        sys.exit(
            f"the folder runs belongs to {owner.st_uid}:{owner.st_gid} and {user} may not write into it: start with "
            f"RUN_AS={owner.st_uid}:{owner.st_gid}"
        )
    (SIGNALS / "ended").unlink(missing_ok=True)
    for lock in ("running", "serving"):
        (SIGNALS / lock).touch(mode=0o644)
    for name in os.environ["CLIENTS"].split():
        (CLIENTS / name).mkdir(mode=0o700, exist_ok=True)
    certify([*NAMES, *os.environ.get("HOSTS", "").split()])


if __name__ == "__main__":
    main()
