"""Lists the snapshot formats, and selects the format of a file by the name that the user gives (``?format=``) or by the
suffix of the file. The content of a ``.json`` file decides between the two JSON formats."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, BinaryIO, Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import UsageError
from offsetmgr.snapshots.base import BadLines, Format
from offsetmgr.snapshots.csv import CsvFormat
from offsetmgr.snapshots.json_formats import BadEntry, KafkaUtilsFormat, SparkFormat, documents, is_kafka_utils
from offsetmgr.snapshots.line_formats import require_line_end
from offsetmgr.snapshots.text_files import as_utf8
from offsetmgr.snapshots.zk_export import ZkExportFormat

if TYPE_CHECKING:
    from offsetmgr.snapshots.base import SnapshotReader

_TEXT_FORMATS: Final = {one.name: one for one in (CsvFormat, ZkExportFormat, KafkaUtilsFormat, SparkFormat)}
FORMATS: Final = ("avro", *_TEXT_FORMATS)


def format_name(path: str, name: str | None = None) -> str:
    """Returns the name of the format of a file: ``name`` if it is given, otherwise the format that the suffix of
    ``path`` names. Raises `UsageError`."""
    format_or_suffix = name if name is not None else PurePath(path).suffix.lower().removeprefix(".")
    if format_or_suffix in FORMATS:
        return format_or_suffix
    why = f"format {format_or_suffix!r} is not known" if name is not None else "its suffix is not that of a format"
    hint = Advice(f"name it with {{format:as={'|'.join(FORMATS)}}}, or in a URI with ?format=")
    raise UsageError(f"snapshot {path}", why, hint)


def by_name(name: str, group: str | None = None) -> Format:
    """Returns the format ``name``, which is one of `FORMATS`. ``group`` is the group of a file that does not contain
    the name of its group. Raises `UsageError` if the files of the format contain groups."""
    if name == "avro":
        from offsetmgr.snapshots.avro import AvroFormat

        return AvroFormat(group)
    return _TEXT_FORMATS[name](group)


def open_snapshot(
    stream: BinaryIO,
    name: str,
    group: str | None = None,
    *,
    what: str = "snapshot",
    accept_unterminated: bool = False,
) -> SnapshotReader:
    """Opens a stream of the format ``name``. For ``json`` the content decides between kafka-utils' and Spark's JSON.

    If the last line of a CSV or ExportZkOffsets file has no line end, the file may be truncated within its last number.
    Such a file is rejected unless ``accept_unterminated`` is set. Raises `UsageError`, `MalformedData`,
    `UnknownVersion`.
    """
    if name != "avro":
        stream = as_utf8(stream, what)
    if name in ("csv", "zk") and not accept_unterminated:
        require_line_end(stream, what)
    if name == "json":
        name = _which_json(stream)
    return by_name(name, group).open(stream, what=what)


def _which_json(stream: BinaryIO) -> str:
    for document in documents(stream, BadLines("")):
        try:
            return "json" if is_kafka_utils(document.parse()) else "spark"
        except BadEntry:
            break
    return "json"
