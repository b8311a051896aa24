"""One failure detector per pair of nodes."""

from __future__ import annotations

from quorate.host.detector import Detector, DetectorSettings


def watching(*peers: int) -> Detector:
    detector = Detector(DetectorSettings(ping_s=1.0, suspect_s=3.0))
    detector.watch(0.0, peers)
    return detector


def test_every_peer_is_pinged_at_once_and_then_regularly() -> None:
    detector = watching(2, 3)
    assert detector.tick(0.0) == ((2, 3), ())
    assert detector.tick(0.5) == ((), ())
    assert detector.deadline == 1.0
    assert detector.tick(1.0) == ((2, 3), ())


def test_a_peer_that_is_not_heard_from_is_suspected_again_and_again() -> None:
    detector = watching(2, 3)
    detector.heard(2.0, 3)
    assert detector.tick(3.0)[1] == (2,)
    assert detector.tick(4.0)[1] == ()
    assert detector.tick(6.0)[1] == (2, 3)


def test_a_peer_that_is_heard_from_is_trusted_again() -> None:
    detector = watching(2)
    detector.tick(3.0)
    detector.heard(4.0, 2)
    assert detector.tick(6.0)[1] == ()


def test_a_peer_in_another_life_is_noticed_once() -> None:
    detector = watching(2)
    assert not detector.pinged(1.0, 2, boot=11)
    assert not detector.pinged(2.0, 2, boot=11)
    assert detector.pinged(3.0, 2, boot=12)
    assert not detector.pinged(4.0, 2, boot=12)


def test_nobody_to_watch_costs_nothing() -> None:
    detector = watching()
    assert detector.deadline is None
    assert detector.tick(9.0) == ((), ())
