"""The fleet port: messages of runs to devices, and their replies, over mutual TLS.

`fairbloom server` and `fairbloom client` do not use it: its server is `daemon`, and a device is `client`.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before gRPC is loaded: it would log each stranger's handshake
