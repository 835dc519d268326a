"""The digest of frozen parameters, which server and client compare."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray


def digest_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a checksum of arrays with their names, dtypes and shapes, in any order."""
    total = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        total.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        total.update(array.tobytes())
    return total.hexdigest()
