"""The page of a report in a headless browser: what is measured on it, and what a reader does."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)

# a window may have a least width, a frame has none: the page is measured inside of one
FRAME = """<!DOCTYPE html><body style="margin: 0">
<iframe src="report.html" width="{width}" height="30000" style="border: 0" {sandbox}></iframe>
<script>
onload = () => {{
  const page = frames[0], root = page.document.documentElement;
  const all = what => [...page.document.querySelectorAll(what)];
  const one = what => page.document.querySelector(what);
  const style = e => page.getComputedStyle(e);
  const box = e => {{
    const b = e.getBoundingClientRect();
    return [b.left, b.top, b.right, b.bottom];
  }};
  let found;
  try {{ found = (() => {{ {script} }})(); }} catch (error) {{ found = String(error.stack); }}
  const text = JSON.stringify(found).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  document.body.innerHTML = "<pre>" + text + "</pre>";
}};
</script></body>"""


def look(
    folder: Path,
    script: str,
    width: int = 1280,
    scripts: bool = True,
    dark: bool = False,
    real_time: bool = False,
) -> Any:
    """What a script returns that looks at ``report.html`` of a folder, in a frame of this width.

    Args:
        folder: of the page.
        script: in JavaScript, with ``page`` (its window), ``root``, ``all``, ``one``, ``style``
            and ``box``.
        width: of the screen.
        scripts: whether the page may run its own.
        dark: whether the reader's system is in dark mode.
        real_time: by the clock, where the browser's own would skip the time that it waits.
    """
    assert BROWSER is not None
    frame = folder / f"frame-{width}.html"
    sandbox = "" if scripts else 'sandbox="allow-same-origin"'
    frame.write_text(FRAME.format(width=width, script=script, sandbox=sandbox))
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-sync", "--disable-background-networking", "--disable-component-update",
        "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--window-size=1400,1000", *([] if real_time else ["--virtual-time-budget=5000"]),
        "--dump-dom", frame.as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"<pre>(.*)</pre>", shown, re.DOTALL)
    assert found, shown[-2000:]
    return json.loads(html.unescape(found[1]))
