"""Opens every page of the built documentation in headless Chromium: ``python -m tests.browse HTML-DIRECTORY``.

At the width of a desk and at that of a phone, light and dark: nothing may be wider than the screen, no resource may be
missing, and no console may show an error.  The pages are served from 127.0.0.1 and opened side by side in frames of one
page, which measures them, so that nothing but Chromium is needed.  Without Chromium (on PATH, or named by
``GNSQ_CHROMIUM``) it says so in red and ends with 0; with ``GNSQ_REQUIRE_CHROMIUM=1`` it ends with 1.
"""

from __future__ import annotations

import functools
import html
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Width and height of the screens.
SCREENS = {"desk": (1280, 900), "phone": (390, 844)}
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: Seconds Chromium may take for all pages of one screen.
LIMIT = 240.0

_MEASURE = """
<!doctype html><meta charset=utf-8><title>measuring</title><body><script>
const pages = %(pages)s, found = [];
async function measure(page) {
  const frame = document.createElement('iframe');
  frame.style = 'border:0;width:%(width)dpx;height:%(height)dpx';
  document.body.append(frame);
  await new Promise(done => { frame.onload = done; frame.src = page; });
  const inner = frame.contentDocument, root = inner.documentElement;
  const report = {page, wide: root.scrollWidth - root.clientWidth, title: inner.title, broken: []};
  if (report.wide > 0)
    report.widest = [...inner.querySelectorAll('body *')]
      .filter(e => e.getBoundingClientRect().right > root.clientWidth + 1)
      .slice(0, 3).map(e => e.outerHTML.slice(0, 120));
  for (const image of inner.images)
    if (image.loading !== 'lazy' && !image.naturalWidth) report.broken.push(image.src);
  found.push(report);
  frame.remove();
}
(async () => {
  for (const page of pages) await measure(page);
  document.body.textContent = JSON.stringify(found);
  document.title = 'done';
})();
</script>
"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the pages, and notes what is missing."""

    missing: list[str]

    def log_message(self, format: str, *arguments: object) -> None:
        """Stay quiet."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Note it."""
        if self.path != "/favicon.ico":
            self.missing.append(f"{code} {self.path}")
        super().send_error(code, message, explain)


def chromium() -> str | None:
    """Return the program, or None."""
    named = os.environ.get("GNSQ_CHROMIUM")
    return named or next(filter(None, map(shutil.which, PROGRAMS)), None)


def look(program: str, folder: Path, address: str, screen: str, scheme: str) -> list[str]:
    """Return what is wrong with the pages on one screen."""
    width, height = SCREENS[screen]
    pages = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*.html") if "_static" not in path.parts
    )
    harness = folder / f"measure-{screen}.html"
    values = {"pages": json.dumps([page for page in pages if not page.startswith("measure-")])}
    harness.write_text(_MEASURE % {**values, "width": width, "height": height}, encoding="utf-8")
    with tempfile.TemporaryDirectory() as profile:
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
        command += [f"--user-data-dir={profile}", f"--window-size={width + 40},{height + 200}"]
        command += ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
        command += ["--virtual-time-budget=120000", f"http://{address}/{harness.name}"]
        done = subprocess.run(command, capture_output=True, timeout=LIMIT, text=True, errors="replace", check=False)
    harness.unlink()
    body = re.search(r"<body>(\[.*\])</body>", done.stdout, re.S)
    if body is None:
        return [f"{screen}: Chromium did not get through the pages: {done.stderr[-2000:]}"]
    reports = json.loads(html.unescape(body.group(1)))
    faults = [f"{screen} {scheme}: console: {line}" for line in re.findall(r"CONSOLE.*", done.stderr)]
    for report in reports:
        if report["wide"] > 0:
            faults.append(f"{screen}: {report['page']} is {report['wide']} pixels too wide: {report.get('widest')}")
        faults += [f"{screen}: {report['page']} has a broken image: {source}" for source in report["broken"]]
        if not report["title"]:
            faults.append(f"{screen}: {report['page']} has no title")
    print(f"{screen}, {scheme}: {len(reports)} pages, {len(faults)} faults")
    return faults


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a directory; yield the address and the list of requested files that are missing."""
    missing: list[str] = []
    handler = type("_Handler", (Handler,), {"missing": missing})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}", missing
        server.shutdown()
        thread.join()


def main() -> int:
    """Look at all pages on all screens."""
    folder = Path(sys.argv[1]).resolve()
    program = chromium()
    if program is None:
        print(
            "\033[1;31mNO CHROMIUM WAS FOUND: the pages were not looked at (GNSQ_CHROMIUM names one)\033[0m",
            file=sys.stderr,
        )
        return int(os.environ.get("GNSQ_REQUIRE_CHROMIUM") == "1")
    with served(folder) as (address, missing):
        faults = [
            fault
            for screen, scheme in (("desk", "light"), ("phone", "dark"))
            for fault in look(program, folder, address, screen, scheme)
        ]
    faults += [f"missing: {what}" for what in dict.fromkeys(missing)]
    print("\n".join(faults) or "every page fits, and nothing is missing")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
