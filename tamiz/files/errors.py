"""The one exception that means "the user can fix this"."""

import errno
import os
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class TamizError(Exception):
    """Bad input. The message is one sentence with file, field, found and expected value.

    The CLI prints it without a traceback and exits with code 2. Its text may quote what a file
    holds, so it is escaped and shortened; see `printable`.
    """

    def __str__(self) -> str:
        """The sentence, safe to print."""
        return printable(super().__str__())


class UnwritableError(TamizError):
    """A file that cannot be written: no space, no permission, no such folder."""


class NoSpaceError(UnwritableError):
    """A full disk or quota: the input is fine, and the command can be run again."""


class LostWorkerError(TamizError):
    """A worker process that ended: the input is fine, and the command can be run again."""


#: Numbers of the errors that mean a full disk, and how they appear in errors of safetensors, which
#: is written in Rust.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_IN_RUST = tuple(f"(os error {number})" for number in NO_SPACE)


#: Characters of a text that `printable` keeps.
_LONGEST = 1000


def printable(text: str, longest: int = _LONGEST) -> str:
    """A text without what a terminal would obey, and without the middle of a very long one.

    Args:
        text: May come from a file that is not trusted.
        longest: Most characters to keep.
    """
    if not text.isprintable():
        text = "".join(_escaped(character) for character in _shortened(text, longest))
    return _shortened(text, longest)


def _shortened(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end]} … {text[-end:]}"


def _escaped(character: str) -> str:
    kept = character.isprintable() or unicodedata.category(character) == "Zs"
    return character if kept else character.encode("unicode_escape").decode("ascii")


def without_controls(text: str) -> str:
    """A text without control characters, which a terminal would obey, but for line breaks and tabs.

    Args:
        text: What a model writes.
    """
    return text if text.isprintable() else "".join(filter(_is_text, text))


def _is_text(character: str) -> bool:
    return character in "\n\t" or unicodedata.category(character) != "Cc"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of an error about an unknown name: ``; did you mean 'kwta'?``, or nothing.

    Args:
        name: What was found.
        names: What would have been understood.
    """
    from difflib import get_close_matches

    close = get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


@contextmanager
def naming(path: os.PathLike[str], *others: type[Exception]) -> Iterator[None]:
    """Turns what the system says where a file is written into one sentence that names the file.

    Args:
        path: The file, or the folder that is written.
        *others: What else than OSError means that it cannot be written.

    Raises:
        NoSpaceError: There is no space for it.
        UnwritableError: It cannot be written for another reason.
    """
    kinds: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except kinds as error:
        reason = getattr(error, "strerror", None) or error
        full = getattr(error, "errno", None) in NO_SPACE or str(error).endswith(_IN_RUST)
        kind = NoSpaceError if full else UnwritableError
        raise kind(f"{path}: cannot be written: {reason}") from error


@contextmanager
def blaming(who: str, *expected: type[Exception]) -> Iterator[None]:
    """Turns whatever a plugin's code raises into one sentence that names it.

    Args:
        who: The plugin's contribution, as the user knows it: ``technique block-quant``.
        *expected: What it may raise; that passes.

    Raises:
        TamizError: The code raised something else than that.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (TamizError, MemoryError, *expected)):
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise TamizError(f"{who} is broken and can be switched off: it raised {what}") from error
