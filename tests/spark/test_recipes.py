"""How docs/SPARK.md opens raw values: as it stands there, with the jars it asks for where it does."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.cluster.other_clients import CACHE, FETCH_S, NotThere
from tests.spark.conftest import Topic
from tests.spark.test_documents import Example

pytestmark = pytest.mark.cluster

MakeTopic = Callable[..., Topic]
RECIPE_S = 120.0
STREAM, JSON, AVRO, PROTOBUF, PROTOBUF_BY_PYTHON = range(5)
"""Blocks of the section."""
DRIVER = Path(__file__).with_name("recipe_driver.py")
EVENTS: list[dict[str, Any]] = [{"user": "ann", "amount": 1.5}, {"user": "bob", "amount": -2.0}]
AVRO_SCHEMA = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "user", "type": "string"}, {"name": "amount", "type": "double"}],
}


MODULE = """
from google.protobuf import descriptor_pb2, message_factory

described = descriptor_pb2.FileDescriptorSet.FromString({described!r})
Event = message_factory.GetMessages(described.file)["tests.Event"]
"""
"""What `protoc --python_out` writes, but for its own way to make classes of what it has described."""


def jar(artifact: str, *versions: str) -> Path:
    """Of the first of these versions that Maven finds; fetched once. Raises NotThere."""
    if shutil.which("mvn") is None:
        raise NotThere("mvn is not on the PATH")
    target = CACHE / "jars"
    for version in versions:
        place = target / f"{artifact}-{version}.jar"
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact=org.apache.spark:{artifact}:{version}"]
        if not place.exists():
            try:
                subprocess.run(
                    [*command, f"-DoutputDirectory={target}"],
                    capture_output=True,
                    timeout=FETCH_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise NotThere(f"mvn did not fetch {artifact} within {FETCH_S:g} s") from None
        if place.exists():
            return place
    raise NotThere(f"mvn finds no {artifact} of version {' or '.join(versions)}")


def jar_or_skip(artifact: str, *versions: str) -> Path:
    try:
        return jar(artifact, *versions)
    except NotThere as why:
        pytest.skip(str(why))


def opened(
    topic: Topic,
    block: int,
    *,
    jars: str = "",
    modules: Path | None = None,
    names: dict[str, str] | None = None,
    in_place: dict[str, str] | None = None,
) -> list[Any]:
    """What the recipe makes of the topic, in a driver of its own."""
    recipe = Example("Values").blocks[block]
    for written, meant in (in_place or {}).items():
        assert written in recipe
        recipe = recipe.replace(written, meant)
    given = {"recipe": recipe, "jars": jars, "options": topic.options(), "names": names or {}}
    done = subprocess.run(
        [sys.executable, str(DRIVER)],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=RECIPE_S,
        check=False,
        env=os.environ | ({"PYTHONPATH": str(modules)} if modules else {}),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line)["value"] for line in done.stdout.splitlines()]


def test_json_with_a_map_is_opened(spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce([b'{"tags": {"a": "1", "b": "2"}}'])
    example = Example("Values", events=topic.read(spark))
    example.run(JSON)
    frame = example.names["opened"]
    assert isinstance(frame, DataFrame)
    assert [row.value.tags for row in frame.collect()] == [{"a": "1", "b": "2"}]


@pytest.mark.proof
def test_avro_is_opened(make_topic: MakeTopic) -> None:
    found = jar_or_skip("spark-avro_2.13", pyspark.__version__, "4.1.1")
    topic = make_topic()
    topic.produce([avro(**event) for event in EVENTS])
    names = {"schema_as_json": json.dumps(AVRO_SCHEMA)}
    assert opened(topic, AVRO, jars=str(found), names=names) == EVENTS


def avro(user: str, amount: float) -> bytes:
    """A string is its length, twice that as it may be negative, and its bytes."""
    return bytes([2 * len(user)]) + user.encode() + struct.pack("<d", amount)


@pytest.mark.proof
def test_protobuf_is_opened(make_topic: MakeTopic, tmp_path: Path) -> None:
    found = jar_or_skip("spark-protobuf_2.13", pyspark.__version__)
    descriptor, event = protobuf()
    described = tmp_path / "events.desc"
    described.write_bytes(descriptor)
    topic = make_topic()
    topic.produce([event(**each).SerializeToString() for each in EVENTS])
    in_place = {"events.desc": str(described)}
    assert opened(topic, PROTOBUF, jars=str(found), in_place=in_place) == EVENTS


def test_protobuf_is_opened_without_a_jar(make_topic: MakeTopic, tmp_path: Path) -> None:
    described, event = protobuf()
    (tmp_path / "events_pb2.py").write_text(MODULE.format(described=described))
    topic = make_topic()
    topic.send([{"value": None}, *({"value": event(**each).SerializeToString()} for each in EVENTS)])
    assert opened(topic, PROTOBUF_BY_PYTHON, modules=tmp_path) == [None, *EVENTS]


def protobuf() -> tuple[bytes, Any]:
    """What `protoc --descriptor_set_out` writes for `message Event { string user = 1; double amount = 2; }`."""
    descriptors, factory = (
        import_module(f"google.protobuf.{name}") for name in ("descriptor_pb2", "message_factory")
    )
    file = descriptors.FileDescriptorProto(name="events.proto", package="tests", syntax="proto3")
    message = file.message_type.add(name="Event")
    kinds = descriptors.FieldDescriptorProto
    for number, (name, kind) in enumerate((("user", kinds.TYPE_STRING), ("amount", kinds.TYPE_DOUBLE)), 1):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    described = descriptors.FileDescriptorSet(file=[file])
    return described.SerializeToString(), factory.GetMessages([file])["tests.Event"]


def test_a_descriptor_made_by_hand_reads_what_it_wrote() -> None:
    """Where there is no jar a test above is left out; what it sends is right all the same."""
    _, event = protobuf()
    written = event(**EVENTS[0]).SerializeToString()
    assert written == b"\x0a\x03ann\x11" + struct.pack("<d", 1.5)
