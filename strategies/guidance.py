"""The direction from the clients' losses to equal losses, which FedMDFG and FedLF use."""

from typing import NamedTuple

import numpy as np

from fairbloom.rounds.method import FloatArray

# Losses count as equal up to this sine of the angle between them and equal losses.
EQUAL_LOSSES = 1e-6

# Up to this share of the norm, the shortest combination of rows of equal norm counts as zero: the
# rows have no common direction.
NOTHING_COMMON = 1e-3


class Guidance(NamedTuple):
    """The direction from the losses to equal losses, and the angle between them.

    Attributes
    ----------
    direction
        h, shape (m,), of norm 1 and orthogonal to the losses; positive if a loss must fall relative
        to the others.
    angle
        φ in degrees.
    """

    direction: FloatArray
    angle: float


def guidance(losses: FloatArray) -> Guidance | None:
    r"""Return the guidance of losses F, shape (m,), or None if they are equal or all zero.

    .. math:: h \propto \cos\varphi \, \frac{F}{\lVert F \rVert} - \hat p, \qquad
        \cos\varphi = \Big\langle \frac{F}{\lVert F \rVert}, \hat p \Big\rangle, \qquad
        \hat p = \frac{\mathbf 1}{\sqrt m}

    h_k is positive exactly for F_k > ‖F‖²/ΣF: a step down along Σ h_k u_k lowers high losses
    relative to the others. Except for its norm, h is the gradient of −cos φ with respect to F.

    Source: Pan et al., FedMDFG, AAAI 2023, appendix A.1; Pan et al., FedLF, AAAI 2024, equation 5.
    """
    largest = np.abs(losses).max(initial=0.0)
    if largest == 0.0:
        return None
    F = losses / largest  # so that no square overflows or underflows
    F /= np.linalg.norm(F)
    p = np.full(len(F), 1.0 / np.sqrt(len(F)))
    cosine = float(np.clip(F @ p, -1.0, 1.0))
    h = cosine * F - p
    sine = float(np.linalg.norm(h))
    if sine <= EQUAL_LOSSES:
        return None
    return Guidance(h / sine, float(np.degrees(np.arccos(cosine))))
