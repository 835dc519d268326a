"""Enrol the clients that $CLIENTS names and put each one's bundle on its volume; those that have one are left."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fairbloom.deploy.operator import enrolment
from fairbloom.deploy.operator.federation import Federation
from fairbloom.system.files import write_private, write_public


def enroll_client(federation: Federation, partition: int, name: str, known: bool) -> str:
    """Give a client keys where its volume has none, in place of those it had; return what was done."""
    volume = Path("/clients", name)
    complete = known and all((volume / file).exists() for file in ("key", "ca.crt", "client.toml"))
    if complete and (volume / "ca.crt").read_bytes() == federation.authority.read_bytes():
        return f"{name} is enrolled"
    bundle = enrolment.enroll(federation, name, partition_id=partition)
    write_private(volume / "key", (bundle / "key").read_bytes())
    for public in ("ca.crt", "client.toml"):
        write_public(volume / public, (bundle / public).read_bytes())
    shutil.rmtree(bundle)  # the private key is on the client's volume alone
    return f"{name} is enrolled{' again, with new keys' if known else ''}"


def main() -> None:
    """Enrol all, some at a time, and say of each what was done."""
    federation = Federation(Path("/federation"))
    names = os.environ["CLIENTS"].split()
    known = {client.name for client in federation.enrolled}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        work = [pool.submit(enroll_client, federation, i, name, name in known) for i, name in enumerate(names)]
    for done in work:
        print(done.result())


if __name__ == "__main__":
    main()
