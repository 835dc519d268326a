"""Tests that every method or client-side rule must pass, with reports of the failures."""
