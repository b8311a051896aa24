"""The network: what it does to messages, and that faults left out change nothing else."""

from __future__ import annotations

from quorate.sim.network import CALM, Network, Weather

NODES = (1, 2, 3)


def arrivals(network: Network, count: int, *, source: int = 1, target: int = 2) -> list[list[float]]:
    return [[delay for delay, _ in network.journeys(source, target, number)] for number in range(count)]


def test_calm_weather_delivers_everything_once_after_a_delay() -> None:
    network = Network(7, NODES, CALM)
    for delays in arrivals(network, 200):
        assert len(delays) == 1
        assert delays[0] >= CALM.delay_min


def test_delays_differ_so_that_messages_overtake_each_other() -> None:
    delays = [delay for (delay,) in arrivals(Network(7, NODES, CALM), 50)]
    assert delays != sorted(delays)
    assert len(set(delays)) == len(delays)


def test_cut_link_loses_one_direction_only_until_every_cut_is_mended() -> None:
    network = Network(7, NODES, CALM)
    network.cut([(1, 2)])
    network.cut([(1, 2)])
    network.mend([(1, 2)])
    assert arrivals(network, 5) == [[]] * 5
    assert all(arrivals(network, 5, source=2, target=1))
    network.mend([(1, 2)])
    assert all(arrivals(network, 5))


def test_storm_drops_doubles_replays_and_stalls_in_its_proportions() -> None:
    storm = Weather(drop=0.25, duplicate=0.25, replay=0.25, stall=0.25, stall_seconds=9.0)
    network = Network(7, NODES, CALM)
    network.storm(1, storm)
    parcels = [[parcel for _, parcel in network.journeys(1, 2, number)] for number in range(400)]
    lost = sum(not found for found in parcels)
    doubled = sum(found == [number, number] for number, found in enumerate(parcels))
    replayed = sum(len(found) == 2 and found[1] != number for number, found in enumerate(parcels))
    for share in (lost, doubled, replayed):
        assert 60 < share < 140


def test_newest_storm_decides_and_calm_returns_when_all_have_passed() -> None:
    network = Network(7, NODES, CALM)
    network.storm(1, Weather(drop=1.0))
    network.storm(2, Weather(duplicate=1.0))
    assert all(len(delays) == 2 for delays in arrivals(network, 5))
    network.pass_over(2)
    assert arrivals(network, 5) == [[]] * 5
    network.pass_over(1)
    assert all(len(delays) == 1 for delays in arrivals(network, 5))


def test_fault_on_one_link_changes_nothing_on_another_or_afterwards() -> None:
    disturbed, undisturbed = Network(7, NODES, CALM), Network(7, NODES, CALM)
    disturbed.cut([(1, 2)])
    arrivals(disturbed, 10)
    disturbed.mend([(1, 2)])
    arrivals(undisturbed, 10)
    assert arrivals(disturbed, 10) == arrivals(undisturbed, 10)
    assert arrivals(disturbed, 10, target=3) == arrivals(undisturbed, 10, target=3)


def test_healing_mends_every_link_and_ends_every_storm() -> None:
    network = Network(7, NODES, CALM)
    network.cut([(1, 2), (2, 1)])
    network.storm(1, Weather(drop=1.0))
    network.heal(CALM)
    assert all(len(delays) == 1 for delays in arrivals(network, 20))
