"""Signs that the numbers of a column are codes: its name, and how its cells are written."""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cells import to_array
from .reading import Values

# Names of columns of codes, as in data bases of hospitals: condition_concept_id, ZIP, icd9_code.
CODED = re.compile(
    r"(.*[\W_])?(concept[\W_]?ids?|codes?|cd|icd[\W_]?(9|10|o)?([\W_]?(cm|gm|pcs))?|atc|loinc|snomed"
    r"|rxnorm|ndc|drg|cpt|ops|zip|post(al)?[\W_]?code|zip[\W_]?code|plz|postleitzahl|naics|isco)"
    r"([\W_]?\d)?",
    re.IGNORECASE,
)

# A number with a 0 before another digit, and one that ends with a 0 after the decimal mark.
PADDED = r"^0[0-9]+([.,][0-9]+)?$"
ENDS_WITH_ZERO = r"^[0-9]+[.,][0-9]*0$"
WRITTEN = r"^[0-9]+([.,][0-9]+)?$"

# Rows of a file that show how its numbers are written, and the share, and rows, that show it.
SAMPLE = 5_000
SHARE = 0.01
FEWEST_ROWS = 3

# Share of the numbers that have as many digits if all are rounded to some.
SAME_DIGITS = 0.9


class CodeSigns(NamedTuple):
    """How the numbers of a file are written; see `find_code_signs`."""

    is_padded: bool = False
    has_widths: bool = False


def find_code_signs(values: Values) -> CodeSigns:
    """Return whether a 0 is before another digit, and whether widths of decimals are mixed.

    As in 250.00, 401.9 and 486, of which programs would write the first as 250 or 250.0. Numbers
    that are rounded to as many digits, as 1.20, 12.0 and 120, have mixed widths, too.
    """
    import pyarrow as pa  # imported late: a server reads no tables
    from pyarrow import compute

    if not pa.types.is_string(values.type):
        return CodeSigns()
    texts = compute.utf8_trim_whitespace(values.slice(0, SAMPLE)).drop_null()

    def matches(pattern: str) -> NDArray[np.bool_]:
        return to_array(compute.match_substring_regex(texts, pattern))

    is_padded = _are_several(matches(PADDED))
    with_zero = matches(ENDS_WITH_ZERO)
    if not _are_several(with_zero):
        return CodeSigns(is_padded)
    after = compute.replace_substring_regex(texts, r"^[0-9]*[.,]?", "")
    digits = compute.replace_substring_regex(texts, r"^0*[.,]?0*|[.,]", "")
    is_number = matches(WRITTEN)
    decimals = to_array(compute.utf8_length(after))[is_number]
    lengths = to_array(compute.utf8_length(digits))[is_number]
    of_zeros = decimals[with_zero[is_number]]
    are_fewer = decimals < of_zeros.max()
    is_rounded = np.bincount(lengths).max() > SAME_DIGITS * len(lengths)
    return CodeSigns(is_padded, _are_several(are_fewer) and not is_rounded)


def _are_several(rows: NDArray[np.bool_]) -> bool:
    """Return whether some rows are enough to show how a file is written."""
    return int(rows.sum()) >= max(FEWEST_ROWS, SHARE * len(rows))
