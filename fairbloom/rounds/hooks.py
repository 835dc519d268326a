"""Find misspelt hooks in a method's class: no run would call them, and nothing would say so.

Functions of a user's own are called by another function of the class.
"""

import inspect
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType

# What a class may define for a run to use: functions, then declarations.
FUNCTIONS = (
    "weigh",
    "learn",
    "choose",
    "probe",
    "recalls",
    "sends",
    "terms",
    "own_metrics",
    "prior_weights_of",
    "find_idle",
    "paced",
    "start",
    "configure_train",
    "aggregate_train",
    "configure_evaluate",
    "aggregate_evaluate",
)
DECLARATIONS = (
    "needs",
    "requires",
    "reports",
    "second",
    "serves",
    "own_terms",
    "fixed_weights",
    "sums",
    "default_weighting",
    "drawn_by_examples",
    "largest_loss",
    "lost_to_server_optimizers",
)

# Names under which users look for what another hook does.
ELSEWHERE = {
    "remember": "return what to remember from weigh, as in Decision(coefficients, memory, keep), or"
    " from learn"
}


def explain_misspelt(cls: type) -> str:
    """Return as text which name of a method's class is nearly a hook's, and the remedy; or ""."""
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
    for name, value in vars(cls).items():
        if name.startswith("_") or name in inherited:
            continue
        remedy = _find_remedy(cls, name, value)
        if remedy and name not in _names_used_by(cls):
            return (
                f"{cls.__name__}.{name}: nothing calls it: {remedy}. If it is your own, begin its"
                " name with _"
            )
    return ""


def _find_remedy(cls: type, name: str, value: object) -> str:
    """Return what to write in place of a name that is nearly a hook's, or ""."""
    for hook in (*FUNCTIONS, *DECLARATIONS):
        if is_near(name, hook) and hook not in vars(cls) and _is_alike(cls, hook, value):
            return f"write {hook} if you mean it"
    return next((remedy for other, remedy in ELSEWHERE.items() if is_near(name, other)), "")


def is_near(name: str, hook: str) -> bool:
    """Return whether two names are the same but for a letter of each; case and _ do not count.

    So they are if a letter is missing, or another one, or has changed its place.
    """
    return not _shorten(name).isdisjoint(_shorten(hook))


def _shorten(name: str) -> set[str]:
    """Return a name, and the name without each of its letters."""
    letters = name.replace("_", "").casefold()
    return {letters, *(letters[:place] + letters[place + 1 :] for place in range(len(letters)))}


def _is_alike(cls: type, hook: str, value: object) -> bool:
    """Return whether a value could be the hook: a function that takes its arguments, for one."""
    there = getattr(cls, hook, None)
    if not inspect.isfunction(there) or not inspect.isfunction(value):
        return isinstance(value, type(there))
    with suppress(TypeError):
        inspect.signature(value).bind(*inspect.signature(there).parameters)
        return True
    return False


def _names_used_by(cls: type) -> set[str]:
    """Return the names that functions of a user's classes use."""
    ours = __name__.partition(".")[0]
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] != ours]
    return {name for base in own for value in vars(base).values() for name in _names_in(value)}


def _names_in(value: object) -> Iterator[str]:
    """Yield the names that a function uses, and functions in it; nothing of another value."""
    if isinstance(value, CodeType):
        yield from value.co_names
        for constant in value.co_consts:
            yield from _names_in(constant)
        return
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if isinstance(function, FunctionType):
        yield from _names_in(inspect.unwrap(function).__code__)
