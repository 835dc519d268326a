"""Letters of other scripts that look like Latin ones: А, В, С from a keyboard of two alphabets."""

import unicodedata

# Cyrillic and Greek letters, and below each the Latin one of the same look (Unicode Technical
# Standard 39, confusables, without those that only resemble one).
LOOK_ALIKE = str.maketrans(
    "АВЕКМНОРСТУХЅІЈԚԜ" + "аеорсухѕіјһԁԛԝ" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ" + "οι",
    "ABEKMHOPCTYXSIJQW" + "aeopcyxsijhdqw" + "ABEZHIKMNOPTYX" + "oi",
)

# A text of only such letters is a word of its script, unless it is as short as a code.
LONGEST_CODE = 2


def as_latin(text: str) -> str:
    """Return a text with Latin letters for others of the same look, if all are Latin then.

    A word of another script stays as it is.
    """
    if text.isascii():
        return text
    plain = text.translate(LOOK_ALIKE)
    letters = [letter for letter in text if letter.isalpha()]
    is_mixed = any(map(str.isascii, letters))
    is_latin = plain.isascii() and (is_mixed or len(letters) <= LONGEST_CODE)
    return plain if is_latin else text


def name_script(text: str) -> str:
    """Return the script of the first letter that is not Latin: Cyrillic; "" if all are."""
    for letter in text:
        if letter.isalpha() and not letter.isascii():
            return unicodedata.name(letter, "another").partition(" ")[0].capitalize()
    return ""


def show_script(text: str) -> str:
    """Return a text as a sentence quotes it, with the script of a letter that looks like another.

    'А' (Cyrillic) and 'A' are the same on a screen.
    """
    script = name_script(text) if as_latin(text) != text else ""
    return f"{text!r} ({script})" if script else repr(text)
