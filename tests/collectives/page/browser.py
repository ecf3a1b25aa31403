"""Open a page in a browser without a window, run a script in it, and return what it found.

Chromium or Chrome on PATH is enough. The script is put into the page, and its result is read from the document that the
browser prints. Tests are skipped where there is no browser.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_RUN = """
<script>
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const press = (key, more) => (document.activeElement || document.body).dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
(async () => {
  let result;
  try {
    for (let k = 0; !globalThis.ringtape && k < 400; k++) await wait(25);
    const view = ringtape.view, run = view.run;
    result = await (async () => { @SCRIPT@ })();
    result = { result, requests: performance.getEntriesByType("resource").length };
  } catch (error) { result = { error: String(error.stack || error) }; }
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = JSON.stringify(result);
  document.body.append(found);
})();
</script>
"""


class Seen(NamedTuple):
    """What the script returned, the messages of the console, and the number of requests."""

    result: Any
    console: list[str]
    requests: int


def find_browser() -> str:
    """Chromium or Chrome on PATH; skips the test where there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(_NAMES)} on PATH")
    return found


def look(text: str, script: str, folder: Path, size: str = "1400,800", options: tuple[str, ...] = ()) -> Seen:
    """Run the body of a function in a page. It sees `view`, `run`, `press` and `wait`, and returns what JSON has."""
    browser = find_browser()
    path = folder / "looked.html"
    path.write_text(text.replace("</body>", _RUN.replace("@SCRIPT@", script) + "</body>"))
    done = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={size}",
            f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=20000",
            "--disable-component-update", "--disable-background-networking", "--no-first-run", *options, "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False, env=os.environ | {"HOME": str(folder)},
    )  # fmt: skip
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, f"the script did not end:\n{done.stderr[-3000:]}"
    answer = json.loads(html.unescape(found[1]))
    assert "error" not in answer, answer["error"]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(answer.get("result"), console, answer["requests"])
