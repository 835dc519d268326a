"""Make the keys of Flower's own nodes once: a folder for each service of docker/stock.yaml."""

import os
import secrets
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fairbloom.deploy import pki


def make_keys(keys: Path, host: str, nodes: int) -> None:
    """Write the keys of a SuperLink on `host`, its SuperExec, operator and SuperNodes."""
    folders = {name: keys / name for name in ("superlink", "superexec", "operator")}
    folders |= {f"supernode-{number}": keys / f"supernode-{number}" for number in range(nodes)}
    authority = (keys / "ca.crt", keys / "ca.key")
    secret = secrets.token_bytes(32)
    pki.make_authority(*authority)
    for name, folder in folders.items():
        folder.mkdir(mode=0o700)
        (folder / "ca.crt").write_bytes(authority[0].read_bytes())
        if name.startswith("supernode"):
            key = ec.generate_private_key(ec.SECP384R1())
            (folder / "key").write_bytes(
                key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
            )
            (folders["operator"] / f"{name}.pub").write_bytes(
                key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            )
    link = folders["superlink"]
    pki.make_server_certificate(*authority, link / "server.crt", link / "server.key", [host])
    for name in ("superlink", "superexec"):
        (folders[name] / "secret").write_bytes(secret)
    authority[1].unlink()  # no other certificate will be made


if __name__ == "__main__":
    os.umask(0o077)
    if not (Path(sys.argv[1]) / "ca.crt").exists():
        make_keys(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
