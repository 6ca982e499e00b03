"""``python -m headrace.server``: the server with settings from the environment alone."""

from headrace.config import explicit_settings, load
from headrace.engine.runtime.allocators import use_jemalloc_in_arrow

use_jemalloc_in_arrow()  # before what is imported next loads Arrow

from headrace.server.main import serve  # noqa: E402

serve(load(), lambda address: print(address, flush=True), explicit=explicit_settings())
