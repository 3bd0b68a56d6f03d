"""axe finds nothing on any page, in either theme, at the width of a desk and of a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from addresses import PAGES, open_whole

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from visiting import Visitor

WIDTHS = (1440, 390)


def violations(page: Page) -> list[str]:
    """What axe finds, in lines."""
    from axe_playwright_python.sync_playwright import Axe

    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {node['html'][:160]} {node['failureSummary']}"
        for each in found
        for node in each["nodes"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(visitor: Visitor, theme: Any) -> None:
    visitor.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    found: list[str] = []
    for width in WIDTHS:
        visitor.page.set_viewport_size({"width": width, "height": 900})
        for path in PAGES:
            page = open_whole(visitor, path)
            assert page.locator("html").get_attribute("data-theme") == theme
            wrong = violations(page)
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if wide > 0:
                wrong.append(f"wider than the window by {wide} pixels")
            found += [f"{path} at {width}: {each}" for each in wrong]
    assert not found, "\n".join(found)
