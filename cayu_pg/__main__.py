"""`python -m cayu_pg`."""

import sys

from cayu_pg.cli import main

sys.exit(main())
