"""Standard output and error in encodings that lack some characters: ASCII, Latin-1, cp1252."""

import codecs
import io
import sys
import unicodedata

# The name of `write_plainly` among Python's error handlers.
PLAINLY = "fairbloom.plainly"

# What a reader would write for characters that have no decomposition. A lost minus sign would
# change a number.
PLAIN = {
    **dict.fromkeys("\N{MINUS SIGN}\N{EN DASH}\N{EM DASH}", "-"),
    **dict.fromkeys("‘’′", "'"),
    **dict.fromkeys("“”", '"'),
    **{"·": ".", "×": "x", "±": "+-", "⁄": "/", "√": "sqrt", "‖": "||"},
    **{"→": "->", "←": "<-", "≤": "<=", "≥": ">="},
}


def write_any_text() -> None:
    """Let standard output and error replace characters that their encoding lacks.

    A command that has worked for hours does not end for a dash in its last table.
    """
    codecs.register_error(PLAINLY, write_plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAINLY)


def write_plainly(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII for the characters that an encoding lacks, and where to continue.

    Accents are left out, Greek letters are named, and for what is not known stands "?".
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(letter: str) -> str:
    name = unicodedata.name(letter, "")
    if name.startswith("GREEK"):
        return name.rpartition(" ")[2].lower()
    parts = unicodedata.normalize("NFKD", letter)
    return "".join(part if part.isascii() else PLAIN.get(part, "") for part in parts) or "?"
