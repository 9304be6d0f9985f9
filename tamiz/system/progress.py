"""How long work reports how far it is."""

from collections.abc import Callable

#: Takes what is running, steps done and steps in all; both are 0 where they are not known.
Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Reports nothing."""
