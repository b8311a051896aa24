"""`python -m quorate` is the `quorate` command."""

from quorate.cli import main

main()
