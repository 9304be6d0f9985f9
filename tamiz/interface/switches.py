"""Switches: a run can do without a technique.

The graph has an input ``without.TECHNIQUE`` (int64 ``[1]``) for each technique that can be switched
off, with the default 0. At 1 a run computes what a graph without the technique computes.
"""

#: What the names of these inputs begin with.
SWITCH = "without."


def switch_input(technique: str) -> str:
    """Name of the graph input that switches a technique off."""
    return SWITCH + technique


def is_switch(name: str) -> bool:
    """Whether a graph input of this name switches a technique off."""
    return name.startswith(SWITCH)
