"""One client: answers QUERY, TRAIN and EVALUATE messages with its own data."""
