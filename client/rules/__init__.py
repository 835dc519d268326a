"""The client halves of methods: each rule changes a client's plain local training."""
