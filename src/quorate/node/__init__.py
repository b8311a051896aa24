"""Sockets, threads, clocks and processes around a host: `python -m quorate.node --config FILE`.

See config.py for the file, letters.py and codec.py for what travels, requests.py for what clients may ask.
"""

from quorate.node.client import Client
from quorate.node.config import NodeConfig, load_config
from quorate.node.node import Node, NodeFailed

__all__ = ["Client", "Node", "NodeConfig", "NodeFailed", "load_config"]
