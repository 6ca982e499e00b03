"""The pipeline speaks TLS with a key, as every other caller does."""

from __future__ import annotations

import ssl
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
from pyspark.sql import SparkSession

from headrace.config import PipelineConfig
from headrace.pipeline.driver import Driver, DriverConfig
from headrace.storage.keys import KeyStore
from support.certificates import write_certificate
from support.log_stream import SEARCH, event
from support.spark_stories import SETTINGS

if TYPE_CHECKING:
    from tests.conftest import StartServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_a_driver_indexes_the_streams_of_a_server_with_a_certificate_and_keys(
    spark: SparkSession, start_server: StartServer, tmp_path: Path
) -> None:
    assert spark is not None, "the driver finds this session"
    cert_file, key_file = write_certificate(tmp_path)
    (tmp_path / "data").mkdir(mode=0o700)
    with closing(KeyStore(tmp_path / "data" / "keys.db")) as keys:
        _, token = keys.create(user_id="ada", scopes=["admin"])
    server = start_server(
        **SETTINGS, server__host="0.0.0.0", server__tls_cert=str(cert_file), server__tls_key=str(key_file)
    )
    url, context = server.url.replace("0.0.0.0", "127.0.0.1"), ssl.create_default_context(cafile=str(cert_file))
    headers = {"authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=url, headers=headers, verify=context, trust_env=False, timeout=30) as http:
        http.put("/v1/stream/logs", headers={"content-type": "application/json"}).raise_for_status()
        http.post("/v1/stream/logs/_schema", json={"schema": {"type": "object"}}).raise_for_status()
        http.post("/v1/stream/logs/_schema", json={"search": SEARCH}).raise_for_status()
        http.post("/v1/stream/logs", json=[event(number) for number in range(60)]).raise_for_status()
        until = time.monotonic() + 60
        while not http.get("/v1/work").json()["due"]:
            assert time.monotonic() < until, "nothing is due"
            time.sleep(0.05)
        config = PipelineConfig(master="local[1]")
        Driver(DriverConfig(url, token, str(cert_file), config, once=True), tmp_path).run()
        found = http.post("/v1/stream/logs/_search", json={"q": "has:ts", "size": 0, "track_total_hits": True}).json()
        assert found["total"]["value"] == 60
        assert found["coverage"]["indexed_segments"] >= 1 and found["coverage"]["scanned_segments"] == 0
