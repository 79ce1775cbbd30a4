"""What can go wrong, and what the caller can do about it.

Every error derives from `NoLagError` and says by `code` what happened, whether the same call may
succeed later (`retryable`), whether the client has given up (`fatal`), and whether a publish that
failed may have reached the broker all the same (`outcome_unknown`).
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


class NoLagError(Exception):
    """The base of all errors of this package."""

    #: What happened, as a stable text. Of `NoLagServerError` it is the broker's number, as it
    #: always was.
    code: Any = "error"
    #: The same call may succeed later, unchanged.
    retryable: bool = False
    #: The client has given up, and goes on only when asked to connect again.
    fatal: bool = False
    #: A publish failed that may have reached the broker.
    outcome_unknown: bool = False
    #: The operation.
    op: str | None = None
    #: The topic, room or lobby.
    topic: str | None = None
    #: The broker's number of the error.
    server_code: int | None = None
    #: What the broker suggests, for people.
    hint: str | None = None
    #: The publish's reference.
    msg_ref: str | None = None


class ConfigError(NoLagError):
    """A mistake in the program or its settings.

    `url_required`, `bad_url`, `bad_option` or `unsupported_runtime`.
    """

    code: Any = "bad_option"
    fatal: bool = True


class NotConnectedError(NoLagError):
    """The client was never connected, or is closed, or the message is not to be queued."""

    code: Any = "not_connected"
    retryable: bool = True

    def __init__(self, message: str = "Not connected") -> None:
        """Say so."""
        super().__init__(message)


class ConnectionError(NoLagError, builtins.ConnectionError):  # noqa: A001 — the suite's name in every language
    """The transport failed.

    `dns`, `refused`, `tls`, `handshake_rejected`, `connect_timeout`, `lost`, `heartbeat_timeout` or
    `protocol_error`. The client tries again by itself unless the error is fatal.
    """


class AuthError(NoLagError):
    """The broker refused the token or the connection.

    `access_denied`, `token_expired`, …, or its own text.
    """


class NoLagServerError(NoLagError):
    """The broker refused one operation; the connection goes on.

    `error` is the stable text, `code` and `server_code` the broker's number where there is one.
    """

    #: The broker's number, where there is one.
    code: int | None = None
    #: The stable text.
    error: str
    #: The limit that a payload was over, in bytes.
    max_size_bytes: int | None = None
    # The client said so itself, without asking the broker.
    _local = False

    def __init__(self, frame: Mapping[str, Any]) -> None:
        """Take the fields of the broker's `error` frame."""
        self.code = frame.get("code")
        self.server_code: int | None = self.code
        self.error: str = frame.get("error", "unknown_error")
        self.topic: str | None = frame.get("topic")
        self.hint: str | None = frame.get("hint")
        self.msg_ref: str | None = frame.get("msgRef")
        self.max_size_bytes: int | None = frame.get("maxSizeBytes")
        parts = [self.error]
        if self.code:
            parts.append(f"({self.code})")
        if self.topic:
            parts.append(f"on '{self.topic}'")
        if self.hint:
            parts.append(f"— {self.hint}")
        super().__init__(" ".join(parts))


class TimeoutError(NoLagError, builtins.TimeoutError):  # noqa: A001 — the suite's name in every language
    """No answer came in time.

    `ack_timeout`, `presence_timeout`, `lobby_timeout` or `flush_timeout`.
    """

    retryable: bool = True


class QueueError(NoLagError):
    """The queue of publishes could not keep a message.

    `queue_full`, `queue_expired` or `too_large`.
    """


class NoLagEncodeError(NoLagError):
    """A payload cannot be written as MessagePack: change the payload."""

    code: Any = "encode"

    def __init__(self, op: str, topic: str | None, cause: BaseException | str) -> None:
        """Say of which operation, and why."""
        self.op: str | None = op
        self.topic: str | None = topic
        target = f" to '{topic}'" if topic else ""
        super().__init__(
            f"Cannot encode payload for {op}{target}: {cause}. "
            "A payload is made of None, bool, int, float, str, bytes, datetime, "
            "and of lists and dicts of these."
        )


class ClosedError(NoLagError):
    """The client was closed (`closed`), gave up (`reconnect_exhausted`).

    Or the call was withdrawn (`aborted`).
    """

    code: Any = "closed"


class HandlerError(NoLagError):
    """A handler of the application failed; `__cause__` is what it raised."""

    code: Any = "handler"
    #: The message that it failed on, where there is one.
    msg_id: str | None = None


#: The names of the other languages.
ServerError: TypeAlias = NoLagServerError
EncodeError: TypeAlias = NoLagEncodeError

_CLASSES: dict[str, type[NoLagError]] = {
    kind.__name__: kind
    for kind in (
        ConfigError,
        NotConnectedError,
        ConnectionError,
        AuthError,
        TimeoutError,
        QueueError,
        ClosedError,
    )
}


def _from_native(kind: str, code: str, message: str, fields: dict[str, Any]) -> NoLagError:
    """Make the exception for an error of the core."""
    error: NoLagError
    if kind == "ServerError":
        error = NoLagServerError(
            {
                "code": fields["server_code"],
                "error": code,
                "topic": fields["topic"],
                "hint": fields["hint"],
                "msgRef": fields["msg_ref"],
                "maxSizeBytes": fields["max_size_bytes"],
            }
        )
        error._local = fields["local"]
    elif kind == "EncodeError":
        error = NoLagEncodeError(fields["op"], fields["topic"], message)
    else:
        error = _CLASSES[kind](message)
        error.code = code
        error.topic = fields["topic"]
    error.retryable = fields["retryable"]
    error.fatal = fields["fatal"]
    error.outcome_unknown = fields["outcome_unknown"]
    return error
