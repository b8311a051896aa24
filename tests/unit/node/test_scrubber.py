"""Everything on the disk is read again and again, also what nobody asks for; what is damaged is found and said."""

from __future__ import annotations

from pathlib import Path

from quorate.batch import encode_records
from quorate.machine.metadata import METADATA_TOPIC
from quorate.storage.settings import StoreSettings
from tests.unit.kafka.harness import Served, serve, until

SMALL = StoreSettings(segment_bytes=1 << 14, write_back_bytes=1 << 12, tail_bytes=1 << 12)


def segments_below(directory: Path) -> list[Path]:
    """Of the topic, not of the metadata group."""
    found = directory.glob("n1/store/partitions/*/*.log")
    return sorted(segment for segment in found if not segment.parent.name.startswith(METADATA_TOPIC.hex()))


def damage(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)


def test_damage_that_nobody_reads_is_found(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as client:
            await client.create("events")
            segments: list[Path] = []
            while len(segments) < 3:
                await client.produce("events", encode_records([(None, bytes(5_000))]))
                segments = segments_below(tmp_path)
        damage(segments[0])

        def is_found() -> bool:
            return any(replica.faulty for replica in served.node.status().replicas)

        await until(is_found)
        await until(lambda: any("partition events/0: offsets " in line for line in served.said))

    serve(tmp_path, test, store=SMALL, scrub_every_s=0.05)
