"""The direction from the clients' losses to equal ones, which both FedMDFG and FedLF guide by."""

from typing import NamedTuple

import numpy as np

from fairbloom.rounds.method import FloatArray

EQUAL_LOSSES = 1e-6
"""The sine of the angle between the losses and equal ones up to which they count as equal."""

NOTHING_COMMON = 1e-3
"""A shortest combination of rows of one length that has at most this share of it is no common
direction."""


class Guidance(NamedTuple):
    """How far the losses are from equal ones, and where to.

    The direction h, of length 1 and orthogonal to the losses, shape (m,), is positive where a loss
    is to fall relative to the others; `cosine` and the angle φ, in degrees, are between the losses
    and equal ones.
    """

    direction: FloatArray
    cosine: float
    angle: float


def guidance(losses: FloatArray) -> Guidance | None:
    r"""Return the guidance of losses F, shape (m,).

    None where there is none, as they are equal or all zero.

    .. math:: h \propto \cos\varphi \, \frac{F}{\lVert F \rVert} - \hat p, \qquad
        \cos\varphi = \Big\langle \frac{F}{\lVert F \rVert}, \hat p \Big\rangle, \qquad
        \hat p = \frac{\mathbf 1}{\sqrt m}

    h_k is positive exactly for F_k > ‖F‖²/ΣF: a step down along Σ h_k u_k lowers high losses beside
    the others. It is the gradient of −cos φ with respect to F, but for its length.

    Source: Pan et al., FedMDFG, AAAI 2023, appendix A.1; Pan et al., FedLF, AAAI 2024, equation 5.
    """
    largest = np.abs(losses).max(initial=0.0)
    if largest == 0.0:
        return None
    F = losses / largest  # the squares of neither large nor small losses leave the range of numbers
    F /= np.linalg.norm(F)
    p = np.full(len(F), 1.0 / np.sqrt(len(F)))
    cosine = float(np.clip(F @ p, -1.0, 1.0))
    h = cosine * F - p
    length = float(np.linalg.norm(h))
    if length <= EQUAL_LOSSES:
        return None
    return Guidance(h / length, cosine, float(np.degrees(np.arccos(cosine))))
