"""Files written whole, locks, and processes that start and end together."""
