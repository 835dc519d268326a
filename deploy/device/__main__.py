"""`python -m fairbloom.deploy.device SETTINGS`: what `fairbloom client` goes on as."""

import sys

from .supervisor import main

sys.exit(main())
