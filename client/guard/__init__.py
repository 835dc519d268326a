"""What the owner of a device lets in and out: settings, schemas, limits, and the log of both."""
