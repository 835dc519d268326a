"""The fleet port: it carries messages of runs to devices, and their replies, over mutual TLS.

`fairbloom server` becomes the module `daemon`, and `fairbloom client` the module `client`.

Content rests and travels in pieces. This table lists what our own code copies of it:

| hop               | copies | what                                                               |
|-------------------|--------|--------------------------------------------------------------------|
| run to server     | 1      | the arrays' bytes, into a file that the server maps (`passing`)    |
| server to device  | 1      | each piece of that file, as gRPC takes only bytes                  |
| in the device     | 1      | each chunk, into one buffer: nothing is used before it is verified |
| session to worker | 1      | the buffer, into a file that the worker maps and reads in place    |
| worker to session | 1      | the arrays' bytes, into a file that the session maps               |
| device to server  | 2      | each piece, into the kept reply's file and for gRPC                |
| in the server     | 0      | chunks stay as they came; beyond mailbox-memory: 1, into a file    |
| server to run     | 1      | the chunks, into a file that the run maps and reads in place       |

Once is enough, as every other step hands on views. A copy is needed where memory is not shared yet
(between processes), and where a library or a later restart needs the bytes for itself.
"""

import os

# set before gRPC is loaded: otherwise it logs each stranger's handshake
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
