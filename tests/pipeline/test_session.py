"""What Spark raises is told apart by what broke; and what an executor lacks from what a unit holds."""

from __future__ import annotations

import errno
from typing import Any

import grpc
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkRuntimeError, PythonException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException, SparkException

from headrace.config import ConfigError
from headrace.errors import CorruptData, ObjectMissing, StoreUnavailable
from headrace.pipeline.driver import missing_results
from headrace.pipeline.kernels.units import failure
from headrace.pipeline.session import SparkFailed, kind_of, spark_failed, summarize

ABORTED = "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: "


class Rpc(grpc.RpcError):
    """An error of a call, as the library raises it."""

    def code(self) -> Any:
        return grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (SparkConnectGrpcException("lost", grpc_status_code=grpc.StatusCode.UNAVAILABLE), "connection"),
        (Rpc(), "connection"),
        (Py4JNetworkError("Answer from Java side is empty"), "connection"),
        (Py4JError("An error occurred while calling o1.x"), "connection"),
        (ConnectionRefusedError(111, "Connection refused"), "connection"),
        (EOFError(), "connection"),
        (
            SparkException("x", errorClass="INVALID_HANDLE.SESSION_CHANGED", messageParameters={"handle": "1"}),
            "session",
        ),
        (SparkConnectGrpcException("[INVALID_HANDLE.SESSION_NOT_FOUND] no session"), "session"),
        (SparkConnectGrpcException("[RESPONSE_ALREADY_RECEIVED] INVALID_HANDLE.SESSION_NOT_FOUND"), "session"),
        (PySparkRuntimeError(errorClass="NO_ACTIVE_SESSION", messageParameters={}), "session"),
        (SparkException("Job 4 cancelled because SparkContext was shut down"), "context"),
        (SparkException(ABORTED + "ExecutorLostFailure (executor 1 exited)"), "executors"),
        (PythonException(ABORTED + "org.apache.spark.SparkException: Python worker exited unexpectedly"), "executors"),
        (PythonException(ABORTED + 'java.io.IOException: Cannot run program "/opt/python": error=2'), "python"),
        (PythonException(ABORTED + "[PYTHON_VERSION_MISMATCH] 3.9 in worker, 3.11 in driver"), "python"),
        (PythonException("ModuleNotFoundError: No module named 'duckdb'"), "packages"),
        (AnalysisException("[UNRESOLVED_COLUMN] nothing"), "job"),
        (ValueError("what is this"), "job"),
    ],
)
def test_a_failure_of_spark_says_what_broke(raised: Exception, kind: str) -> None:
    assert kind_of(raised) == kind
    failed = spark_failed(raised)
    assert isinstance(failed, SparkFailed) and failed.facts["reason"] == kind
    assert spark_failed(failed) is failed


def test_a_reason_is_short_and_has_no_stack_of_the_jvm() -> None:
    text = (
        ABORTED + "gone\n\nDriver stacktrace:\n\tat org.apache.spark.Foo.bar(Foo.scala:1)\n... 14 more\n" + "x" * 9999
    )
    assert summarize(ValueError(text)).startswith(f"{ABORTED}gone Driver stacktrace: xxx")
    assert len(summarize(ValueError(text))) == 500
    assert summarize(EOFError()) == "EOFError"


@pytest.mark.parametrize(
    ("raised", "field"),
    [
        (CorruptData("bytes differ"), "error"),
        (ValueError("no number"), "error"),
        (OSError("Parquet magic bytes not found"), "error"),
        (ObjectMissing("it is gone"), "gone"),
        (ImportError("No module named 'duckdb'"), "fault"),
        (MemoryError(), "fault"),
        (StoreUnavailable("the object store did not answer"), "fault"),
        (ConfigError("storage.object_store: no credentials"), "fault"),
        (OSError(errno.ENOSPC, "No space left on device"), "fault"),
        (PermissionError(errno.EACCES, "Permission denied"), "fault"),
    ],
)
def test_a_unit_is_not_to_blame_for_what_its_executor_lacks(raised: Exception, field: str) -> None:
    assert list(failure(raised)) == [field]


class Unspeakable(PySparkRuntimeError):
    """An exception of a JVM that is gone: to say what it is about it would have to ask."""

    def __str__(self) -> str:
        raise Py4JNetworkError("the JVM is gone")

    def getCondition(self) -> str:
        raise Py4JNetworkError("the JVM is gone")


def test_an_exception_that_cannot_be_read_any_more_is_named() -> None:
    failed = spark_failed(Unspeakable("x", errorClass="NO_ACTIVE_SESSION", messageParameters={}))
    assert failed.message == "a Spark job failed: Unspeakable"


def test_units_without_a_result_are_missed() -> None:
    units = [{"unit": "a"}, {"unit": "b"}, {"unit": "c"}, {"unit": "d"}]
    results = [{"unit": "a", "gone": True}, {"unit": "b", "fault": "no disk"}, {"unit": "d", "error": "bad"}]
    assert missing_results(units, results) == {"b": "no disk", "c": "Spark returned no result"}
