"""After training: predict with a finished run's model, or evaluate it at a new site."""
