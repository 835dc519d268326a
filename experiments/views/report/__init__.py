"""The report of a run, a comparison or a reproduction: one HTML file that needs no network."""
