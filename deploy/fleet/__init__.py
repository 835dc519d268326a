"""The fleet port: it carries messages of runs to devices, and their replies, over mutual TLS.

`fairbloom server` becomes the module `daemon`, and `fairbloom client` the module `client`.

Content rests and travels in pieces. This table lists how often our own code copies its
bytes, and takes their digest (BLAKE3), which finds a reply again after a kill and a torn file:

| hop               | copies | digests | what is copied                                           |
|-------------------|--------|---------|----------------------------------------------------------|
| run to server     | 1      | 1       | the arrays' bytes, into a file that the server keeps     |
| server to device  | 1      | 0       | each piece of that file, as gRPC takes only bytes        |
| in the device     | 1      | 1       | each chunk, into a file: it is used once it is verified  |
| session to worker | 0      | 0       | the worker maps that file and reads it in place          |
| worker to session | 1      | 1       | the arrays' bytes, into a file, which becomes the reply  |
| device to server  | 1      | 0       | each piece of that file, as gRPC takes only bytes        |
| in the server     | 1      | 1       | each chunk, into a file, in memory or on the disk        |
| server to run     | 0      | 0       | the run maps that file and reads it in place             |

Once is enough, as every other step hands on a file or views. A copy is needed where memory is not
shared yet (between processes), and where a library needs bytes.
"""

import os

# set before gRPC is loaded: otherwise it logs each stranger's handshake
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
