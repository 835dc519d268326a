"""Pages as values, and renderers to text, HTML and figures."""
