"""What the federation's operator does: a folder of certificates, clients and credentials, and commands on it."""
