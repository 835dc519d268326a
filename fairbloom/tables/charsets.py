"""Find the encoding of a text that is not UTF-8: the one in which its words are words."""

import re
from collections.abc import Iterable, Sequence


def _characters(encoding: str, rows: Iterable[int]) -> str:
    """Return the characters in rows of a table of 94 x 94 characters."""
    return "".join(
        bytes((row, cell)).decode(encoding, "ignore") for row in rows for cell in range(0xA1, 0xFF)
    )


# The letters beyond ASCII, in lower case, of languages that share files: Romance and German,
# Iberian, Nordic, Icelandic.
WESTERN = ("àâäæçèéêëìíîïòóôöœùúûüÿß", "áàâãçéêíïñòóõôúü", "åäæéèöøüß", "áæéíóöúýðþ")

# The encodings, and the letters of one text: Polish, Czech, Slovak, Hungarian, South Slavic,
# Romanian and German; Russian and Bulgarian, Ukrainian and Belarusian, Serbian and Macedonian; the
# usual characters of Chinese and Japanese.
ALPHABETS: dict[str, Sequence[str]] = {
    "cp1252": WESTERN,
    "cp1250": (
        "ąćęłńóśźż",
        "áčďéěíňóřšťúůýž",
        "áäčďéíĺľňóôŕšťúýž",
        "áéíóöőúüű",
        "čćđšž",
        "ăâîşţ",
        "äöüß",
    ),
    "cp1251": (
        "абвгдежзийклмнопрстуфхцчшщъыьэюяё",
        "абвгґдеєжзиіїйклмнопрстуфхцчшщьюяўыё",
        "абвгдђежзијклљмнњопрстћуфхцчџшѓќѕ",
    ),
    "gb18030": (_characters("gb2312", range(0xB0, 0xD8)),),
    "cp932": (_characters("euc_jp", (0xA4, 0xA5, *range(0xB0, 0xD0))) + "ー々",),
    "mac_roman": WESTERN,
}

# Signs before, after and in words; and units and signs without words.
SIGNS = re.compile(r"^[‘“„«‹»›–—…•·¿¡]+|[’”»›«‹“–—…•·]+$|(?<=[A-Za-z])’(?=[A-Za-z])")
UNIT = re.compile(r"[a-z]{0,2}m[²³]|°[A-Z]?|[µμ][A-Za-z]{1,4}|[–—•·±×€½¼¾®©™§£†ªº²³]")

# A word that has a character beyond ASCII.
WORD = re.compile(r"[A-Za-z0-9]*[^\x00-\x7f\s](?:[A-Za-z0-9]|[^\x00-\x7f\s])*")

# Lines beyond ASCII of which the words are looked at.
MAX_LINES = 10_000

# The largest share of words that are none in the right encoding.
MAX_WRONG = 0.2


def find_likeliest(content: bytes) -> list[tuple[str, str, Sequence[str]]]:
    """Return the encoding in which most words beyond ASCII are words, the text, and the words.

    Return several if the texts differ and are equally likely, and none if most words are none.
    """
    found: dict[str, tuple[str, Sequence[str]]] = {}
    least = MAX_WRONG
    sample = b"\n".join([line for line in content.splitlines() if not line.isascii()][:MAX_LINES])
    for encoding, alphabets in ALPHABETS.items():
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        words = [*dict.fromkeys(WORD.findall(sample.decode(encoding)))]
        wrong = min(sum(not _is_word(word, letters) for word in words) for letters in alphabets)
        if (share := wrong / max(1, len(words))) < least:
            found.clear()
            least = share
        if share <= least:
            found.setdefault(text, (encoding, words))
    return [(encoding, text, words) for text, (encoding, words) in found.items()]


def _is_word(word: str, letters: str) -> bool:
    """Return whether a word, or a sign of units, has these letters, in one case.

    A quarter of a word in Latin letters is in ASCII, as in Łódź. A digit is beside a sign or
    several letters: 5°, £5, Größe2.
    """
    plain = SIGNS.sub("", word)
    core = plain.strip("0123456789")
    if core.isascii() or UNIT.fullmatch(core):
        return True
    beyond = [letter for letter in core.lower() if not letter.isascii()]
    if {*beyond} - {*letters} or core not in (core.lower(), core.upper(), core.title()):
        return False
    if len(core) == 1:
        return core == plain or core.lower() == core.upper()
    if letters[0] < "\u0250":  # Latin ones
        return 4 * len(beyond) <= 3 * len(core)
    return len(beyond) == len(core)
