"""Files that a person writes, by whatever editor."""

from pathlib import Path

import pytest

from fairbloom.system.files import read_toml

WRITTEN = '# Bärn\ndata-dir = "/srv/nörd"\n[limits]\nrows = 9\n'

# As Notepad and PowerShell write texts, and most others do.
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16"]


@pytest.mark.parametrize("encoding", [*ENCODINGS, "utf-16-be"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_mark_and_line_ends_change_nothing(tmp_path: Path, encoding: str, end: str) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    file = tmp_path / "owner.toml"
    file.write_bytes((mark + WRITTEN.replace("\n", end)).encode(encoding))
    assert read_toml(file) == {"data-dir": "/srv/nörd", "limits": {"rows": 9}}


@pytest.mark.parametrize(
    "content",
    [WRITTEN.encode("latin-1"), WRITTEN.encode("utf-16-le"), b"a = " + b"[" * 9_999, b"\xff\xfea"],
)
def test_what_is_no_toml_is_a_value_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "owner.toml").write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        read_toml(tmp_path / "owner.toml")
