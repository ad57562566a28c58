"""Questions of the tests to every page in a browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page

AXE = Path(__file__).parent / "browser" / "node_modules" / "axe-core" / "axe.min.js"

SCREENSHOTS = "TIEBREAK_SCREENSHOTS"
"""Names a directory that pictures of the pages are put into."""


class Look:
    """A page of one width and scheme in a browser; every complaint of the browser fails the test."""

    def __init__(self, browser: Browser, *, width: int = 1280, scheme: str = "light", scripts: bool = True) -> None:
        self.context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            java_script_enabled=scripts,
        )
        self.name = f"{width}-{scheme}"
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def picture(self, name: str) -> None:
        """Put a picture of the page into the directory that the user has named, if any."""
        if directory := os.environ.get(SCREENSHOTS):
            Path(directory).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(directory) / f"{name}-{self.name}.png", full_page=True)

    def fits(self) -> None:
        """Require that nothing sticks out of the window."""
        over = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert over <= 0, f"the page is {over} pixels too wide"

    def is_accessible(self) -> None:
        """axe finds nothing serious."""
        found = self.violations()
        serious = [one for one in found if one["impact"] in ("serious", "critical", "moderate")]
        told = [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in serious]
        assert not told, told

    def violations(self) -> list[dict[str, Any]]:
        """Violations that axe finds."""
        # The page's policy allows no foreign script: it is put in by the browser itself.
        self.page.evaluate(AXE.read_text())
        rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
        answer = self.page.evaluate("rules => axe.run(document, {runOnly: rules})", rules)
        found: list[dict[str, Any]] = answer["violations"]
        return found

    def close(self, own: str) -> None:
        """End the look. own: the site's address, which is all that may have been asked."""
        self.context.close()
        assert not self.complaints, self.complaints
        assert all(url.startswith(own) for url in self.asked), self.asked
