"""What comes after training: a finished run's model, all that predictions need, and the forms it is exported in."""
