"""Effects executed for many replicas over one disk, without sockets, threads or clocks.

The node process and the simulator both drive this code, so that the glue between protocol and disk, where
acknowledge-before-flush bugs live, is simulated too.
"""

from quorate.host.contract import HostSettings, Observer
from quorate.host.host import Host
from quorate.host.parcel import Parcel, Ping
from quorate.host.replicas import Hosted, ReplicaRecord

__all__ = ["Host", "HostSettings", "Hosted", "Observer", "Parcel", "Ping", "ReplicaRecord"]
