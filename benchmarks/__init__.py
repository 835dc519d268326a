"""Benchmarks: ratios of speeds, with both sides measured in one run."""

# Before NumPy: fairbloom sets the number of its BLAS threads to one, as under our commands.
import fairbloom as fairbloom
