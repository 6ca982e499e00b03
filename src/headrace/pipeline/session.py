"""A Spark session for any master: this machine, a cluster, or a Spark Connect server."""

from __future__ import annotations

import os
import re
import sys
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import headrace
from headrace.config import PipelineConfig
from headrace.errors import HeadraceError, Unavailable
from headrace.pipeline import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How long a server may take to accept a connection.
_CONNECT_S = 10.0
#: The directory of event logs where none is set, as Spark has it.
_EVENT_LOG = "file:///tmp/spark-events"
#: The client tries an unavailable server again for about half a minute; by default it is ten.
_RETRIES, _LONGEST_PAUSE_MS = 10, 5_000


def check_server(remote: str) -> None:
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
    """Make a session fail soon if its server is gone."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES, max_backoff=_LONGEST_PAUSE_MS)])


def is_unavailable(reason: BaseException) -> bool:
    """Whether an exception means that a server did not answer."""
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


_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.scheduler.name = org.apache.spark.scheduler.TaskSchedulerImpl
logger.scheduler.level = warn
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""

#: What kernels import where they run.
NEEDED = ("duckdb", "obstore", "pyarrow", "numpy", "msgspec", "datasketches", "jsonschema_rs")


def is_local(config: PipelineConfig) -> bool:
    """Whether executors see the files of this machine."""
    return (config.remote or config.master).startswith("local")


def start(config: PipelineConfig, scratch: Path) -> SparkSession:
    """A session whose executors can run our kernels; raises Unavailable, saying what is missing."""
    _prepare(scratch)
    from pyspark.sql import SparkSession

    if config.remote.startswith("sc://"):
        check_server(config.remote)

    builder = SparkSession.builder.appName("headrace")
    for name, value in _settings(config, scratch).items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark Connect on this machine warns that it is on this machine
        spark = (builder.remote(config.remote) if config.remote else builder.master(config.master)).getOrCreate()
    if config.remote:
        limit_retries(spark)
    if not is_local(config):
        spark.addArtifacts(str(_package(scratch)), pyfile=True)
    check_executors(spark)
    return spark


def _prepare(scratch: Path) -> None:
    """Set the environment variables from which Spark's scripts take Java and Python."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unavailable(
            "the pipeline needs pyspark, which is not installed; run: pip install 'headrace[pipeline]'",
            reason="no_spark",
        )
    os.environ["JAVA_HOME"] = str(java.find_quiet(scratch))
    home = Path(os.environ.setdefault("SPARK_HOME", str(Path(spec.origin).parent)))
    if "SPARK_CONF_DIR" not in os.environ and not (home / "conf").exists():
        os.environ["SPARK_CONF_DIR"] = str(_log_settings(scratch))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _log_settings(scratch: Path) -> Path:
    """A directory of settings of Spark, by which it logs errors, and that a cluster has no executors.

    The gateway has the level of the root since Spark announces another one.
    """
    directory = scratch / "conf"
    directory.mkdir(exist_ok=True)
    (directory / "log4j2.properties").write_text(_LOG4J)
    return directory


def _settings(config: PipelineConfig, scratch: Path) -> dict[str, str]:
    """Our settings and then those of the configuration, which win; what must be ours the configuration refuses."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.shuffle.partitions": str(config.shuffle_partitions),
    }
    if not config.remote.startswith("sc://"):
        settings["spark.driver.memory"] = config.memory
    if is_local(config):
        settings |= {
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    return settings | config.spark


def _package(scratch: Path) -> Path:
    """This package as an archive that executors can import."""
    root = Path(headrace.__file__).parent
    target = scratch / "headrace.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, Path("headrace") / file.relative_to(root))
    return target


def check_executors(spark: SparkSession) -> None:
    """Run one task; raises Unavailable where its executor lacks a package."""
    from headrace.pipeline.kernels.units import missing  # needs PySpark, whose lack is told elsewhere

    rows = spark.range(0, 1, 1, 1).mapInArrow(missing(NEEDED), "module string").collect()
    if rows:
        names = " ".join(row["module"] for row in rows)
        raise Unavailable(f"executors lack {names}; install them where executors run", reason="executors")


class Addresses(NamedTuple):
    """Where people can look at a session: its UI, and the directory of its event log; None where it has none."""

    ui: str | None
    event_log: str | None


def addresses(spark: SparkSession, config: PipelineConfig) -> Addresses:
    """Where people can look at a session; a Spark Connect server does not say where its UI is."""
    is_logged = spark.conf.get("spark.eventLog.enabled", "false") == "true"
    return Addresses(
        None if config.remote else spark.sparkContext.uiWebUrl,
        spark.conf.get("spark.eventLog.dir", _EVENT_LOG) if is_logged else None,
    )


def ignored_settings(spark: SparkSession, config: PipelineConfig) -> list[str]:
    """The settings that a session did not take: those of a server or cluster that was started before."""
    return [name for name, value in config.spark.items() if spark.conf.get(name, "") != value]


def check_store(spark: SparkSession, store: str) -> None:
    """Run one task; raises Unavailable where its executor cannot use the object store."""
    from headrace.pipeline.kernels.units import store_failure  # needs PySpark

    for row in spark.range(0, 1, 1, 1).mapInArrow(store_failure(store), "reason string").collect():
        raise Unavailable(f"executors cannot use the object store: {row['reason']}", reason="executor_store")


Kind = Literal["connection", "session", "context", "python", "packages", "executors", "job"]

_SENTENCES: dict[Kind, str] = {
    "connection": "Spark does not answer",
    "session": "the Spark session is gone",
    "context": "the Spark context has stopped",
    "python": "executors cannot run the Python of PYSPARK_PYTHON, which must be there and of the driver's version",
    "packages": "executors lack a package",
    "executors": "executors were lost",
    "job": "a Spark job failed",
}
#: Parts of messages, the most specific first; Spark has error classes for few of these.
_PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("session", r"INVALID_HANDLE\.SESSION_|NO_ACTIVE_SESSION|SESSION_(CLOSED|NOT_FOUND|CHANGED)"),
    ("context", r"stopped SparkContext|SparkContext (was|is|has been) (shut down|stopped)|SparkContext was cancelled"),
    ("connection", r"StatusCode\.UNAVAILABLE|failed to connect to all addresses|Connection refused"),
    ("python", r"PYTHON_VERSION_MISMATCH|Cannot run program"),
    ("packages", r"ModuleNotFoundError|ImportError"),
    ("executors", r"ExecutorLostFailure|Python worker (exited|failed)|FetchFailed|[Ee]xecutor \S+ (lost|exited)"),
)
_REASON_LENGTH = 500


class SparkFailed(HeadraceError):
    """Spark failed, or the cluster that it runs on, and not a unit of work."""

    code = "spark_failed"
    status = 503


def spark_failed(reason: BaseException) -> SparkFailed:
    """An exception of a job or a session as a SparkFailed with a sentence."""
    if isinstance(reason, SparkFailed):
        return reason
    kind = kind_of(reason)
    return SparkFailed(f"{_SENTENCES[kind]}: {summarize(reason)}", reason=kind)


def kind_of(reason: BaseException) -> Kind:
    """Which part of Spark has failed."""
    text = f"{_condition(reason)} {type(reason).__name__} {_text(reason)}"
    for kind, sign in _PATTERNS:
        if re.search(sign, text):
            return kind
    if is_unavailable(reason) or isinstance(reason, (OSError, EOFError)) or _is_py4j_network(reason):
        return "connection"
    return "job"


def summarize(reason: BaseException) -> str:
    """The message of an exception, without the stack of the JVM."""
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
