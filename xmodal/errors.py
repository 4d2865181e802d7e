"""The one exception a person is meant to read."""


class UserError(Exception):
    """Something the user can act on: one line that says what is wrong and what to do.

    The command line prints it without a traceback and exits non-zero. Everything else that is raised is a defect.
    """
