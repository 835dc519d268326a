"""Fair federated methods as Flower strategies; each is one file that reads like its paper."""

from fairbloom.rounds.method import Options
from fairbloom.rounds.round import Round

from .adafed import AdaFed
from .afl import AFL
from .deltafl import DeltaFL
from .ditto import Ditto, Local
from .drfa import DRFA
from .fedavg import FedAvg
from .fedavgn import FedAvgN
from .fedfa import FedFa
from .fedfv import FedFV
from .fedmgda import FedMGDA, FedMGDAPlus, MGDAProx
from .fedprox import FedProx
from .gifair import GiFair
from .propfair import PropFair
from .qffl import QFedAvg, QFedSGD
from .strategy import FairStrategy
from .term import TERM
from .torchjd import FromTorchJD
from .vred import SemiVRed, VRed

METHODS: dict[str, type[FairStrategy]] = {
    method.__name__.lower(): method
    for method in (
        *(FedAvg, FedProx, FedAvgN),
        *(QFedAvg, QFedSGD, TERM, AFL, DRFA, DeltaFL, PropFair, GiFair, VRed, SemiVRed, FedFa),
        *(FedMGDA, FedMGDAPlus, MGDAProx, FedFV, AdaFed),
        *(Ditto, Local),
    )
}
"""Every method by its name on the command line; TorchJD's weightings come beside them, by FromTorchJD."""

__all__ = [
    "AFL",
    "DRFA",
    "METHODS",
    "TERM",
    "AdaFed",
    "DeltaFL",
    "Ditto",
    "FairStrategy",
    "FedAvg",
    "FedAvgN",
    "FedFV",
    "FedFa",
    "FedMGDA",
    "FedMGDAPlus",
    "FedProx",
    "FromTorchJD",
    "GiFair",
    "Local",
    "MGDAProx",
    "Options",
    "PropFair",
    "QFedAvg",
    "QFedSGD",
    "Round",
    "SemiVRed",
    "VRed",
]
