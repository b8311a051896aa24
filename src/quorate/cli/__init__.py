"""The command line: what a person or a script says to Quorate, and what it answers.

Exit codes: 0 all is well, 1 something was found (a violation, a surviving mutant, a failed scenario), 2 wrong
usage, 130 interrupted. Results go to stdout; progress and complaints go to stderr.
"""

from quorate.cli.entry import main

__all__ = ["main"]
