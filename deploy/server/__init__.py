"""What runs on the server: SuperLink and SuperExec, and the loop that keeps them up."""
