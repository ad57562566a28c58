"""A chain inside this process with a site over it, and a browser that looks at it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient
from tiebreak.dashboard.site import Site
from tiebreak.dashboard.web import make_app
from tiebreak.devnet.embedded import embedded_node
from tiebreak.http_server import BackgroundServer, bounded_server, listen_at, url_of

from tests.client.disputes import Cast

if TYPE_CHECKING:
    from playwright.sync_api import Browser

INSTALLED = Path(__file__).parent / "browser" / "unpacked"

BROWSER_VARIABLE = "TIEBREAK_BROWSER"
"""Names a Chromium for the tests; without it the one of `make browser`, or one in PATH, is taken."""


@pytest.fixture
def cast() -> Cast:
    """A contract on a fresh chain, and its parties."""
    return Cast.on(embedded_node())


@pytest.fixture
def site(cast: Cast) -> Iterator[Site]:
    """A site over the cast's contract, which looks at it often."""
    found = Site(cast.customer, every=0.05)
    found.start()
    yield found
    found.close()


@pytest.fixture
def client(site: Site) -> TestClient:
    """Ask the site, without a socket in between."""
    return TestClient(make_app(site), base_url="http://127.0.0.1")


@pytest.fixture(scope="session")
def empty() -> Iterator[TestClient]:
    """Ask a site over a contract without jobs. Read only."""
    found = Site(Cast.on(embedded_node()).customer)
    found.start()
    yield TestClient(make_app(found), base_url="http://127.0.0.1")
    found.close()


@pytest.fixture
def shown(cast: Cast) -> Site:
    """The site of `served`."""
    return Site(cast.customer, every=0.05)


@pytest.fixture
def served(shown: Site) -> Iterator[str]:
    """The address of a site over the cast's contract."""
    with serving_site(shown) as url:
        yield url


@contextmanager
def serving_site(site: Site) -> Iterator[str]:
    """The address of a site that is served beside."""
    with listen_at("127.0.0.1", 0) as listening:
        server = BackgroundServer(bounded_server(make_app(site)), listening, "dashboard")
        site.start()
        assert server.start()
        try:
            yield url_of(listening)
        finally:
            server.stop()
            site.close()


def find_browser() -> Path | None:
    """A Chromium of this machine; None if there is none."""
    named = os.environ.get(BROWSER_VARIABLE)
    if named:
        return Path(named)
    if (INSTALLED / "chromium").is_file():
        return INSTALLED / "chromium"
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    return Path(found[0]) if found else None


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    binary = find_browser()
    if binary is None:
        pytest.skip(f"there is no Chromium: `make browser` installs one, or name one in {BROWSER_VARIABLE}")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
    # Libraries and a font, which a bare machine lacks, lie beside the browser.
    beside = {"LD_LIBRARY_PATH": str(binary.parent / "lib")} if binary.parent == INSTALLED else {}
    if binary.parent == INSTALLED and not shutil.which("fc-list"):
        beside["FONTCONFIG_PATH"] = str(INSTALLED)
    with playwright.sync_playwright() as driver:
        try:
            # Only pages of this machine are opened, often by root in a container, where the sandbox cannot be had.
            started = driver.chromium.launch(
                executable_path=str(binary), args=["--no-sandbox"], env={**os.environ, **beside}
            )
        except playwright.Error as error:
            pytest.skip(f"{binary} does not start here: {str(error).splitlines()[0]}")
        yield started
        started.close()
