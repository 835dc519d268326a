from pathlib import Path

import pytest

from .helpers import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Writes files, by their names without ending, into a folder; returns it."""

    def write(**files: str | bytes) -> Path:
        (tmp_path / "data").mkdir(exist_ok=True)
        for name, content in files.items():
            (tmp_path / "data" / f"{name}.csv").write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )
        return tmp_path / "data"

    return write
