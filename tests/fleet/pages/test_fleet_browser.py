"""Every page in a real browser: light and dark, on a phone and on a desk, by keyboard alone.

One browser and one fleet serve the whole file.
"""

import re
from dataclasses import dataclass, field

import pytest
from builders import a_capability, a_job
from places import ROOT
from playwright.sync_api import Page, sync_playwright
from programs import installed
from receiver_running import TOKEN, Receiver
from shown_fleet import shown

from training.fleet.wire.routes import PAGES as REGISTERED

FLAGS = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
AXE = (ROOT / "tests" / "vendor" / "axe.min.js").read_text(encoding="utf-8")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
PAGES = {name: row.path for name, row in REGISTERED.items() if row.shown is not None and row.shown.menu} | {
    "jobs of two filters": "/jobs?status=pending&model=gru&sort=name",
    "no jobs": "/jobs?model=nothing",
    "job that failed": "/jobs/mlp-oracle",
    "job that waits": "/jobs/gru-oracle",
    "job that runs": "/jobs/cnn-oracle",
    "job that is trained": "/jobs/gbt-realistic",
    "host": "/hosts/office-print",
    "compare": "/compare?jobs=gbt-realistic,gbt-oracle,mlp-oracle",
    "no incidents": "/incidents?host=laptop",
    "refusal": "/jobs/nobody",
    "login": "/login?to=/events",
}
LOOKS = [(scheme, width) for scheme in ("light", "dark") for width in (360, 1280)]
HEADER = """[document.querySelector('header')].flatMap((header) => [
    header.offsetHeight < 60, header.firstElementChild.scrollWidth - header.firstElementChild.clientWidth])"""
REPORTED = "document.addEventListener('securitypolicyviolation', (e) => console.error('CSP: ' + e.violatedDirective))"


