"""Speeds as ratios, both sides measured in one run."""
