"""Unpack an untrusted bundle: `unpack.py BUNDLE [FOLDER]`; without FOLDER, only check it.

It runs as root on a device. It therefore reads and writes each file as bytes, follows no link, and
writes no other name. It prints the names of the bundle's files.
"""

import gzip
import io
import sys
import tarfile
import zlib
from pathlib import Path

# The files of a bundle, in one folder, and whether each is required. The key is not in the bundle
# if it was made on the device.
FILES = {
    "ca.crt": True,
    "certificate": True,
    "client.toml": True,
    "key": False,
    "fairbloom-client.service": False,
}

# Most bytes of an unpacked bundle; a real one has 10 kB.
LARGEST = 2**20


class BundleError(Exception):
    """An invalid bundle; the message names the fault."""


def read_bundle(bundle: Path) -> dict[str, bytes]:
    """Return the files of a bundle, by name.

    Raise BundleError if it is too large or damaged, or if a file is missing or does not belong in
    it.
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
                file = None
                if plain and name in FILES and name not in found:
                    file = archive.extractfile(member)
                if file is None or len(folders) > 1 or folder in ("", ".."):
                    link = ""
                    if member.issym() or member.islnk():
                        link = f": a link to {member.linkname[:80]!r}"
                    raise BundleError(f"{member.name[:80]!r} does not belong in it{link}")
                found[name] = file.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError) as error:
        raise BundleError(f"it cannot be read: {error}") from error
    missing = [name for name, needed in FILES.items() if needed and name not in found]
    if missing:
        raise BundleError(f"it lacks {', '.join(missing)}")
    return found


def main() -> int:
    """Check the bundle in the first argument, and write its files to the folder in the second."""
    bundle = Path(sys.argv[1])
    try:
        files = read_bundle(bundle)
    except BundleError as error:
        print(f"{bundle} is not a client's bundle: {error}", file=sys.stderr)
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
