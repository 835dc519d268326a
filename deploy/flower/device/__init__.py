"""A client's SuperNode: Flower's, with the app kept in its process."""
