"""What a line orders of an operator or a controller. A node that was wiped and is to come is meant as it is now."""

from __future__ import annotations

from quorate.core.coordinated import orders as operators
from quorate.core.coordinated.shard import Kind
from quorate.core.isr import orders as controllers
from quorate.sim.overseen import Order
from quorate.sim.scenario_script import Said
from quorate.sim.scenario_stage import Refused, Stage


def wanted(stage: Stage, said: Said, request: int) -> Order:
    return (_of_controller if stage.cast.room.name == "isr" else _of_operator)(stage, said, request)


def _of_operator(stage: Stage, said: Said, request: int) -> operators.Order:
    if "HEIR" in said:
        raise Refused("an operator chooses whoever has the highest head: order it to move the leader")
    if "call" in said:
        return operators.CallOff(request)
    if "move" in said:
        return operators.MoveLeader(request)
    kind = Kind.SWAP if "swap" in said else Kind.EXPAND if "add" in said else Kind.CONTRACT
    old = stage.oversight().member(said.node("OLD")) if "OLD" in said else None
    new = stage.member(said.node("NEW")) if "NEW" in said else None
    return operators.Reconfigure(request, kind, old, new)


def _of_controller(stage: Stage, said: Said, request: int) -> controllers.Order:
    oversight = stage.oversight()
    if "call" in said:
        raise Refused("nothing that a controller does takes a while and could be called off")
    heir = oversight.member(said.node("HEIR")) if "HEIR" in said else None
    if "uncleanly" in said:
        assert heir is not None
        return controllers.ElectUncleanly(request, heir)
    if "move" in said:
        return controllers.MoveLeader(request, heir)
    old = oversight.member(said.node("OLD")) if "OLD" in said else None
    new = stage.member(said.node("NEW")) if "NEW" in said else None
    return controllers.ChangeReplicas(request, old, new)
