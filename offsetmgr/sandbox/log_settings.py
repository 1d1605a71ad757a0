"""Logging settings of the Java servers: level INFO, to stderr, one line per message."""

from __future__ import annotations

from pathlib import Path

_LOG4J_1 = """\
log4j.rootLogger=INFO, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
_LOG4J_2 = """\
rootLogger.level=INFO
rootLogger.appenderRef.stderr.ref=stderr
appender.stderr.name=stderr
appender.stderr.type=Console
appender.stderr.target=SYSTEM_ERR
appender.stderr.layout.type=PatternLayout
appender.stderr.layout.pattern=[%d] %p %m (%c)%n
"""


def log4j_flags(directory: Path) -> tuple[str, str]:
    """Writes settings for log4j 1 (and its replacement reload4j) and log4j 2 to ``directory``. Returns the JVM flags
    that make a server use these settings."""
    first, second = directory / "log4j.properties", directory / "log4j2.properties"
    first.write_text(_LOG4J_1, encoding="utf-8")
    second.write_text(_LOG4J_2, encoding="utf-8")
    return f"-Dlog4j.configuration={first.absolute().as_uri()}", f"-Dlog4j2.configurationFile={second.absolute()}"
