"""What calls to the API server and the work around them can fail with. Nobody above `kube` sees the client's own errors."""


class OperatorError(Exception):
    """Base of everything raised on purpose."""


class KubeError(OperatorError):
    """A call to the API server did not succeed; the message holds the call and the server's words."""

    def __init__(self, message: str, words: str = "") -> None:
        super().__init__(message)
        self.words = words
        """What the server said, without the call: what a user can be told. Empty when it said nothing."""


class NotFound(KubeError):
    pass


class Conflict(KubeError):
    """A resourceVersion or UID precondition did not hold: somebody else wrote in between."""


class AlreadyExists(KubeError):
    pass


class Invalid(KubeError):
    """The server refuses the object itself."""


class Forbidden(KubeError):
    """Rights, quota or an admission policy refuse the call."""


class Gone(KubeError):
    """The resourceVersion is too old: list again."""


class Unavailable(KubeError):
    """No answer, a 5xx or a 429: worth trying again."""

    def __init__(self, message: str, words: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, words)
        self.retry_after = retry_after


class Silent(Unavailable):
    """A watch stream from which nothing came for too long. It may be dead, or there was nothing to tell."""


class LeaseLost(OperatorError):
    """This process does not hold the Lease (any more): it must not write."""


class LeaseRefused(OperatorError):
    """Another release's operator holds the Lease and lives."""
