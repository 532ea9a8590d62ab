"""Responses: JSON without a second encoding, and downloads, all under one content-security policy.

The policy allows what comes from this server and nothing else. No served page has an inline block, so none is allowed:
a text that was not escaped could neither run nor restyle a page.
"""

from __future__ import annotations

import json
from typing import Any, Final

from fastapi.responses import HTMLResponse, Response

#: What a browser may load and do; every other source is refused.
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)


class JsonResponse(Response):
    """JSON text; numbers that JSON cannot hold are an error, not a NaN."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Write plain data as JSON."""
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def download(html: str, name: str) -> HTMLResponse:
    """Return a page as a file to keep."""
    return HTMLResponse(html, headers={"content-disposition": f'attachment; filename="{name}"'})
