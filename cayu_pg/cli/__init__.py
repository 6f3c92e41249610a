"""The command line: `cayu-pg`, also `python -m cayu_pg`."""

from __future__ import annotations

import sys

from cayu_pg.cli.parser import build_parser
from cayu_pg.errors import CayuPgError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 when it worked, 1 when it failed, 2 for wrong usage."""
    parsed = build_parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except CayuPgError as error:
        print(f"cayu-pg: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        print("cayu-pg: interrupted; what was committed stays, run it again to go on", file=sys.stderr)
        return 1
