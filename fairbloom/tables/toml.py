"""Write parts of a schema as TOML."""

import json
import re


def quote(value: object) -> str:
    """Return a text, or a list, as TOML writes it."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_key(name: str) -> str:
    """Return a key as TOML writes it, in quotation marks where it needs them."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else quote(name)
