"""Everything that relies on what lies inside Flower, beside its documented API, or replaces it."""
