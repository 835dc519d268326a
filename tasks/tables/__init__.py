"""Data that a user has in files: tables, images and arrays, and what their clients agree on about them."""
