"""Run the command line with ``python -m polymux.cli``."""

import sys

from polymux.cli.command_line import main

sys.exit(main())
