"""The fleet port: it carries messages of runs to devices, and their replies, over mutual TLS.

`fairbloom server` becomes the module `daemon`, and `fairbloom client` the module `client`.
"""

import os

# set before gRPC is loaded: otherwise it logs each stranger's handshake
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
