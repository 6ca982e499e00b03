"""Spark Connect: whether a server answers, and for how long its client tries again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How long a server may take to accept a connection.
_CONNECT_S = 10.0
#: The client tries an unavailable server again for about half a minute; by default it is ten.
_RETRIES, _LONGEST_PAUSE_MS = 10, 5_000


def reach(remote: str) -> None:
    """Raise Unavailable where no server answers; a session would try for ten minutes."""
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    channel = DefaultChannelBuilder(remote).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=_CONNECT_S)
    except grpc.FutureTimeoutError as reason:
        raise Unavailable(f"no Spark Connect server answers at {remote}", reason="no_connect_server") from reason
    finally:
        channel.close()


def limit_retries(spark: SparkSession) -> None:
    """Let a session fail soon where its server has gone."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES, max_backoff=_LONGEST_PAUSE_MS)])


def is_unavailable(reason: BaseException) -> bool:
    """Whether an exception says that a server did not answer."""
    try:
        import grpc
        from pyspark.errors.exceptions.connect import SparkConnectGrpcException
    except ImportError:  # without the packages of Spark Connect
        return False
    code = None
    if isinstance(reason, SparkConnectGrpcException):
        code = reason.getGrpcStatusCode()
    elif isinstance(reason, grpc.RpcError) and hasattr(reason, "code"):
        code = reason.code()
    return code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
