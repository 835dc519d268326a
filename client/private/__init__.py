"""Record-level differential privacy by an account that a device's owner opens: docs/private.md."""
