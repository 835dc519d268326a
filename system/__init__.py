"""What Fairbloom asks of the operating system: files written whole, locks, processes that start and end together."""
