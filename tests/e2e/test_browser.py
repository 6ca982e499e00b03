"""What a browser makes of a server without keys: nothing of a stream runs, and other sites stay outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from support.chromium import Browser, Site, site

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer

pytestmark = pytest.mark.e2e

_SCRIPT = "document.documentElement.appendChild(document.createTextNode('RA' + 'N'))"
_SVG = f'<svg xmlns="http://www.w3.org/2000/svg"><script>{_SCRIPT}</script></svg>'
_PAGE = f"<!doctype html><body onload={_SCRIPT!r}><script>{_SCRIPT}</script></body>"

#: Tries everything that a page of another site can try, and posts what came of it to its own site.
_ATTACK = """<!doctype html><title>other</title><body><img src="/reported"><script>
const tried = {}
async function fetched(name, url, options) {
  try {
    const answer = await fetch(url, options)
    tried[name] = answer.type === 'opaque' ? 'opaque' : `${answer.status} ${await answer.text()}`
  } catch { tried[name] = 'refused' }
}
function embedded(name, kind, url) {
  return new Promise(resolve => {
    const element = document.createElement(kind)
    element.onload = () => resolve(tried[name] = window.stolen ?? 'loaded')
    element.onerror = () => resolve(tried[name] = 'refused')
    element.src = url
    document.body.append(element)
  })
}
(async () => {
  const open = '%(open)s/v1/stream/', closed = '%(closed)s/v1/stream/'
  await embedded('script', 'script', closed + 'script')
  await embedded('image', 'img', closed + 'image')
  await fetched('read', closed + 'script')
  await fetched('blind read', closed + 'script', {mode: 'no-cors'})
  await fetched('blind append', closed + 'script', {mode: 'no-cors', method: 'POST', body: 'x'})
  await fetched('probe', '%(closed)s/health', {mode: 'no-cors'})
  await fetched('listed read', open + 'script')
  await fetched('listed append', open + 'script', {
    method: 'POST', body: ' ', headers: {'content-type': 'text/javascript'}})
  await fetch('/report', {method: 'POST', body: JSON.stringify(tried)})
})()
</script></body>"""


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(tmp_path)


@pytest.fixture
def other_site() -> Iterator[Site]:
    with site() as made:
        yield made


def fill(server: ServerProcess, name: str, kind: str, content: str) -> str:
    """A stream that holds this; answers its address."""
    url = f"{server.url}/v1/stream/{name}"
    for method in ("PUT", "POST"):
        answer = httpx2.request(
            method, url, content=content if method == "POST" else b"", headers={"content-type": kind}
        )
        assert answer.is_success
    return url


@pytest.mark.parametrize(("kind", "content"), [("text/html", _PAGE), ("image/svg+xml", _SVG)], ids=["html", "svg"])
def test_no_script_in_a_stream_runs(
    start_server: StartServer, browser: Browser, other_site: Site, kind: str, content: str
) -> None:
    document = browser.open(fill(start_server(), "page", kind, content))
    assert "createTextNode" in document  # it is shown
    assert "RAN" not in document
    if kind == "text/html":
        other_site.page = content.encode()
        assert "RAN" in browser.open(other_site.origin)  # on a site that lets it


def test_a_page_of_another_site_reaches_nothing_until_its_origin_is_listed(
    start_server: StartServer, browser: Browser, other_site: Site
) -> None:
    closed = start_server(data="closed")
    open_to_it = start_server(data="open", server__cors_origins=other_site.origin)
    for server in (closed, open_to_it):
        fill(server, "script", "text/javascript", "window.stolen = 'secret'")
        fill(server, "image", "image/svg+xml", '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    other_site.page = (_ATTACK % {"open": open_to_it.url, "closed": closed.url}).encode()
    browser.open(other_site.origin)
    tried: dict[str, Any] = json.loads(other_site.posted.get(timeout=5))
    assert tried.pop("listed read") == "200 window.stolen = 'secret'"
    assert tried.pop("listed append") == "204 "
    assert tried == dict.fromkeys(("script", "image", "read", "blind read", "blind append", "probe"), "refused")
    assert httpx2.get(f"{closed.url}/v1/stream/script").text == "window.stolen = 'secret'"


@pytest.mark.parametrize(
    ("path", "shown"), [("/", '"name":"headrace"'), ("/console", '"not_found"'), ("/v1/streams", '"forbidden"')]
)
def test_a_link_on_another_site_leads_to_our_pages_only(
    start_server: StartServer, browser: Browser, other_site: Site, path: str, shown: str
) -> None:
    other_site.page = f"<!doctype html><script>location.replace('{start_server().url}{path}')</script>".encode()
    assert shown in browser.open(other_site.origin)
