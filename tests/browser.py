"""A page of measurements, taken by headless Chromium."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from html import unescape
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# loads one page after the other in a frame of a given width, and asks each for its wide tables
HARNESS = """<!doctype html><meta charset="utf-8"><pre id="found"></pre><script>
const found = {}
function settled(view) { return new Promise(done => view.setTimeout(done, 300)) }
async function load(path, width) {
  const frame = document.createElement("iframe")
  frame.style.cssText = `width:${width}px;height:800px;border:0`
  document.body.append(frame)
  await new Promise(done => { frame.onload = done; frame.src = path })
  await settled(frame.contentWindow)
  const page = frame.contentDocument, room = page.querySelector("article").clientWidth
  const wide = [...page.querySelectorAll("article table")].filter(t => t.offsetWidth > room + 1)
  found[`${path} at ${width}`] = {
    room, tables: page.querySelectorAll("article table").length,
    wide: wide.map(t => [t.offsetWidth, t.innerText.slice(0, 60).replace(/\\s+/g, " ")]),
    page: page.documentElement.scrollWidth - width,
  }
  frame.remove()
}
async function all() {
  for (const width of WIDTHS) for (const path of PATHS) await load(path, width)
  document.getElementById("found").textContent = JSON.stringify(found)
}
all()
</script>"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A file server that does not log."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def measure(site: Path, widths: tuple[int, ...], folder: Path) -> dict[str, dict[str, Any]]:
    """For each page of a site and each width: its tables, which are too wide, and how far the page
    itself is."""
    assert CHROMIUM is not None
    pages = [p.parent.relative_to(site).as_posix() for p in sorted(site.rglob("index.html"))]
    paths = [f"/{'' if page == '.' else page + '/'}" for page in pages]
    text = HARNESS.replace("WIDTHS", json.dumps(widths)).replace("PATHS", json.dumps(paths))
    (site / "harness.html").write_text(text)
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900",
            f"--user-data-dir={folder}", "--virtual-time-budget=100000", "--dump-dom",
            f"http://127.0.0.1:{server.server_port}/harness.html",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        server.shutdown()
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    made: dict[str, dict[str, Any]] = json.loads(unescape(found))
    return made
