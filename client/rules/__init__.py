"""Client halves of methods: each is a rule in its own file, which changes a client's plain local steps."""
