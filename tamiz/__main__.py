"""``python -m tamiz``: the command line, where its script is not on the path."""

from tamiz.cli import main

main(prog_name="tamiz")
