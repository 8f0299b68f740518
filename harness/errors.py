"""The one error that the command line turns into a line on standard error and exit code 2."""


class UserError(Exception):
    """Something the user can mend: says what came, what was expected, and what to do next, in one line."""
