"""Who must not take part: which peers this node turns away, and when it ends because others turn it away.

A peer must not vote or count whose directory was made anew as if it had promised nothing, nor one in whose place
another directory is registered, as two would fight for one number, nor one that was forgotten. Such a node is told
why, and ends: somebody must look at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.node.codec import ANOTHER_DISK, FOR_GOOD, FORGOTTEN, OTHER_CLUSTER, REPLACED, Hello

if TYPE_CHECKING:
    from quorate.node.node import Node


class Unwanted:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._strangers: set[int] = set()
        """Peers that say they are of another cluster."""

    def why(self, greeting: Hello) -> str:
        """Why that peer is turned away; empty if it is not."""
        if not self._node.config.voters:
            return ""
        known = self._node.metadata.image.nodes.get(greeting.node)
        if known is not None and known.is_another_disk(incarnation=greeting.incarnation, disk=greeting.disk):
            return f"node {greeting.node} {ANOTHER_DISK}"
        return self.why_replaced(greeting.node, greeting.incarnation)

    def why_replaced(self, node: int, incarnation: int) -> str:
        image = self._node.metadata.image
        if not image.is_replaced(node, incarnation=incarnation):
            return ""
        return f"node {node} {FORGOTTEN if image.is_forgotten(node) else REPLACED}"

    def refused(self, peer: int, why: str) -> bool:
        """A peer will not talk to us, and whether that is for good."""
        if any(reason in why for reason in FOR_GOOD):
            self._node.fail(why)
            return True
        if OTHER_CLUSTER in why:
            self._strangers.add(peer)
            if self._is_astray():
                self._node.fail(
                    f"{why}; all that it was told of say so: remove {self._node.config.directory}, and make it "
                    f"with their --cluster"
                )
                return True
        return False

    def _is_astray(self) -> bool:
        """Everybody is of another cluster, and this node was never of any: the mistake is here.

        One peer alone may itself be the one that was told wrongly.
        """
        config = self._node.config
        is_new = bool(config.voters) and not self._node.metadata.image.nodes
        return is_new and self._strangers.issuperset(config.peers)
