"""Pages as values, and what makes text, HTML and figures of them."""
