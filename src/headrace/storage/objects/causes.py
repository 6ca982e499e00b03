"""Why a request to an object store failed, in a few words that are the same each time it fails so.

What obstore says names the object, the time that was spent and every layer below it. What operators look for is the
status and the code of the service, a timeout, or what the operating system says.
"""

from __future__ import annotations

import re

_STATUS = re.compile(r"status code: ([0-9]{3}[^:\n]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_SYSTEM = re.compile(r'(?:Os|Custom) \{[^}]*(?:message|error): "([^"]*)"')
_LONGEST = 200


def cause(reason: Exception) -> str:
    """The cause of a failure."""
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    text = str(reason)
    if status := _STATUS.search(text):
        code = _CODE.search(text)
        return f"it answered {status[1].strip()}" + (f" ({code[1]})" if code else "")
    kind, system = _KIND.search(text), _SYSTEM.search(text)
    if kind is not None and kind[1] == "Timeout":
        return "it did not answer in time"
    if system is not None:
        return system[1]
    if kind is not None:
        return {"Connect": "it cannot be reached"}.get(kind[1], f"the connection failed ({kind[1]})")
    return text.partition("\n")[0][:_LONGEST] or type(reason).__name__
