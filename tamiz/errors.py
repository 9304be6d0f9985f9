"""The one exception that means "the user can fix this"."""


class TamizError(Exception):
    """Bad input, told in one sentence that names file, field, what was found and what was expected.

    The CLI prints it without a traceback and exits with code 2.
    """
