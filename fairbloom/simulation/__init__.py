"""Many clients in one process, behind the interface that real nodes are behind."""
