"""Requests that the Hub refuses."""

__all__ = ["HubError"]


class HubError(ValueError):
    """A request that the Hub refuses.

    Args:
        status: the HTTP status of the answer.
        message: what is wrong and what to do; sent as `X-Error-Message` and in the JSON body.
        code: the `X-Error-Code`, from which huggingface_hub picks its error (`RepoNotFound`, `RevisionNotFound`,
            `EntryNotFound`).
    """

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status = status
        self.code = code
