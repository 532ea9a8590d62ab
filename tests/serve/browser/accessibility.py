"""axe-core, from its npm package, run inside a page: serious and critical findings are what a test refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

VERSION = "4.14.0"
#: Where the package is looked for, and kept when npm can fetch it.
FOLDER = Path(os.environ.get("PLM_AXE", Path.home() / ".cache" / "patients-like-me" / f"axe-core-{VERSION}"))
_ASK = """async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  return found.violations.filter(each => ["serious", "critical"].includes(each.impact))
    .map(each => `${each.id}: ${each.nodes.map(node => node.target.join(" ")).slice(0, 3).join(", ")}`);
}"""


@cache
def axe_script() -> str | None:
    """Return the script of axe-core; None where it is not here and npm cannot bring it."""
    script = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
    npm = shutil.which("npm")
    if not script.is_file() and npm:
        FOLDER.mkdir(parents=True, exist_ok=True)
        words = [npm, "install", "--prefix", str(FOLDER), "--no-audit", "--no-fund", f"axe-core@{VERSION}"]
        subprocess.run(words, capture_output=True, check=False, timeout=120)
    return script.read_text(encoding="utf-8") if script.is_file() else None


def serious_findings(page: Any) -> list[str]:
    """Return the serious and critical findings on the page as it is now."""
    script = axe_script()
    assert script is not None, "ask axe_script() first"
    # The page's policy allows no foreign script tag; the debugger's own evaluation is outside of it.
    if not page.evaluate("typeof window.axe === 'object'"):
        page.evaluate(script)
    found: list[str] = page.evaluate(_ASK)
    return found
