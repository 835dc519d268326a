"""An app in the shape of Flower's PyTorch quickstart: handwritten digits, and nothing of
Fairbloom."""
