"""The app that a run or a client names by an import string."""

import importlib
from typing import Any, TypeVar

App = TypeVar("App")


def load_app(app: str, kind: type[App], of: str) -> App:
    """Return the app of this kind that an import string, module:attribute, names; ImportError where there is none.

    `of` says in the error whose app it is: "this client", or "this run".
    """
    module, _, path = app.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"app = {app!r} of {of} cannot be loaded: {error}") from error
    if not isinstance(found, kind):
        raise ImportError(f"app = {app!r} of {of} is of type {type(found).__name__}, no {kind.__name__}")
    return found
