"""The app that the README takes for granted."""
