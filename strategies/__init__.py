"""Fair federated methods as Flower strategies; each is one file that reads like its paper."""

from .fedavg import FedAvg
from .fedfv import FedFV
from .fedmgda import FedAvgN, FedMGDA, FedMGDAPlus
from .fedprox import FedProx
from .qffl import QFedAvg
from .round import Round
from .strategy import FairStrategy, Options

METHODS: dict[str, type[FairStrategy]] = {
    method.__name__.lower(): method for method in (FedAvg, FedProx, FedAvgN, QFedAvg, FedMGDA, FedMGDAPlus, FedFV)
}
"""Every method by its name on the command line."""

__all__ = [
    "METHODS",
    "FairStrategy",
    "FedAvg",
    "FedAvgN",
    "FedFV",
    "FedMGDA",
    "FedMGDAPlus",
    "FedProx",
    "Options",
    "QFedAvg",
    "Round",
]
