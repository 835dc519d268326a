"""`python -m fairbloom.deploy.server FOLDER`: what `fairbloom server` and the systemd unit go on as."""

import sys

from .supervisor import main

sys.exit(main())
