"""What the Hub answers when it refuses a request."""


class HubError(ValueError):
    """A request that the Hub turns down.

    Args:
        status: the HTTP status of the answer.
        message: what was wrong and what to do; sent as `X-Error-Message` and in the JSON body.
        code: the `X-Error-Code` by which huggingface_hub picks its named error (`RepoNotFound`,
            `RevisionNotFound`, `EntryNotFound`), or None.
    """

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status = status
        self.code = code
