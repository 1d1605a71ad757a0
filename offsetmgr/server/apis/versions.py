"""ApiVersions: the supported API versions (KIP-35, KIP-511), and, after the login, the features beyond Kafka's
protocol (KIP-584)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from offsetmgr.core.errors import ErrorCode
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import encode_response
from offsetmgr.server.apis.api_context import ApiContext, decoded
from offsetmgr.server.network.requests import ApiRequest

MIN_VERSION: Final = 0
MAX_VERSION: Final = 4
FLEXIBLE: Final = 3

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]{0,253}[a-zA-Z0-9])?")


def api_versions(
    context: ApiContext, request: ApiRequest, supported: Mapping[int, tuple[int, int]] | None = None
) -> bytes:
    """Returns the body of an ApiVersions response.

    The response to a request in an unknown version has version 0. It lists the supported versions, so that the client
    can send another request in a supported version. If ``supported`` is given, the response lists these versions
    instead of those of the server's own table. The relay passes ``supported``, because it supports more APIs than the
    listener.
    """
    if supported is None:
        supported = request.connection.service.versions()
    ranges = [
        {"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in sorted(supported.items())
    ]
    if not MIN_VERSION <= request.version <= MAX_VERSION:
        return encode_response(
            ApiKey.API_VERSIONS, 0, {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": ranges}
        )
    error = 0
    if request.version >= FLEXIBLE:
        message = decoded(request)
        software = message["client_software_name"], message["client_software_version"]
        if not all(_SOFTWARE.fullmatch(part) for part in software):
            error = ErrorCode.INVALID_REQUEST
    answer: dict[str, Any] = {"error_code": error, "api_keys": [] if error else ranges}
    # Their names contain the name of the offsets topic, which concerns only users.
    if not error and request.connection.principal is not None:
        answer["supported_features"] = [
            {"name": name, "min_version": 1, "max_version": highest}
            for name, highest in sorted(context.backend.features().items())
        ]
    return encode_response(ApiKey.API_VERSIONS, request.version, answer)
