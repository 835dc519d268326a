"""The server's SuperLink and SuperExec: Flower's, with a door, limits and a memory."""
