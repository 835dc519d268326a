"""Words in cells that may mean that a value is missing, but may also be an answer."""

import re

from .schema import fold_cell

# Errors of spreadsheets in any language: #WERT!, #¡VALOR!, #NOMBRE?, #N/D; #NV, #ND, #NL!.
ERROR = re.compile(r"#[^\s#]+(\s[^\s#]+)?[!?]|#n/.+|#n\w", re.IGNORECASE)

# HL7's null flavours but OTH, as another value is an answer; then signs; then the usual words of
# English, German, French, Italian, Spanish, Portuguese and Dutch.
WORDS = """
    ni|inv|der|ninf|pinf|unc|msk|na|unk|asku|nav|nask|navu|qs|trc|np
    |-|--|---|n/k|n.k.|n.a.|n.a|na.|n/d|n.d.|nd
    |none|null|nil|unknown|missing|not known|not done|not available|not applicable|not recorded
    |not reported|not stated|not specified|not assessed|not asked|not answered|not measured
    |not tested|not collected|not provided|no data|no answer|no information|no response|refused
    |refused to answer|declined|prefer not to say|don't know|do not know|dont know|undetermined
    |indeterminate|unspecified|pending|n/a
    |k.a.|k. a.|keine angabe|keine angaben|ohne angabe|o.a.|unbekannt|nicht bekannt|fehlt|fehlend
    |entfällt|entfaellt|nicht erhoben|nicht gemessen|nicht durchgeführt|nicht verfügbar
    |nicht beurteilbar|nicht zutreffend|verweigert|weiß nicht|weiss nicht|n.b.|n.e.
    |inconnu|inconnue|non connu|non renseigné|non renseignée|nr|n.r.|non fait|non réalisé
    |non disponible|non applicable|non précisé|sans objet|manquant|manquante|refus|ne sait pas|nsp
    |sconosciuto|sconosciuta|ignoto|non noto|non nota|non eseguito|non disponibile|non applicabile
    |non rilevato|mancante|rifiutato|non so|nessun dato
    |desconocido|desconocida|no consta|no disponible|no aplica|no realizado|no procede|faltante
    |sin dato|sin datos|sin información|ns/nc|no sabe|no contesta|se niega|ignorado
    |desconhecido|desconhecida|não informado|não realizado|não disponível|não se aplica|sem dados
    |sem informação|não sabe
    |onbekend|niet bekend|niet gedaan|niet gemeten|niet beschikbaar|niet van toepassing|n.v.t.|nvt
    |ontbreekt|geweigerd|weet niet
"""

KNOWN = frozenset(word.strip() for word in WORDS.split("|"))


def may_mean_missing(text: str) -> bool:
    """Return whether a text may mean that a value is missing."""
    folded = fold_cell(text).strip("()[]<>")
    return folded in KNOWN or ERROR.fullmatch(folded) is not None
