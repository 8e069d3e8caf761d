"""What may go wrong for the person at the keyboard, as one sentence each. `__main__` prints them."""


class CliError(Exception):
    """The message is shown as it is."""


class NotFound(CliError):
    pass


class Unreachable(CliError):
    """No answer, or 5xx: worth trying again."""


class Refused(CliError):
    """The API server said no. `causes` are its (field, message) pairs."""

    def __init__(self, message: str, causes: tuple[tuple[str, str], ...] = (), code: int = 0) -> None:
        super().__init__(message)
        self.causes = causes
        self.code = code
