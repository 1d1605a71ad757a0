"""The manager's log, one event a line, as text or as JSON.

An event is a short sentence with its details as ``extra`` fields. Requests are never logged (there are too many), and
credentials never are (data rule "secrets stay secret").
"""

from __future__ import annotations

import json
import logging
import time
from typing import Final, TextIO

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object a line: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``event``, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        entry |= _particulars(record)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class PlainLines(logging.Formatter):
    """Time, level, sentence, then ``field=value``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _particulars(record).items())
        line = f"{_stamp(record.created)} {record.levelname:<7} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def start_logging(stream: TextIO, form: str, level: int = logging.INFO) -> None:
    """Sends offsetmgr's log to ``stream``; ``form`` is ``text`` or ``json``."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    handler.addFilter(_wanted)
    logger = logging.getLogger("offsetmgr")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


def _wanted(record: logging.LogRecord) -> bool:
    """Drops kazoo's line about every connection attempt, once a second while a server is down: the caller that needs
    the server logs the consequence."""
    return record.levelno >= logging.ERROR or not record.name.startswith("offsetmgr.zookeeper.kazoo")


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"


def _particulars(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
