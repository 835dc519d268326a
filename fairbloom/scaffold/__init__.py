"""The first files of a user's app."""
