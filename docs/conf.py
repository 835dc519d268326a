"""Configuration of the documentation."""

project = "Fairbloom"
extensions = ["myst_parser", "sphinx.ext.mathjax"]
html_theme = "furo"
html_title = "Fairbloom"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
