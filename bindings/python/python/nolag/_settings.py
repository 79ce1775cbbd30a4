"""Options as users give them, for the native client."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from nolag.errors import ConfigError
from nolag.types import (
    BackoffOptions,
    DedupeOptions,
    EmitOptions,
    NoLagOptions,
    OfflineQueueOptions,
    Position,
    SubscribeOptions,
    TlsOptions,
    Token,
)

_T = TypeVar("_T")

#: How many messages of the history a subscription may begin with.
_MOST_HISTORY = 1_000

#: How many seconds a member of a group may take to acknowledge a message.
_LONGEST_ACK_TIMEOUT = 3_600

#: The longest name of a run of numbers, in bytes.
_LONGEST_EPOCH = 64

#: Options that the native client takes by the same name.
_SAME = (
    "reconnect",
    "max_reconnect_attempts",
    "heartbeat_interval",
    "qos",
    "initial_connect",
    "connect_timeout",
    "auth_timeout",
    "ack_timeout",
    "presence_timeout",
    "heartbeat_timeout",
    "ack_mode",
    "ack_batch_interval",
    "max_in_flight",
    "max_message_size",
    "receive_buffer",
    "token_refresh_margin",
)


def make(kind: type[_T], given: Any, what: str) -> _T:
    """Give options as their class; a mapping with an unknown key is refused."""
    if given is None:
        return kind()
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        message = f"{what}: {kind.__name__} or a mapping is expected, not {type(given).__name__}"
        raise ConfigError(message)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in names:
            message = f"{what}: there is no option {name!r}; there are {', '.join(names)}"
            raise ConfigError(message)
    return kind(**given)


def merge(options: Any, by_keyword: Mapping[str, Any]) -> NoLagOptions:
    """Give a client's options; those by keyword count before the others."""
    made = make(NoLagOptions, options, "options")
    if not by_keyword:
        return made
    make(NoLagOptions, by_keyword, "options")  # refuses unknown names
    return dataclasses.replace(made, **by_keyword)


def native(options: NoLagOptions) -> dict[str, Any]:
    """Give all settings of a client but URL and token."""
    settings = {name: getattr(options, name) for name in _SAME}
    for name in ("project_id", "client_id", "features"):
        if getattr(options, name) is not None:
            settings[name] = getattr(options, name)
    if options.load_balance:
        settings["group"] = options.load_balance_group or True
    for name, kind in (
        ("backoff", BackoffOptions),
        ("offline_queue", OfflineQueueOptions),
        ("dedupe", DedupeOptions),
    ):
        for part, value in vars(make(kind, getattr(options, name), name)).items():
            if value is not None:
                settings[f"{name}.{part}"] = value
    if options.reconnect_interval is not None:
        settings["backoff.base"] = options.reconnect_interval
        if options.backoff == BackoffOptions():  # a fixed interval, unless a factor is given
            settings["backoff.factor"] = 1.0
    return settings


def ca(given: Any) -> bytes | None:
    """Give the certificates to trust beside the bundled ones."""
    if given is None:
        return None
    certificates = make(TlsOptions, given, "tls").ca
    return certificates.encode() if isinstance(certificates, str) else certificates


def headers(given: Any) -> list[tuple[str, str]] | None:
    """Give the headers of the request for the WebSocket."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        message = f"headers: a mapping of names to values is expected, not {type(given).__name__}"
        raise ConfigError(message)
    return [(str(name), str(value)) for name, value in given.items()]


def subscribe(given: SubscribeOptions | Mapping[str, Any] | None) -> dict[str, Any]:
    """Give what a subscribe takes."""
    if given is None:
        return {}
    options = make(SubscribeOptions, given, "subscribe")
    group = options.load_balance
    if options.load_balance_group and group is not False:
        group = options.load_balance_group  # type: ignore[assignment]
    return {
        "qos": options.qos,
        "group": group,
        "filters": options.filters,
        "history": _history(options.history),
        "resume_from": _position(options.resume_from),
        "redeliver": _flag("redeliver", options.redeliver),
        "ack_timeout": _ack_timeout(options.ack_timeout),
    }


def _flag(name: str, given: Any) -> bool:
    if isinstance(given, bool):
        return given
    message = f"{name} is {given!r}: True or False is expected"
    raise ConfigError(message)


def _ack_timeout(given: Any) -> float | None:
    if given is None or (isinstance(given, (int, float)) and 1 <= given <= _LONGEST_ACK_TIMEOUT):
        return given
    message = f"ack_timeout is {given!r}: seconds from 1 to {_LONGEST_ACK_TIMEOUT} are expected"
    raise ConfigError(message)


def _history(given: Any) -> int | None:
    if given is None or (isinstance(given, int) and 1 <= given <= _MOST_HISTORY):
        return given
    message = f"history is {given!r}: a number of messages from 1 to {_MOST_HISTORY} is expected"
    raise ConfigError(message)


def _position(given: Any) -> Position | None:
    if given is None:
        return None
    try:
        made = Position(**given) if isinstance(given, Mapping) else Position(*given)
    except TypeError:
        made = Position("", -1)
    if (
        isinstance(made.epoch, str)
        and 0 < len(made.epoch.encode()) <= _LONGEST_EPOCH
        and isinstance(made.seq, int)
        and 0 <= made.seq < 1 << 53
    ):
        return made
    message = f"resume_from is {given!r}: what a subscription's position was is expected"
    raise ConfigError(message)


def emit(given: EmitOptions | Mapping[str, Any] | None) -> dict[str, Any]:
    """Give what a publish takes."""
    return {} if given is None else vars(make(EmitOptions, given, "emit"))


def token(given: Any) -> tuple[str, float | None]:
    """Give a provider's token, and for how many seconds it is valid."""
    if isinstance(given, str):
        return given, None
    made = given if isinstance(given, Token) else make(Token, given, "token provider")
    if made.expires_at is None:
        return made.text, None
    return made.text, max(0.0, made.expires_at - time.time())


def takes_request(provider: Callable[..., Any]) -> bool:
    """Tell whether a token provider wants to know what the token is for."""
    try:
        inspect.signature(provider).bind(None)
    except (TypeError, ValueError):
        return False
    return True


def log_to_console(logger: logging.Logger) -> None:
    """Show what the client logs."""
    logger.setLevel(logging.DEBUG)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
