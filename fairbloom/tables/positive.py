"""The positive one of two classes, which sensitivity, F1 and the rates of groups are of."""

import re
from collections.abc import Collection, Sequence

from .schema import fold, fold_cell

# The class that a 1 is opposed to, where it means yes; of 1 and 2, either may.
OPPOSITES = ("0", "-1")

# Words for what is usual, and for what is good: only the denial of one is a finding.
USUAL = re.compile(
    r"\b(normale?s?|health(y|ies)|controls?|gesunde?|kontrollen?|unauffällig|sain|témoins?|san[oa]s?"
    r"|saudável|frisk)\b"
)
GOOD = re.compile(
    rf"{USUAL.pattern[2:-2]}|well|alive|surviv|controlled|respon(d|se)|stab(le|il)|recover|remission"
    r"|cured|improve|complian|adheren|überleb|geheilt|success"
)

# Words, and parts of words, that deny: no diabetes, disease-free, HIV-, unstable, nonsmoker.
DENIAL = re.compile(
    r"\b(no|not|non|none|nil|never|without|absen(t|ce)|free|neg|negative?|false|keine?[mnrs]?|nicht"
    r"|nein|ohne|frei|falsch|negativ[oa]?|pas|sans|aucune?|négati(f|ve)|sin|ning[uú]n[oa]?|não|nao"
    r"|sem|senza|nessun[oa]?|ingen|inte|ej|utan|ikke|uden|geen|niet|zonder|nie|bez|brak)\b"
    rf"|^0(?![\w.,-])|(?<=[\w)])\s?-$|\bnon(?=\w{{4}})|\b(un|in|ab|dis)(?={GOOD.pattern})"
    r"|\bnot(?!e|ic|if|able|ch\b)(?=\w)"
    r"|\b(un|a)(?=(affected|infected|complicated|exposed|symptomatic)\b)"
)


def choose_positive(
    classes: Sequence[str], counts: Sequence[int], words: Collection[str]
) -> tuple[str, str]:
    """Return the class of two that is probably the positive one, and why.

    It is the one with a name among `words`, which are in lower case, or else the one that does not
    deny something, as "no diabetes" and "normal" do, or else the rarer one, or else the second.
    `counts` are the numbers of rows of each.
    """
    named = [
        name
        for name, other in zip(classes, reversed(classes), strict=True)
        if fold(name) in words and (name != "1" or other in OPPOSITES)
    ]
    if len(named) == 1:
        return named[0], "by its name"
    present = [name for name in classes if not _is_absence(name)]
    if len(present) == 1:
        return present[0], "by the other one's name"
    if counts[0] == counts[1]:
        return classes[1], "the second one"
    return classes[int(counts[1] < counts[0])], "the rarer one"


def _is_absence(name: str) -> bool:
    """Return whether a class is what is usual, or denies something else than what is good."""
    text = fold_cell(fold(name)).replace("_", " ").replace("(-)", "-")
    text = text.partition("(")[0].strip() or text  # no dementia (normal)
    is_denied = len([*DENIAL.finditer(text)]) % 2 == 1
    return not GOOD.search(text) if is_denied else bool(USUAL.search(text))


def ask_about_positive(reason: str) -> str:
    """Return the comment behind the positive class that a draft of a schema has chosen."""
    return f"{reason}: is it the class to find? Sensitivity, F1 and rates are of it"
