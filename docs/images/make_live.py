"""Draws live-STATE.png and live-STATE-phone.png: the live page in each state that its tests show, in Chromium.

Run ``python -m docs.images.make_live`` in the root of a checkout.  ``pngquant``, if installed, shrinks the files.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.devtools import browsing
from tests.livedata import STATES
from tests.system.test_live_page import SHOWN, InState, serve

HERE = Path(__file__).parent


def main() -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as folder, browsing(Path(folder)) as browser:
        for state in STATES:
            for width, end in ((1280, ""), (390, "-phone")):
                page = browser.page()
                page.open(serve(InState(state)), width=width)
                for text in SHOWN[state][2]:
                    page.wait_for(f"document.body.innerText.includes({json.dumps(text)})")
                page.wait_for("document.querySelector('#processes tr:last-child').children[4].textContent !== '–'")
                path = HERE / f"live-{state}{end}.png"
                path.write_bytes(page.picture())
                if shutil.which("pngquant"):
                    subprocess.run(["pngquant", "--force", "--speed=1", "--output", path, "32", path], check=True)


if __name__ == "__main__":
    main()
