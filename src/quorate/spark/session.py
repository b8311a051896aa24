"""Spark on this machine, quiet and self-contained, or on a master elsewhere: for commands, the demo and the tests.

On a Spark platform none of this is needed; there a session exists already, and `format("quorate")` works in it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from logging import NullHandler, getLogger
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any

from quorate.spark.java import find_java, java_home_for_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
ON_LOOPBACK = re.compile(r"(127\.[\d.]+|localhost|\[::1\])(:|$)")
SHUFFLE_PARTITIONS_COUNT = 4
STOP_S = 30.0
# The last two lines keep Spark from announcing that it changed the level.
LOGGING = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{{1}}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
"""


class NoSpark(Exception):
    """One line: what is not installed, and how to install it."""


def check_spark() -> None:
    """Raises NoSpark. Before anything is imported that imports Spark."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise NoSpark(
            "Spark is not installed; install it with `pip install '.[local]'` in a clone of Quorate"
        )


@contextmanager
def local_session(
    app: str,
    *,
    master: str = "local[*]",
    log_level: str = "error",
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session that ends with the block, with all that it kept on disk. Raises NoSpark or NoJava."""
    check_spark()
    # What goes wrong while Java is spoken to is raised; where nobody asked for logs, it is not printed as well. (Of
    # the package that speaks to it some goes to the root of all logs.)
    if not getLogger().handlers:
        getLogger().addHandler(NullHandler())
    with tempfile.TemporaryDirectory(prefix="quorate-spark-", ignore_cleanup_errors=True) as scratch:
        java_home = str(java_home_for_spark(find_java()))
        environment = environment_of(master, os.environ) | {"JAVA_HOME": java_home}
        with _environment(environment):
            interrupted = signal.getsignal(signal.SIGINT)
            session = _start(app, master, log_level, settings or {}, Path(scratch))
            if current_thread() is main_thread():
                # Spark's own handler talks with Java in the middle of whatever was being said to it.
                signal.signal(signal.SIGINT, interrupted)
            try:
                yield session
            except Exception as error:
                raise _ending(error) or error from None
            finally:
                apart(session.stop)


def _start(app: str, master: str, log_level: str, settings: Mapping[str, str], scratch: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    usual = settings_of(master, log_level, scratch)
    wanted = {"spark.app.name": app, "spark.master": master, **usual, **settings}
    _have_java(wanted)
    builder = SparkSession.builder
    for name, value in wanted.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # Whatever Java says, with all of its stack.
        if _ending(error) is not None:
            raise
        raise NoSpark(
            f"Spark does not start on {master}; look whether it is there: {reason_of(error)}"
        ) from error
    session.sparkContext.setLogLevel(log_level.upper())
    return session


def environment_of(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Without Java's home. Executors elsewhere have the Python that a person names, or one in the same place."""
    found = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if is_here(master):
        return found | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
    return found if given.get("PYSPARK_PYTHON") else found | {"PYSPARK_PYTHON": sys.executable}


def settings_of(master: str, log_level: str, scratch: Path) -> dict[str, str]:
    """Of places and addresses only where all is on this machine: on others they mean nothing, or something else.

    What is set here beats what a person has written into spark-defaults.conf.
    """
    logging = scratch / "log4j2.properties"
    logging.write_text(LOGGING.format(level=log_level), encoding="utf-8")
    everywhere = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()}",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if not is_here(master):
        return everywhere
    return everywhere | {
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS_COUNT),
        "spark.sql.streaming.checkpointLocation": str(scratch / "checkpoints"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }


def is_here(master: str) -> bool:
    """Whether driver and executors are on this machine."""
    name, _, hosts = master.partition("://")
    if not hosts:
        return name.startswith("local")
    return name == "spark" and all(ON_LOOPBACK.match(host) for host in hosts.split(","))


def _have_java(wanted: Mapping[str, str]) -> None:
    """Started out of reach of what ends us all (`timeout` signals its whole process group): it is we who end Java.

    It ends by itself when we are gone, as nobody holds its input any more.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        launch: Callable[..., Any] = launch_gateway
        conf = SparkConf().setAll(list(wanted.items()))
        SparkContext._ensure_initialized(gateway=launch(conf, {"start_new_session": True}))


def _ending(error: BaseException) -> BaseException | None:
    """The signal that was being obeyed when `error` came: what Java says of that is news to nobody."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt | SystemExit):
        cause = cause.__context__
    return cause


def apart(stop: Callable[[], None]) -> None:
    """From a thread of its own: the connection to Java of one that was interrupted is of no use any more.

    A plain one. Spark's own threads ask Java for something before they start, from the very thread that must not.
    """

    def stopped() -> None:
        with suppress(Exception):  # Where Java is gone, nothing is left to be stopped.
            stop()

    stopping = Thread(target=stopped, name="stopping Spark", daemon=True)
    stopping.start()
    stopping.join(STOP_S)


def reason_of(error: Exception) -> str:
    """The line that tells, of messages that carry whole stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Ours are not called errors, and say all themselves.
    telling = r": \w|Caused by: |quorate\.[\w.]+: |[\w.]+(Error|Exception): "
    causes = [line for line in lines if re.match(telling, line)]
    return re.sub(r"^(: |quorate\.[\w.]+: )", "", (causes or lines or [type(error).__name__])[-1])


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Spark reads these when it starts Java and Python workers; afterwards they are as they were."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
