"""``python -m headrace.server``: the server with settings from the environment alone."""

from headrace.config import given, load
from headrace.server.main import serve

serve(load(), lambda address: print(address, flush=True), explicit=given())
