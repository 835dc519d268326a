"""Speeds as ratios, both sides measured in one run."""

import fairbloom as fairbloom  # before NumPy, whose BLAS then has one thread, as under our commands
