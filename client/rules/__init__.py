"""Client halves of methods: each is a rule in its own file, which says what a client does beside plain local steps."""
