"""After training: predict with a finished run's model, evaluate it at a new site, or export it."""
