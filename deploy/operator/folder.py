"""What a federation's folder is made of, made whole or not at all."""

import base64
import contextlib
import hashlib
import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tomli_w

from fairbloom.system.files import write_private, write_public

CONNECTION = "federation"
"""The name under which Flower's commands find the SuperLink."""


@contextlib.contextmanager
def create_folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill, which is at `path` when the block succeeds; when it fails, all of it is gone."""
    if path.exists():  # a volume's root cannot be replaced
        path.chmod(0o700)
        (path / "clients").mkdir()  # of two at once, one stops here
        try:
            yield path
        except BaseException:
            for left in path.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            raise
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    try:
        yield draft
        draft.rename(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def add_missing_files(folder: Path) -> None:
    """Make the folders and credentials that a federation's folder lacks."""
    for name in ("clients", "bundles", "flower", "state"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    if not (folder / "operator.token").exists():
        token = secrets.token_urlsafe(32)
        known = {"operator": {"sha256": hashlib.sha256(token.encode()).hexdigest()}}
        write_private(folder / "operators.toml", tomli_w.dumps(known).encode())
        write_private(folder / "operator.token", token.encode())
    if not (folder / "runtime.secret").exists():
        write_private(folder / "runtime.secret", secrets.token_bytes(32))


def write_flower_home(home: Path, control: str, authority: Path, token: str) -> None:
    """Write what Flower's commands read of a connection: config.toml, and the credential as if one had logged in."""
    connection = {"address": control, "root-certificates": str(authority.absolute())}
    config = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    write_public(home / "config.toml", tomli_w.dumps(config).encode())
    credential = {"authn-type": "oidc", "oidc-access-token": token, "oidc-refresh-token": "none"}
    stored = {
        f"flower.account-auth.{control}.{key}": base64.b64encode(value.encode()).decode()
        for key, value in credential.items()
    }
    write_private(home / "credentials.yaml", json.dumps(stored).encode())  # JSON is YAML
