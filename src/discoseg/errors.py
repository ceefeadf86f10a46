"""The one exception for what a user did: the command line shows its message in one line and exits with status 2."""


class UserError(ValueError):
    """Input that cannot work; the message names the file or option and says what to do about it.

    The message is one line without a trailing full stop. Anything that cannot happen, whatever the user does, is an
    ``assert`` instead.
    """