@dataclass
class Visit:
    """A page in the browser, with what it complained about and what it asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with shown(tmp_path_factory.mktemp("shown")) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as tools:
        found = tools.chromium.launch(executable_path=installed("chromium", "chromium"), args=FLAGS.split())
        yield found
        found.close()


def test_every_registered_page_is_visited():
    places = [path.partition("?")[0] for path in PAGES.values()]
    for name, row in REGISTERED.items():
        assert any(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", row.path), place) for place in places), name


def visit(browser, url, *, script=True):
    context = browser.new_context(viewport={"width": 1280, "height": 800}, java_script_enabled=script)
    found = Visit(context.new_page())
    if script:
        found.page.add_init_script(REPORTED)
    found.page.on("console", lambda message: found.complaints.append(message.text))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(url)
    return found


def violations(page):
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    found = page.evaluate("(rules) => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", RULES)
    return [f"{each['id']}: {node['html']}" for each in found["violations"] for node in each["nodes"]]


@pytest.mark.parametrize("looks", [LOOKS[::3], pytest.param(LOOKS[1:3], marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_and_quiet_in_every_look(name, looks, fleet, browser):
    seen = visit(browser, fleet.url + PAGES[name])
    for scheme, width in looks:
        seen.page.emulate_media(color_scheme=scheme)
        seen.page.set_viewport_size({"width": width, "height": 800})
        assert violations(seen.page) == [], (scheme, width)
        assert seen.page.evaluate("document.documentElement.scrollWidth") == width, "nothing scrolls sideways"
        assert seen.page.evaluate(HEADER) == [True, 0], "the header is one line"
    assert "`" not in seen.page.locator("main").inner_text(), "commands are set as code"
    expected = 1 if name == "refusal" else 0  # the browser itself notes the status
    assert len(seen.complaints) == expected, seen.complaints
    assert all(url.startswith(fleet.url) for url in seen.requests), seen.requests
    seen.page.context.close()


@pytest.mark.half
@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_used_by_keyboard_alone(name, fleet, browser):
    """Everything that can be used is reached by Tab and shows it; the first step skips to the content."""
    seen = visit(browser, fleet.url + PAGES[name])
    reached = []
    wanted = seen.page.evaluate(
        "[...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary')]"
        ".filter((each) => each.checkVisibility()).length"
    )
    for _ in range(wanted):
        seen.page.keyboard.press("Tab")
        reached.append(
            seen.page.evaluate(
                "[document.activeElement.textContent.trim(), getComputedStyle(document.activeElement).outlineStyle]"
            )
        )
    assert reached[0][0] == "Skip to the content"
    assert {outline for _, outline in reached} == {"solid"}, "focus is seen"
    seen.page.context.close()


def test_every_page_is_reached_by_links_and_works_without_script(fleet, browser):
    seen = visit(browser, fleet.url, script=False)
    assert seen.page.locator("h1").inner_text().startswith("4 of 14")
    found = {link.get_attribute("href") for link in seen.page.locator("nav a").all()}
    assert {path for path in PAGES.values() if path.count("/") == 1 and "?" not in path} <= found
    seen.page.context.close()


def test_a_slash_leads_to_the_search_and_a_name_to_its_job(fleet, browser):
    seen = visit(browser, fleet.url)
    seen.page.keyboard.press("/")
    seen.page.keyboard.type("ssl")
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_url("**/jobs?q=ssl")
    assert seen.page.locator("tbody tr").count() == 2
    seen.page.get_by_role("link", name="transformer_ssl-oracle").click()
    seen.page.wait_for_url("**/jobs/transformer_ssl-oracle")
    seen.page.context.close()


def test_long_names_break_no_word_and_push_nothing_aside(browser, tmp_path):
    settings = [{f"{key}_of_the_model": value * 9 for key in "abcdef"} for value in ("0.1", "xyz")]
    jobs = [a_job("grid[seed=0,depth=4]", priority=1, hyper=settings[0])]
    jobs.append(a_job("x" * 100, model="m" * 40, hyper=settings[1]))
    with Receiver(tmp_path, jobs) as receiver:
        client = receiver.client()
        grant = client.claim(a_capability())
        client.fail(grant.job_id, error="the table holds no such column: " * 12, exit_code=65)
        seen = visit(browser, f"{receiver.url}/jobs")
        for width in (360, 605, 1280):
            seen.page.set_viewport_size({"width": width, "height": 740})
            for page in ("/jobs", f"/compare?jobs={'x' * 100},grid[seed=0,depth=4]"):
                seen.page.goto(receiver.url + page)
                assert not seen.page.evaluate("document.documentElement.scrollWidth > innerWidth"), (page, width)
        seen.page.goto(f"{receiver.url}/jobs")
        kind = seen.page.get_by_text("gbt, realistic").first
        whole = "const whole = document.createRange(); whole.selectNodeContents(cell)"
        lines = f"(cell) => {{ {whole}; return whole.getClientRects().length }}"
        assert kind.evaluate(lines) <= 2, "model and mode, each whole"
        seen.page.goto(f"{receiver.url}/jobs/{grant.job_id}")
        assert [head.evaluate(lines) for head in seen.page.locator(".tried thead th").all()] == [1] * 5
        seen.page.context.close()


def test_filters_act_at_once_and_without_script_by_a_button(fleet, browser):
    seen = visit(browser, f"{fleet.url}/jobs")
    assert seen.page.get_by_role("button", name="Show").count() == 0
    seen.page.locator("select[name=model]").select_option("gru")
    seen.page.get_by_role("searchbox").press_sequentially("orac")
    seen.page.get_by_text("1 gru job with “orac” in the name.").wait_for()
    assert seen.page.url.endswith("/jobs?q=orac&model=gru&sort=newest")
    assert seen.page.locator("tbody tr").count() == 1
    assert seen.complaints == []
    seen.page.context.close()
    bare = visit(browser, f"{fleet.url}/jobs", script=False)
    bare.page.locator("select[name=model]").select_option("gru")
    bare.page.get_by_role("button", name="Show").click()
    assert bare.page.locator("tbody tr").count() == 2
    bare.page.context.close()


def test_a_page_follows_what_happens_and_keeps_what_its_reader_did(browser, tmp_path):
    with Receiver(tmp_path, [a_job("one"), a_job("two", priority=1)]) as receiver:
        seen = visit(browser, f"{receiver.url}/jobs")
        seen.page.get_by_label("choose two").check()
        seen.page.get_by_role("searchbox").fill("o")
        receiver.client().claim(a_capability())
        seen.page.get_by_text("claimed").nth(1).wait_for(timeout=60_000)
        assert seen.page.get_by_label("choose two").is_checked()
        assert seen.page.get_by_role("searchbox").input_value() == "o"
        seen.page.get_by_label("choose one").check()
        seen.page.get_by_role("button", name="Compare").click()
        assert seen.page.locator("#ends + table th a").all_inner_texts() == ["two", "one"], "in the order of choice"
        assert seen.complaints == []
        seen.page.context.close()


def test_an_operator_logs_in_and_acts_by_keyboard(browser, tmp_path):
    """Each page on the way is accessible and quiet; the one script that runs is ours."""
    with Receiver(tmp_path, [a_job("one"), a_job("two")]) as receiver:
        seen = visit(browser, f"{receiver.url}/jobs")
        page = seen.page

        def press(role, name):
            page.get_by_role(role, name=name, exact=True).first.focus()
            page.keyboard.press("Enter")

        def check(title):
            page.get_by_role("heading", name=title).wait_for()
            for scheme, width in LOOKS:
                page.emulate_media(color_scheme=scheme)
                page.set_viewport_size({"width": width, "height": 800})
                assert violations(page) == [], (title, scheme, width)
                assert page.evaluate("document.documentElement.scrollWidth") == width, title

        press("link", "Log in")
        check("Log in")
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs")
        check("2 jobs.")
        page.get_by_label("choose one").focus()
        page.keyboard.press("Space")
        press("button", "Cancel…")
        check("Cancel 1 pending job.")
        press("button", "Cancel 1 job")
        check("1 job was cancelled.")
        assert (receiver.status("one"), receiver.status("two")) == ("cancelled", "pending")
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["expires"]) == (True, "Strict", -1)
        press("button", "Log out")
        page.get_by_role("link", name="Log in").wait_for()
        assert page.context.cookies() == []
        assert seen.complaints == []
        page.context.close()


def test_curves_answer_the_pointer_and_outlive_the_parts_around_them(fleet, browser):
    """The script draws over the receiver's own drawing, and again when the page's parts come anew."""
    bare = visit(browser, f"{fleet.url}/jobs/gbt-oracle", script=False)
    assert bare.page.locator("[data-plot] svg").first.is_visible()
    bare.page.context.close()
    seen = visit(browser, f"{fleet.url}/jobs/gbt-oracle")
    drawn = seen.page.locator("[data-plot] > .uplot")
    drawn.first.wait_for()
    assert drawn.count() == seen.page.locator("[data-plot]").count() == 4
    assert not seen.page.locator("[data-plot] svg").first.is_visible()
    legend = drawn.first.locator(".u-legend")
    assert legend.inner_text() == "epoch60gbt-oracle0.045", "the last values, until it is hovered"
    drawn.first.hover()
    legend.get_by_text("60", exact=True).wait_for(state="detached")
    changed = """() => { const box = document.querySelector('[data-plot]'), said = JSON.parse(box.dataset.plot);
        said.lines[0][1].push([61, 0.5]); box.classList.remove('drawn'); box.querySelector('.uplot').remove();
        box.dataset.plot = JSON.stringify(said); }"""
    seen.page.evaluate(changed)
    seen.page.locator("[data-plot].drawn > .uplot").nth(3).wait_for()
    seen.page.emulate_media(color_scheme="dark")
    seen.page.set_viewport_size({"width": 360, "height": 800})
    assert violations(seen.page) == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") == 360
    assert seen.complaints == []
    seen.page.context.close()


def test_a_hostile_page_would_be_noticed(fleet, browser):
    """The tests above see what they look for."""
    seen = visit(browser, fleet.url)
    with seen.page.expect_console_message(lambda message: message.text.startswith("CSP: ")):
        seen.page.evaluate(
            "() => { const image = document.createElement('img'); image.src = 'https://elsewhere.invalid/x.png';"
            " document.body.append(image); }"
        )
    assert any(each.startswith("CSP: ") for each in seen.complaints)
    assert any("image-alt" in each for each in violations(seen.page))
    seen.page.context.close()


def test_ten_pages_of_one_browser_follow(browser, tmp_path):
    addresses = (
        "/",
        "/jobs",
        "/events",
        "/jobs/one",
        "/jobs/two",
        "/jobs?sort=name",
        "/compare?jobs=one,two",
        *["/"] * 3,
    )
    with Receiver(tmp_path, [a_job("one"), a_job("two", priority=1)]) as receiver:
        context = browser.new_context()
        pages = [context.new_page() for _ in addresses]
        for page, address in zip(pages, addresses, strict=True):
            page.goto(receiver.url + address)
        receiver.client().claim(a_capability())
        for page in pages[:3] + pages[5:]:
            page.get_by_text("claimed").or_(page.get_by_text("is training")).first.wait_for(timeout=60_000)
        pages[3].get_by_role("heading", name="one was given to pi").wait_for(timeout=60_000)
        context.close()


def test_a_hidden_page_asks_for_nothing_and_an_old_one_says_so(browser, tmp_path):
    with Receiver(tmp_path, [a_job("one"), a_job("two")]) as receiver:
        seen = visit(browser, f"{receiver.url}/login")
        page = seen.page
        page.clock.install()
        page.goto(f"{receiver.url}/events")
        page.get_by_text("was added by the plan").first.wait_for()
        hide = "(away) => { Object.defineProperty(document, 'hidden', {value: away, configurable: true});"
        hide += " document.dispatchEvent(new Event('visibilitychange')); }"
        page.evaluate(hide, True)
        seen.requests.clear()
        receiver.client().claim(a_capability())
        page.clock.fast_forward(10_000)
        assert seen.requests == []
        page.evaluate(hide, False)
        with page.expect_response(lambda answer: answer.status == 200):
            page.clock.fast_forward(2_500)
        page.get_by_text("was given to pi").first.wait_for()
        with page.expect_response(lambda answer: answer.status == 304):
            page.clock.fast_forward(2_500)
        receiver.stop()
        page.clock.fast_forward(40_000)
        page.get_by_text(re.compile("The receiver last answered [45][0-9] s ago")).wait_for()
        assert page.evaluate("getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"
        assert violations(page) == []
        page.context.close()
