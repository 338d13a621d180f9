"""The report in a real browser. Screenshots stay in $INFOBATCH_TEST_OUTPUT, or test-output/."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from browsers import chromium_path
from infobatch.lab.report.page import write_report

OUTPUT = Path(os.environ.get("INFOBATCH_TEST_OUTPUT", "test-output"))
FIGURES = 13


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        # Root, as in a container, has no sandbox; the page is our own.
        browser = playwright.chromium.launch(
            executable_path=chromium_path(playwright), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("device", "width"), [("phone", 400), ("desktop", 1280)])
def test_in_chromium(comparison, browser, device, width, scheme):
    address = write_report(comparison).as_uri()
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    messages, requested = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    page.goto(address, wait_until="networkidle")
    OUTPUT.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=OUTPUT / f"report-{device}-{scheme}.png", full_page=True)

    assert messages == []
    assert [url for url in requested if not url.startswith("data:")] == [address]
    assert page.evaluate("document.documentElement.scrollWidth") == width, "no sideways scrolling"
    page.locator("#by-seconds").check()
    assert page.locator("figure svg").nth(1).is_visible(), "the same figure by seconds"
    assert not page.locator("figure svg").nth(0).is_visible()
    page.locator("#by-passes").check()
    assert page.locator("figure svg").nth(0).is_visible()
    figures = page.locator("figure svg:visible")
    assert figures.count() == FIGURES - 1, "all but the one by seconds"
    for number in range(FIGURES - 1):
        box = figures.nth(number).bounding_box()
        assert box["width"] > 250
        assert box["height"] > 100
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        # Drawn, not only framed: lines or bars with a size of their own.
        drawn = (
            figures.nth(number)
            .locator("path")
            .evaluate_all(
                "paths => paths.filter(p => { const b = p.getBoundingClientRect(); "
                "return b.width + b.height > 5 }).length"
            )
        )
        assert drawn > 5
    lines = page.locator("thead th").evaluate_all("all => all.map(one => one.clientHeight / 24)")
    assert max(lines) < 5, "a table's head must not be broken letter by letter"
    cut_off = page.locator(".scroll").evaluate_all(
        "all => all.filter(one => one.scrollWidth > one.clientWidth"
        " && getComputedStyle(one, '::before').content === 'none').length"
    )
    assert cut_off == 0, "a table that is wider than the page says so"
    pictures = page.locator(".samples img")
    assert pictures.count() == 24
    assert all(pictures.evaluate_all("all => all.map(one => one.naturalWidth > 0)"))
    assert contrast(page, "body") > 7
    assert contrast(page, "figcaption") > 4.5
    assert contrast(page, ".card .verdict") > 4.5
    assert contrast(page, ".decision") > 7
    context.close()


def contrast(page, selector):
    """The contrast of a text to what it stands on, by the WCAG's formula."""
    colours = page.locator(selector).first.evaluate(
        """element => {
            const numbers = text => text.match(/[\\d.]+/g).map(Number);
            let behind = element, fill = [0, 0, 0, 0];
            while (behind && (fill = numbers(getComputedStyle(behind).backgroundColor))[3] === 0)
                behind = behind.parentElement;
            return [numbers(getComputedStyle(element).color), fill];
        }"""
    )
    lighter, darker = sorted((luminance(colour) for colour in colours), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour):
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in colour[:3])
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
