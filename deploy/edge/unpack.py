"""Unpack an untrusted bundle: `unpack.py BUNDLE [FOLDER]`; without FOLDER only check it.

It runs as root on a device, so each file is read and written as bytes: no link is followed, no
other name written. Prints the names of the files that the bundle has.
"""

import gzip
import io
import sys
import tarfile
import zlib
from pathlib import Path

# What a bundle has, in one folder, and whether it must have it: a key that was made on the device
# is not in it.
FILES = {
    "ca.crt": True,
    "certificate": True,
    "client.toml": True,
    "key": False,
    "fairbloom-client.service": False,
}

# Bytes of a whole bundle, unpacked; a real one has 10 kB.
LARGEST = 2**20


class BundleError(Exception):
    """A bundle that no operator made; the message names the fault."""


def files_of(bundle: Path) -> dict[str, bytes]:
    """Return the files of a bundle.

    BundleError if it is too large or damaged, lacks a file or has any other.
    """
    found: dict[str, bytes] = {}
    folders = set()
    try:
        with gzip.open(bundle) as packed:
            content = packed.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise BundleError(f"it is larger than {LARGEST} bytes when unpacked")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                folder, _, name = member.name.partition("/")
                folders.add(folder)
                if member.isdir() and not name:
                    continue
                plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
                if plain and name in FILES and name not in found:
                    file = archive.extractfile(member)
                else:
                    file = None
                if file is None or len(folders) > 1 or folder in ("", ".."):
                    if member.issym() or member.islnk():
                        link = f": a link to {member.linkname[:80]!r}"
                    else:
                        link = ""
                    raise BundleError(f"{member.name[:80]!r} does not belong in it{link}")
                found[name] = file.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError) as error:
        raise BundleError(f"it cannot be read: {error}") from error
    missing = [name for name, needed in FILES.items() if needed and name not in found]
    if missing:
        raise BundleError(f"it lacks {', '.join(missing)}")
    return found


def main() -> int:
    """Check the bundle that is named, and write its files into the folder, if one is named."""
    bundle = Path(sys.argv[1])
    try:
        files = files_of(bundle)
    except BundleError as error:
        print(f"{bundle} is no bundle of a client: {error}", file=sys.stderr)
        return 1
    for folder in map(Path, sys.argv[2:]):
        for name, content in files.items():
            with (folder / name).open("xb") as file:
                (folder / name).chmod(0o600)
                file.write(content)
    print(*files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
