"""What a topic asks of batches is looked up once, and anew when the topic has changed."""

from __future__ import annotations

from msgspec.structs import replace

from quorate.kafka.terms import APPEND_TIME, FLUSH, FLUSH_LEADER, MESSAGE_BYTES_MAX, TIMESTAMP_TYPE, TermsOf
from quorate.machine.metadata import Topic

TOPIC = Topic("orders", bytes(16), "raft", ())


def test_terms_are_those_of_the_topic_as_it_is_now() -> None:
    terms = TermsOf()
    before = terms(TOPIC)
    assert terms(TOPIC) is before
    assert not before.gives_time
    assert not before.leader_is_enough
    assert not before.is_looked_into
    config = {
        MESSAGE_BYTES_MAX: "77",
        TIMESTAMP_TYPE: APPEND_TIME,
        FLUSH: FLUSH_LEADER,
        "cleanup.policy": "compact",
    }
    after = terms(replace(TOPIC, config=config))
    assert after.bytes_max == 77
    assert after.gives_time
    assert after.leader_is_enough
    assert after.is_looked_into


def test_a_topic_created_anew_under_the_same_name_has_terms_of_its_own() -> None:
    terms = TermsOf()
    terms(replace(TOPIC, config={MESSAGE_BYTES_MAX: "77"}))
    assert terms(TOPIC).bytes_max != 77
