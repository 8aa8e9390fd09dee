"""`python -m otherminds`, for where the command itself is not on the path."""

from otherminds.cli import main

main()
