"""The forms in which a model leaves Fairbloom: each is a file here that writes it, reads it back and shows its use."""
