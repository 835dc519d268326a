"""Names of units, as column names have them in brackets: (kg), [mmol/l], (10^9/L)."""

import re

# What a unit consists of, in lower case and without accents; PREFIXED ones also with a sign of a
# thousandth and so on.
PREFIXED = "g|m|l|s|mol|osm|eq|pa|bar|cal|j|n|v|w|hz|u|iu|kat|gy|sv|bq|da|г|м|л|моль"
WHOLE = (
    r"%|‰|°|°c|°f|c|f|k|h|d|min|mmhg|mm hg|cmh2o|inhg|lbs?|oz|in|inch|inches|ft|foot|feet|mi|miles?"
    r"|yd|psi|bpm|beats|celsius|fahrenheit|kelvin|kilos?|grams?|kilograms?|pounds?|met(?:er|re)s?"
    r"|lit(?:er|re)s?|points?|percent|[$€£¥]|eur|usd|chf|gbp|уд|公斤|千克|克|毫克|厘米|米|毫升|升|次"
)
TIMES = (
    "years?|yrs?|y|months?|mos?|mths?|weeks?|wks?|days?|hours?|hrs?|minutes?|mins?|seconds?|secs?"
    "|jahren?|monaten?|wochen?|tagen?|stunden?|minuten|sekunden|ans|annees?|mois|semaines?|jours?"
    "|heures?|anos?|mes|meses|semanas?|dias?|horas?|ann[io]|mes[ie]|settimane?|giorn[io]|ore"
    "|лет|год[аы]?|мес|недели?|день|днеи|дня|сут|ч|час[ао]?в?|мин|сек|с"
    "|岁|歳|歲|才|年|月|周|週|天|日|小时|小時|时間|時間|分钟|分|秒"
)
PART = rf"(?:(?:[fpnumkhcdµμмкс]|da|мк)?(?:{PREFIXED})|{WHOLE}|{TIMES}|10(?:\^|\*+|e)?[0-9]+)"
POWER = r"(?:\^?-?[234])?"
# The surface of a usual body is a unit of filtration rates.
UNIT = re.compile(
    rf"{PART}{POWER}(?:\s*(?:[/*·.x×]|\s|per)\s*(?:1[.,]73\s*|[0-9]+\s*)?{PART}{POWER})*"
)


def is_unit(text: str) -> bool:
    """Return whether a text is a unit that is known: kg, mmol/l, kg/m², ml/min/1.73 m², years."""
    return UNIT.fullmatch(text.strip().casefold()) is not None
