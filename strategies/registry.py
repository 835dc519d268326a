"""All methods by name."""

import inspect
import re
from collections.abc import Mapping

from fairbloom.errors import FairbloomError, find_equally_near
from fairbloom.imports import imported, is_import_string
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort, Kept
from fairbloom.rounds.options import Options
from fairbloom.rounds.round import Round
from fairbloom.text import quote

from .aaggff import AAggFF
from .adafed import AdaFed
from .afl import AFL
from .deltafl import DeltaFL
from .ditto import Ditto, Local
from .drfa import DRFA
from .eagle import EAGLE
from .fairfed import FairFed
from .fairmoo import FairMOO
from .fcfl import FCFL
from .fedavg import FedAvg
from .fedavgn import FedAvgN
from .feddyn import FedDyn
from .fedfa import FedFa
from .fedfv import FedFV
from .fedlf import FedLF
from .fedmdfg import FedMDFG
from .fedmgda import FedMGDA, FedMGDAPlus, MGDAProx
from .fedprox import FedProx
from .fedpw import FedPW
from .flowers import advise_on_method
from .gifair import GiFair
from .propfair import PropFair
from .qffl import QFedAvg, QFedSGD
from .scaffold import SCAFFOLD
from .strategy import FairStrategy
from .term import TERM
from .torchjd import TORCHJD, FromTorchJD
from .vred import SemiVRed, VRed

# Every method by its name on the command line; FromTorchJD adds TorchJD's.
METHODS: dict[str, type[FairStrategy]] = {
    method.__name__.lower(): method
    for method in (
        # averages
        FedAvg,
        FedProx,
        FedAvgN,
        SCAFFOLD,
        FedDyn,
        # weights by losses or accuracies
        QFedAvg,
        QFedSGD,
        TERM,
        AFL,
        DRFA,
        DeltaFL,
        PropFair,
        GiFair,
        VRed,
        SemiVRed,
        EAGLE,
        FedFa,
        AAggFF,
        FedPW,
        # common descent, and conflicts between updates
        FedMGDA,
        FedMGDAPlus,
        MGDAProx,
        FedFV,
        AdaFed,
        FedMDFG,
        FedLF,
        FairMOO,
        # fairness between groups
        FairFed,
        FCFL,
        # personal models
        Ditto,
        Local,
    )
}

# The names of methods in papers, the usual one first, if they differ from the class's name.
PUBLISHED: Mapping[str, tuple[str, ...]] = {
    "fedavg": ("FedAvg", "Federated Averaging"),
    "fedavgn": ("FedAvg-n",),
    "scaffold": ("SCAFFOLD", "Stochastic Controlled Averaging"),
    "qfedavg": ("q-FedAvg", "q-FFL"),
    "qfedsgd": ("q-FedSGD",),
    "term": ("TERM", "Tilted ERM", "Tilted Empirical Risk Minimization"),
    "afl": ("AFL", "Agnostic Federated Learning", "Stochastic-AFL"),
    "drfa": ("DRFA", "Distributionally Robust Federated Averaging"),
    "deltafl": ("Δ-FL", "Delta-FL"),
    "gifair": ("GIFAIR-FL", "GIFAIR-FL-Global"),
    "semivred": ("Semi-VRed",),
    "aaggff": ("AAggFF", "AAggFF-S"),
    "fedmgdaplus": ("FedMGDA+",),
    "mgdaprox": ("MGDA-Prox",),
}


def _plain(name: str) -> str:
    """Return a name in lower case, without hyphens, underscores and spaces."""
    return re.sub(r"[-_\s]", "", name).casefold()


# The methods' names in settings, by their plain names in papers and settings.
KNOWN_AS = {_plain(alias): name for name in METHODS for alias in (name, *PUBLISHED.get(name, ()))}


def canonical(name: str) -> str:
    """Return a method's name in settings; our methods may be named as in papers, as q-FFL."""
    return KNOWN_AS.get(_plain(name), name)


