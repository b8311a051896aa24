"""librdkafka writes records as fast as it can, in a process of its own: `python -m quorate.bench.kafka_producing`.

Its arguments: servers, topic, seconds. It prints the records a second that were acknowledged, once warm.
"""

from __future__ import annotations

import sys
from time import perf_counter

from confluent_kafka import Producer

RECORD_BYTES = 100
WARM_S = 1.0
AT_ONCE = 100
BEHIND_MAX = 50_000
"""Records that are not acknowledged yet."""


def main(servers: str, topic: str, seconds: float) -> float:
    failed: list[str] = []
    count = 0

    def told(error: object, _: object) -> None:
        nonlocal count
        count += 1
        if error is not None:
            failed.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 2 * BEHIND_MAX,
        }
    )
    value, sent = bytes(RECORD_BYTES), 0
    warm_at, end = perf_counter() + WARM_S, perf_counter() + WARM_S + seconds
    began, began_count = 0.0, 0
    while (now := perf_counter()) < end and not failed:
        if not began and now >= warm_at:
            began, began_count = now, count
        if sent - count >= BEHIND_MAX:
            producer.poll(0.01)
            continue
        for _ in range(AT_ONCE):
            producer.produce(topic, value, partition=0, on_delivery=told)
        sent += AT_ONCE
        producer.poll(0)
    found = (count - began_count) / (perf_counter() - began)
    producer.flush(30)
    if failed:
        sys.exit(f"a record was not written: {failed[0]}")
    return found


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
