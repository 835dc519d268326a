"""Federated learning on Flower that leaves no client behind.

`from fairbloom.strategies import FedFV` works wherever Fairbloom is installed, in a checkout, and in the bundle that
`flwr run` makes of one.
"""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_here = Path(__file__).parent
if not (_here / "strategies").is_dir():
    # A checkout, and the bundle that Flower makes of it, have the packages beside this one; a wheel has them inside.
    __path__.append(str(_here.parent))

try:
    __version__ = version("fairbloom")
except PackageNotFoundError:  # a checkout on the path that nobody installed
    __version__ = "0+unknown"
