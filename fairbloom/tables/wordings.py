"""Two answers in several languages: yes and no, female and male."""

from collections.abc import Collection, Mapping

from .schema import fold_look, normalise

# Each line is a question: its two answers in English, German, French, Italian, Spanish, Portuguese,
# Dutch, and the languages of the north and east of Europe.
YES_NO = """
    yes no|y n|true false|t f|ja nein|j n|wahr falsch|oui non|o n|vrai faux|sì no|si no|s n
    |vero falso|sí no|verdadero falso|sim não|sim nao|verdadeiro falso|ja nee|waar onwaar|ja nej
    |ja nei|kyllä ei|tak nie|ano ne|да нет|так ні
"""
FEMALE_MALE = """
    female male|f m|woman man|girl boy|weiblich männlich|w m|frau mann|femme homme
    |féminin masculin|fille garçon|femmina maschio|donna uomo|femminile maschile|mujer hombre
    |mujer varón|femenino masculino|hembra macho|feminino masculino|mulher homem|vrouw man|v m
    |vrouwelijk mannelijk|kvinna man|kvinne mann|kvinde mand|nainen mies|kobieta mężczyzna|žena muž
    |женский мужской|жен муж
"""


def _fold(word: str) -> str:
    return fold_look(normalise(word))


def _read_pairs(pairs: str, usual: tuple[str, str]) -> Mapping[frozenset[str], Mapping[str, str]]:
    """Return the usual word of each of two words, by both."""
    found = {}
    for pair in pairs.split("|"):
        words = [_fold(word) for word in pair.split()]
        found[frozenset(words)] = dict(zip(words, usual, strict=True))
    return found


# The English word of each answer, by the two words that a column has.
ANSWERS = {**_read_pairs(YES_NO, ("yes", "no")), **_read_pairs(FEMALE_MALE, ("female", "male"))}


def read_answers(values: Collection[str]) -> dict[str, str]:
    """Return the English word of each of a column's two values, {} if it has others.

    A letter means what the other one says: f and m, f and t.
    """
    if len(values) != 2:
        return {}
    folded = {text: _fold(text) for text in values}
    meant = ANSWERS.get(frozenset(folded.values()), {})
    return {text: meant[word] for text, word in folded.items()} if meant else {}