def source_of(method: type[FairStrategy]) -> str:
    """Return the paper that a method's docstring names as its source, or ""."""
    found = re.search(
        r"^Source: (.+?)(?:\n\n|\n[A-Z][a-z ]+: |\Z)",
        inspect.getdoc(method) or "",
        re.MULTILINE | re.DOTALL,
    )
    return " ".join(found[1].split()) if found else ""


def published_name(name: str) -> str:
    """Return a method's name in its paper, by its name in settings."""
    return PUBLISHED.get(name, (METHODS[name].__name__,))[0]


def served_model(name: str) -> str:
    """Return the model that clients use: "global", or "personal" if our method trains no other.

    It is "global" for a user-defined method, which is not imported for this.
    """
    method = METHODS.get(canonical(name))
    return method.serves if method else "global"


def name_of(method: str | type[FairStrategy]) -> str:
    """Return a method's name in settings; the method is a class, or already a name.

    Raises
    ------
    FairbloomError
        If it is neither, or other modules cannot import the class.
    """
    if isinstance(method, str):
        return method
    if not (isinstance(method, type) and issubclass(method, FairStrategy)):
        raise FairbloomError(
            f"method = {quote(method)}: give a name or a class, such as FedFV and not"
            " FedFV(alpha=0.2); its parameters are settings, as in {'fedfv.alpha': 0.2}"
        )
    if method is FromTorchJD:
        raise FairbloomError(
            f"method = {method.__name__}: name the weighting of TorchJD, as {TORCHJD}upgrad"
        )
    if method in METHODS.values():
        return canonical(method.__name__)
    name = f"{method.__module__}:{method.__qualname__}"
    if not is_import_string(name) or imported("method", name) is not method:
        raise FairbloomError(
            f"method = {name}: no other module can import this class by its name: define it at the"
            " top level of a module, once, and not in a function"
        )
    return name


def find_method(name: str) -> type[FairStrategy]:
    """Return the class of a method: one of ours by its name, or a user's by its import string.

    Raises
    ------
    FairbloomError
        If the method is unknown, or the import string names something else.
    """
    if canonical(name) in METHODS:
        return METHODS[canonical(name)]
    if name.startswith(TORCHJD):
        return FromTorchJD
    if not is_import_string(name):
        hint = advise_on_method(_plain(name))
        if ";" in name:
            hint = f"separate methods by commas, as in {name.replace(';', ',')}; "
        near = find_equally_near(_plain(name), KNOWN_AS, least=0.8)
        if near and not hint:
            titles = dict.fromkeys(published_name(KNOWN_AS[each]) for each in near)
            hint = f"did you mean {' or '.join(titles)}? "
        raise FairbloomError(
            f"method = {name!r}: unknown method: {hint}there are {', '.join(METHODS)},"
            f" TorchJD's such as {TORCHJD}upgrad, and your own as my_module:Mine"
        )
    found = imported("method", name)
    if not (isinstance(found, type) and issubclass(found, FairStrategy)):
        raise FairbloomError(
            f"method = {name!r}: it is not a subclass of fairbloom.strategies.FairStrategy"
        )
    return found


__all__ = [
    "AFL",
    "DRFA",
    "EAGLE",
    "FCFL",
    "METHODS",
    "SCAFFOLD",
    "TERM",
    "AAggFF",
    "AdaFed",
    "Cohort",
    "DeltaFL",
    "Ditto",
    "FairFed",
    "FairMOO",
    "FairStrategy",
    "FedAvg",
    "FedAvgN",
    "FedDyn",
    "FedFV",
    "FedFa",
    "FedLF",
    "FedMDFG",
    "FedMGDA",
    "FedMGDAPlus",
    "FedPW",
    "FedProx",
    "FloatArray",
    "FromTorchJD",
    "GiFair",
    "Kept",
    "Local",
    "MGDAProx",
    "Options",
    "PropFair",
    "QFedAvg",
    "QFedSGD",
    "Round",
    "SemiVRed",
    "VRed",
    "canonical",
    "find_method",
    "name_of",
]
