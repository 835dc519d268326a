"""What users of Flower change in their client app; messages of server and client say it."""

HELPER = "app = fair(train_fn, test_fn)"
"""This line stands in place of `app = ClientApp()`; `train_fn = app.train_fn` follows it."""

ADVICE = f"write {HELPER} in the client app, or answer it there without PyTorch as docs/flower.md shows"
"""What to do where a client does not answer it."""
