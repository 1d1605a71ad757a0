"""Formats of the manager's log: one event on each line, as text or as JSON.

An event is a short sentence with details in ``extra`` fields. The manager logs no requests, because there are too many
of them. The manager logs no credentials (data rule "secrets stay secret").
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Final, TextIO

from offsetmgr.core.plurals import printable

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object on each line: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``event``, and the event's
    fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        entry |= _extra_fields(record)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class PlainLines(logging.Formatter):
    """Text lines: time, level, event, then the event's fields as ``field=value``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _extra_fields(record).items())
        line = printable(f"{_timestamp(record.created)} {record.levelname:<7} {record.getMessage()}{fields}")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def start_logging(stream: TextIO, format_: str) -> None:
    """Sends the log of the process to ``stream``; ``format_`` is ``text`` or ``json``. The log includes the messages of
    asyncio and of other libraries, Python's warnings, and errors that end a thread."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if format_ == "json" else PlainLines())
    handler.addFilter(_is_relevant)
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger("offsetmgr").setLevel(logging.INFO)
    logging.captureWarnings(True)
    threading.excepthook = _log_failed_thread


def _log_failed_thread(failure: threading.ExceptHookArgs) -> None:
    logging.getLogger(__name__).critical("a thread has failed unexpectedly", exc_info=failure.exc_value)


def _is_relevant(record: logging.LogRecord) -> bool:
    """Returns False for kazoo's messages below ERROR. Kazoo logs every connection attempt (one per second) while a
    ZooKeeper server is down. These messages are not needed, because the code that sends the requests to ZooKeeper logs
    the failure."""
    return record.levelno >= logging.ERROR or not record.name.startswith("offsetmgr.zookeeper.kazoo")


def _timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"


def _extra_fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
