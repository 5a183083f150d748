"""The page's own files. They hold no data and want no key; what they show is fetched by the page, with one."""

from __future__ import annotations

from importlib import resources

from aiohttp import web

ROOT = "/ui"
INDEX = "index.html"

KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

HEADERS = {
    # Nothing but our own files and endpoints; no text ever becomes markup or code (require-trusted-types-for).
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def _read() -> dict[str, tuple[bytes, str]]:
    """All files, by path, each with its content type. They are read once, so that they are all of one version."""
    found = {}
    for item in (resources.files(__package__) / "static").iterdir():
        kind = KINDS.get(item.name[item.name.rfind(".") :])
        if kind is not None:
            path = ROOT if item.name == INDEX else f"{ROOT}/{item.name}"
            found[path] = (item.read_bytes(), kind)
    return found


FILES = _read()


def add_page(app: web.Application) -> None:
    """Adds a route for each file."""
    for path in FILES:
        app.router.add_get(path, _file)


async def _file(request: web.Request) -> web.Response:
    """A file of the page for people."""
    body, kind = FILES[request.path]
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)
