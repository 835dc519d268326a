"""Names of clients, which appear in logs and tables."""

import pytest

from fairbloom.protocol.names import LONGEST_NAME, is_usable_name


@pytest.mark.parametrize(
    ("name", "is_usable"),
    [
        ("", False),
        ("x", True),
        ("Ås, 2", True),
        ("x" * LONGEST_NAME, True),
        ("x" * (LONGEST_NAME + 1), False),
        ("a\nb", False),
        ("a\x1b", False),
    ],
)
def test_a_name_is_short_and_printable(name: str, is_usable: bool) -> None:
    assert is_usable_name(name) == is_usable
