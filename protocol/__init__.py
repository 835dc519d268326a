"""What server and client say to each other: the names on the wire, the terms of a round's work, the random streams."""
