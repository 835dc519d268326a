"""What can be run: published experiments as TOML files, and methods with parameters as a comparison takes them."""
