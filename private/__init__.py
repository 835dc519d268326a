"""Sums of numbers and vectors of several clients, of which the server sees no single one.

It knows neither Flower nor models: `client` has what a client answers, `server` what a server asks.
"""
