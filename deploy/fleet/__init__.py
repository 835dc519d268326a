"""The fleet port: messages of runs to devices, and their replies, over mutual TLS.

`fairbloom server` goes on as `daemon`, and `fairbloom client` as `client`.
"""

import os

# before gRPC is loaded: it would log each stranger's handshake
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
