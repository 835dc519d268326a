"""Federated learning on Flower that leaves no client behind.

`from fairbloom.strategies import FedFV` works wherever Fairbloom is installed, in a checkout, and
in the bundle that `flwr run` makes of one. What is exported here is imported when it is first asked
for.
"""

from importlib import import_module
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any

# NumPy's BLAS reads it when it is loaded: with one thread, sums are the same on any number of
# processor cores.
environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_here = Path(__file__).parent
if not (_here / "strategies").is_dir():
    # A wheel has all packages inside this one, and a checkout has links to the four beside it. The
    # bundle that Flower makes of a checkout has no links, nor has a checkout on a system without
    # them, or an archive of sources: the four packages lie next to this one.
    __path__.append(str(_here.parent))

__all__ = [
    "Comparison",
    "Evaluation",
    "FairbloomError",
    "RecordedRound",
    "Reproduction",
    "Run",
    "RunFolder",
    "Score",
    "Search",
    "StopRun",
    "__version__",
    "check_data",
    "check_method",
    "compare",
    "evaluate",
    "load",
    "refit",
    "reproduce",
    "run",
    "search",
]

if TYPE_CHECKING:
    from fairbloom.errors import FairbloomError
    from fairbloom.experiments.api import (
        Comparison,
        Evaluation,
        Reproduction,
        Run,
        Search,
        check_data,
        compare,
        evaluate,
        load,
        refit,
        reproduce,
        run,
        search,
    )
    from fairbloom.experiments.method_check import check_method
    from fairbloom.protocol.scores import Score
    from fairbloom.rounds.round import StopRun
    from fairbloom.server.run_folder.flower import RunFolder
    from fairbloom.server.run_folder.recorded import RecordedRound

    __version__: str
else:
    _PLACES = {
        **dict.fromkeys(__all__, "fairbloom.experiments.api"),
        "FairbloomError": "fairbloom.errors",
        "RecordedRound": "fairbloom.server.run_folder.recorded",
        "RunFolder": "fairbloom.server.run_folder.flower",
        "Score": "fairbloom.protocol.scores",
        "check_method": "fairbloom.experiments.method_check",
        "StopRun": "fairbloom.rounds.round",
    }

    def __getattr__(name: str) -> Any:
        """Import an exported name from its module."""
        # looking it up takes most of the time in which Ctrl-C prints a traceback
        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                return version("fairbloom")
            except PackageNotFoundError:  # a checkout on the path, not installed
                return "0+unknown"
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_PLACES[name]), name)

    def __dir__() -> list[str]:
        """Return the names that are exported, for completion."""
        return sorted({*globals(), *_PLACES})
