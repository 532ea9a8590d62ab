"""Responses: JSON without a second encoding, pages whose inline blocks are named in their policy, and downloads.

The policy allows what comes from this server and nothing else. A page of ``report/`` carries its styles inside, since
it is one file: their hashes are added for that one response, so that no other inline block would be accepted.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any, Final

from fastapi.responses import HTMLResponse, Response

#: What a browser may load and do; every other source is refused.
POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
_INLINE: Final = re.compile(r"<(style|script)(?:\s[^>]*)?>(.*?)</\1\s*>", re.DOTALL | re.IGNORECASE)


class JsonResponse(Response):
    """JSON text; numbers that JSON cannot hold are an error, not a NaN."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Write plain data as JSON."""
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def policy(html: str = "") -> str:
    """Return the content-security policy of a page: the fixed one, and the hashes of its own inline blocks.

    >>> "sha256-" in policy("<style>p{}</style>"), "sha256-" in policy("<p>none</p>")
    (True, False)
    """
    hashes: dict[str, list[str]] = {"style-src": [], "script-src": []}
    for name, block in _INLINE.findall(html):
        if block.strip():
            digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
            hashes[f"{name.lower()}-src"].append(f"'sha256-{digest}'")
    return "; ".join(" ".join([name, sources, *hashes.get(name, [])]) for name, sources in POLICY.items())


def page(html: str, status: int = 200) -> HTMLResponse:
    """Return a page with its policy."""
    return HTMLResponse(html, status, headers={"content-security-policy": policy(html)})


def download(html: str, name: str) -> HTMLResponse:
    """Return a page as a file to keep."""
    response = page(html)
    response.headers["content-disposition"] = f'attachment; filename="{name}"'
    return response
