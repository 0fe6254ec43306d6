"""Photograph the top of a report, for the README.

    bgn compare --out runs/compare && python -m docs.figures.report runs/compare/report.html

writes docs/assets/report.png. Needs Chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import tempfile
from pathlib import Path

from docs.figures import style
from PIL import Image

from bgn_lab.system import files

WIDTH, HEIGHT, SCALE = 1000, 754, 2  # of the window in CSS pixels; pixels of the picture for each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("page", type=Path, help="report.html of a comparison")
    page = parser.parse_args().page.resolve(strict=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("needs Chromium on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        command = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--force-device-scale-factor={SCALE}", f"--window-size={WIDTH},{HEIGHT}",
            f"--user-data-dir={folder}/profile", f"--screenshot={shot}", page.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        photo = Image.open(shot).convert("RGB").quantize(128)
    done = io.BytesIO()
    photo.save(done, "png", optimize=True)
    files.write(style.ASSETS / "report.png", done.getvalue())


if __name__ == "__main__":
    main()
