"""First of all services: give the volumes to the federation's user; make authority and server certificate, once.

Begins as root, because a new volume, and a runs folder that Docker made, belong to root; goes on as $RUN_AS.
"""

import os
import shutil
import sys
from pathlib import Path

from deploy import pki
from deploy.federation import Federation

FEDERATION, SERVER, PUBLIC, RUNS = Path("/federation"), Path("/server"), Path("/public"), Path("/runs")
NAMES = ("superlink", "control")
RENEW_DAYS = 30


def own(user: int, group: int) -> None:
    """Give the volumes to the user, and the runs folder where it is nobody's; then be the user."""
    volumes = [FEDERATION, SERVER, PUBLIC, Path("/state"), Path("/signals"), *sorted(Path("/clients").iterdir())]
    for folder in volumes:
        os.chown(folder, user, group)
    if RUNS.stat().st_uid == 0:
        os.chown(RUNS, user, group)
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    os.umask(0o077)


def certify(hosts: list[str]) -> None:
    """Make what is missing, and the server's certificate anew where it runs out or lacks a name."""
    if not (FEDERATION / "federation.toml").exists():
        for left_over in FEDERATION.iterdir():  # of a first start that was cut off
            shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()
        Federation.init(FEDERATION, hosts, fleet_port=9092, control="control:8000", days=pki.SERVER_DAYS)
        print(f"new authority, and a certificate for {', '.join(hosts)}")
    federation = Federation(FEDERATION)
    missing = set(hosts) - set(pki.hosts_of(federation.certificate))
    if missing or pki.days_left(federation.certificate) < RENEW_DAYS:
        print(f"new server certificate, for {', '.join(federation.renew(hosts, pki.SERVER_DAYS))}")
    pki.write_private(SERVER / "server.key", federation.certificate_key.read_bytes())
    pki.write_public(SERVER / "server.crt", federation.certificate.read_bytes())
    for folder in (SERVER, PUBLIC):
        pki.write_public(folder / "ca.crt", federation.authority.read_bytes())


def main() -> None:
    """Prepare a federation's volumes."""
    user, _, group = os.environ["RUN_AS"].partition(":")
    own(int(user), int(group or user))
    if not os.access(RUNS, os.W_OK):
        owner = RUNS.stat()
        sys.exit(
            f"the folder runs belongs to {owner.st_uid}:{owner.st_gid} and {user} may not write into it: start with "
            f"RUN_AS={owner.st_uid}:{owner.st_gid}"
        )
    Path("/signals/ended").unlink(missing_ok=True)
    for lock in ("running", "serving"):
        Path("/signals", lock).touch(mode=0o644)
    certify([*NAMES, *os.environ.get("HOSTS", "").split()])


if __name__ == "__main__":
    main()
