# SPDX-License-Identifier: Apache-2.0
"""A reader opens the report without a network, clicks to a figure and sees it."""

import base64
import struct

import devtools
import pytest

from comet.figures import FIGURES

FIGURE = "fig14"
BINARY = devtools.find()
VISIBLE_SHARE = f"""(() => {{
  const box = document.querySelector("#{FIGURE} img").getBoundingClientRect();
  const seen = Math.min(box.bottom, innerHeight) - Math.max(box.top, 0);
  return Math.max(0, seen) / box.height;
}})()"""
LINK_CENTRE = f"""(() => {{
  const box = document.querySelector('nav a[href="#{FIGURE}"]').getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
}})()"""


@pytest.mark.browser
@pytest.mark.skipif(BINARY is None, reason="no Chromium on PATH; install the package chromium")
def test_a_click_in_the_contents_shows_the_figure(report, tmp_path):
    with devtools.page(BINARY, tmp_path / "profile") as page:
        page.command("Network.enable")
        page.command("Page.enable")
        page.command("Page.navigate", url=report.as_uri())
        page.wait_for("Page.loadEventFired")
        assert page.evaluate(VISIBLE_SHARE) == 0

        x, y = page.evaluate(LINK_CENTRE)
        for kind in ("mousePressed", "mouseReleased"):
            page.command(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )
        # The scroll that the click starts ends with the next two frames.
        page.command(
            "Runtime.evaluate",
            expression="new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))",
            awaitPromise=True,
        )
        assert page.evaluate("location.hash") == f"#{FIGURE}"
        assert page.evaluate(VISIBLE_SHARE) > 0.95
        assert page.evaluate(f"document.querySelector('#{FIGURE} img').naturalWidth") > 500
        assert page.evaluate('document.querySelector("nav a.here").hash') == f"#{FIGURE}"
        assert page.evaluate(f"document.querySelector('#{FIGURE} h2').textContent") == (
            FIGURES[FIGURE].title
        )
        screenshot = base64.b64decode(page.command("Page.captureScreenshot")["data"])
        (tmp_path / "report.png").write_bytes(screenshot)

        requests = [
            event["params"]["request"]["url"]
            for event in page.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
    assert [url for url in requests if not url.startswith("data:")] == [report.as_uri()]
    width, height = struct.unpack(">II", screenshot[16:24])
    assert (width, height) >= (1200, 800)
