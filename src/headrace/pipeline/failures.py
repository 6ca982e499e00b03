"""Failures of Spark itself: what broke, in words; no unit of work is to blame for one."""

from __future__ import annotations

import re
from typing import Literal

from headrace.errors import HeadraceError
from headrace.pipeline.session import is_unavailable

Kind = Literal["connection", "session", "context", "packages", "executors", "job"]

_WORDS: dict[Kind, str] = {
    "connection": "Spark does not answer",
    "session": "the Spark session is gone",
    "context": "the Spark context has stopped",
    "packages": "executors lack a package",
    "executors": "executors were lost",
    "job": "a Spark job failed",
}
#: Parts of messages, the most telling first; Spark has error classes for few of these.
_SIGNS: tuple[tuple[Kind, str], ...] = (
    ("session", r"INVALID_HANDLE\.SESSION_|NO_ACTIVE_SESSION|SESSION_(CLOSED|NOT_FOUND|CHANGED)"),
    ("context", r"stopped SparkContext|SparkContext (was|is|has been) (shut down|stopped)|SparkContext was cancelled"),
    ("connection", r"StatusCode\.UNAVAILABLE|failed to connect to all addresses|Connection refused"),
    ("packages", r"ModuleNotFoundError|ImportError"),
    ("executors", r"ExecutorLostFailure|Python worker (exited|failed)|FetchFailed|[Ee]xecutor \S+ (lost|exited)"),
)
_REASON_LENGTH = 500


class SparkFailed(HeadraceError):
    """Spark failed, or the cluster that it runs on, and not a unit of work."""

    code = "spark_failed"
    status = 503


def spark_failed(reason: BaseException) -> SparkFailed:
    """What a job or a session raised, as one failure with a sentence."""
    if isinstance(reason, SparkFailed):
        return reason
    kind = kind_of(reason)
    return SparkFailed(f"{_WORDS[kind]}: {summary(reason)}", reason=kind)


def kind_of(reason: BaseException) -> Kind:
    """Which part of Spark has failed."""
    text = f"{_condition(reason)} {type(reason).__name__} {_text(reason)}"
    for kind, sign in _SIGNS:
        if re.search(sign, text):
            return kind
    if is_unavailable(reason) or isinstance(reason, (OSError, EOFError)) or _is_py4j_network(reason):
        return "connection"
    return "job"


def summary(reason: BaseException) -> str:
    """What an exception says, without the stack of the JVM."""
    lines = [line.strip() for line in _text(reason).splitlines()]
    telling = [line for line in lines if line and not re.match(r"at [\w.$]+\(|\.\.\. \d+ more|JVM stacktrace", line)]
    return (" ".join(telling) or type(reason).__name__)[:_REASON_LENGTH]


def _condition(reason: BaseException) -> str:
    from pyspark.errors import PySparkException

    if not isinstance(reason, PySparkException):
        return ""
    try:
        return reason.getCondition() or ""
    except Exception:  # it asks the JVM, which may be gone
        return ""


def _text(reason: BaseException) -> str:
    try:
        return str(reason)
    except Exception:  # it asks the JVM, which may be gone
        return type(reason).__name__


def _is_py4j_network(reason: BaseException) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError

    return isinstance(reason, Py4JError) and not isinstance(reason, Py4JJavaError)
