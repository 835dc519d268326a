"""Find the encoding of a text that is not UTF-8: the one in which its words are words.

Each encoding is tried. A word is one if its letters are those of one language, in one case.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

# The letters beyond ASCII of languages that are in one file, in lower case, for each encoding.
WESTERN = ("àâäæçèéêëìíîïòóôöœùúûüÿß", "áàâãçéêíïñòóõôúü", "åäæéèöøüß", "áæéíóöúýðþ")
CENTRAL = (
    "ąćęłńóśźż",
    "áčďéěíňóřšťúůýž",
    "áäčďéíĺľňóôŕšťúýž",
    "áéíóöőúüű",
    "čćđšž",
    "ăâîşţ",
    "äöüß",
)
CYRILLIC = ("абвгдежзийклмнопрстуфхцчшщъыьэюяё", "абвгґдеєжзиіїйклмнопрстуфхцчшщьюяўыё")
SERBIAN = ("абвгдђежзијклљмнњопрстћуфхцчџшѓќѕ",)

# Signs around words; and units with a sign.
OPENING = "‘“„«‹»›–—•·¿¡"
CLOSING = "’”»›«‹“–—…•·"
APOSTROPHE = re.compile("(?<=[A-Za-z])’(?=[A-Za-z])")
UNIT = re.compile(r"[a-z]{0,2}m[²³]|°[A-Z]?|[µμ][A-Za-z]{1,4}|[–—…•·±×€½¼¾®©™§£†ªº²³]")

DIGITS = "0123456789"

# No Latin letter has a code from this one on.
LATIN_ENDS = "\u0250"

# Words that have a character beyond ASCII, and lines with some that are looked at.
WORD = re.compile(r"[A-Za-z0-9]*[^\x00-\x7f\s](?:[A-Za-z0-9]|[^\x00-\x7f\s])*")
LINES = 10_000

# The largest share of words that are none in the right encoding.
MAX_WRONG = 0.2


@dataclass(frozen=True)
class Reading:
    """A text as it is in an encoding: its words beyond ASCII, and the share of those that are none.

    It is one of several that are compared.
    """

    encoding: str
    text: str
    words: Sequence[str]
    wrong: float


def find_likeliest(content: bytes) -> list[Reading]:
    """Return the readings in which most words are words: one, or if they differ, several.

    Return none if the words of each reading are no words.
    """
    readings = [*_readings(content)]
    least = min((each.wrong for each in readings), default=1.0)
    found = {each.text: each for each in reversed(readings) if each.wrong == least <= MAX_WRONG}
    return [*found.values()][::-1]


def _readings(content: bytes) -> Iterable[Reading]:
    for encoding, alphabets in _alphabets().items():
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        lines = [line for line in text.splitlines() if not line.isascii()]
        words = [*dict.fromkeys(WORD.findall("\n".join(lines[:LINES])))]
        wrong = min(sum(not _is_word(word, letters) for word in words) for letters in alphabets)
        yield Reading(encoding, text, words, wrong / max(1, len(words)))


@cache
def _alphabets() -> dict[str, Sequence[str]]:
    """Return the alphabets of each encoding: of Chinese and Japanese, the usual characters."""
    return {
        "cp1252": WESTERN,
        "cp1250": CENTRAL,
        "cp1251": (*CYRILLIC, *SERBIAN),
        "gb18030": (_rows("gb2312", range(0xB0, 0xD8)),),
        "cp932": (_rows("euc_jp", (0xA4, 0xA5, *range(0xB0, 0xD0))) + "ー々",),
        "mac_roman": WESTERN,
    }


def _rows(encoding: str, rows: Iterable[int]) -> str:
    cells = [bytes((row, cell)) for row in rows for cell in range(0xA1, 0xFF)]
    return "".join(cell.decode(encoding, "ignore") for cell in cells)


def _is_word(word: str, letters: str) -> bool:
    """Return whether a word, or a sign of units, has these letters, in one case.

    A word in Latin letters has some of ASCII: at least a third, as in été. A digit is beside a sign
    or several letters: 5°, £5, and Größe2.
    """
    plain = APOSTROPHE.sub("", word.lstrip(OPENING).rstrip(CLOSING))
    core = plain.strip(DIGITS)
    if core.isascii() or UNIT.fullmatch(core):
        return True
    beyond = [letter for letter in core.lower() if not letter.isascii()]
    has_case = core.lower() != core.upper()
    is_one_case = core.islower() or core.isupper() or core.istitle()
    if {*beyond} - {*letters} or (has_case and not is_one_case):
        return False
    if len(core) == 1:
        return core == plain or not has_case
    if letters[0] < LATIN_ENDS:
        return 3 * len(beyond) <= 2 * len(core)
    return len(beyond) == len(core)
