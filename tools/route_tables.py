"""Writes the table of routes in docs/protocol.md as they are declared; with ``--check`` says whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.server.http.route import Route
from headrace.server.routes.route_table import ROUTES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
BEGINS, ENDS = "<!-- routes: written by tools/route_tables.py -->", "<!-- end of routes -->"


def row(route: Route) -> str:
    """A route as a row of the table."""
    return f"| `{route.method} {route.address}` | {route.doc} | {route.scope} |"


def table() -> str:
    """The table of all routes, those of one address side by side."""
    addresses = list(dict.fromkeys(route.address for route in ROUTES))
    routes = sorted(
        (route for route in ROUTES if route.is_documented), key=lambda route: addresses.index(route.address)
    )
    options = "| `OPTIONS` on any path | 204 with the allowed methods and headers, for browsers | none |"
    return "\n".join(["| route | what it does | scope |", "|---|---|---|", *map(row, routes), options])


def main() -> int:
    """Write the page, or check it."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGINS)
    _, _, after = rest.partition(ENDS)
    written = f"{before}{BEGINS}\n\n{table()}\n\n{ENDS}{after}"
    if written == page:
        return 0
    if "--check" in sys.argv:
        print(f"{PAGE.name}: the table of routes is not current; tools/route_tables.py writes it")
        return 1
    PAGE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
