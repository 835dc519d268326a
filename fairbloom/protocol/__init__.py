"""What server and clients share: names on the wire, settings, terms, and random streams."""
