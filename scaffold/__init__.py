"""The first files of a user's own app."""
