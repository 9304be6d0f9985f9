"""Settings of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """How a server treats requests.

    Attributes:
        keys: Keys of which a request must have one; without any, requests need none.
        strict: Refuse requests with unknown fields instead of logging the fields' names.
        cache_scope: Who shares cached prefixes: requests of one key, or all.
        most_bytes: Largest body of a request.
        seconds: Time limit of an answer.
        mark: Part of the ids of responses, by which a router finds the server that keeps them.
    """

    keys: tuple[str, ...] = ()
    strict: bool = False
    cache_scope: Literal["key", "all"] = "key"
    most_bytes: int = 4 << 20
    seconds: float = 600.0
    mark: str = ""
