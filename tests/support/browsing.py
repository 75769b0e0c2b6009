"""Pages in a real Chromium, with what the browser complained of."""

import os
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-quic", "--disable-background-networking"]
OUT = Path(os.environ.get("LAGGARD_TEST_OUT", "out"))

needs_chromium = pytest.mark.skipif(
    not os.path.exists(CHROMIUM), reason="NO CHROMIUM: the page is NOT tested; apt-get install chromium"
)


class Browsed:
    """A page, with all errors and warnings of the browser, and every address that it asked for. `ready`: what it shows
    when it has drawn."""

    def __init__(self, browser: Any, url: str, ready: str = "#nodes-explain:not(:empty)", **context: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 800}, **context}
        self.page = browser.new_context(**options).new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self._on_console(message.type, message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("requestfailed", lambda request: self.errors.append(f"failed: {request.url}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: (self.errors.append("a dialog"), dialog.dismiss()))
        self.page.goto(url)
        self.page.wait_for_selector(ready, state="attached")

    def _on_console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):  # violations of the content security policy come as errors
            self.errors.append(text)

    def screenshot(self, name: str) -> None:
        OUT.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=OUT / f"{name}.png", full_page=True)

    def barriers(self) -> list[str]:
        """What axe-core calls a serious or critical barrier on the page as it is now."""
        pytest.importorskip("axe_playwright_python", reason="axe-core is missing: accessibility is NOT tested")
        script = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        self.page.evaluate(script)
        found = self.page.evaluate("axe.run(document).then((result) => result.violations)")
        return [
            f"{one['impact']} {one['id']}: {node['target']} {node.get('failureSummary', '')}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium keeps its files among the run's temporary ones: a run that is cut short leaves nothing in /tmp."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: the page is NOT tested")
    with sync_api.sync_playwright() as playwright:
        kept = {**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("chromium"))}
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, env=kept)
        yield launched
        launched.close()
