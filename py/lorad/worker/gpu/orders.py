"""What the rank that leads and the others tell each other, as frames on a socket for each."""

from __future__ import annotations

import msgspec

from lorad.adapters.image import LayoutSpec
from lorad.config import EngineConfig
from lorad.engine.messages import Failure


class Order(msgspec.Struct, frozen=True):
    """From the leader."""


class Begin(Order, frozen=True, tag=True):
    """The first one."""

    config: EngineConfig
    rank: int
    folder: str
    """Where ranks find one another."""
    backend: str
    """Of torch.distributed."""
    maker: str
    """`module:function` that makes the worker; see `MakePart`."""


class AddAdapter(Order, frozen=True, tag=True):
    """`GpuWorker.add_adapter`. The image comes as an open file along with it."""

    adapter: int
    tag: int
    layout: LayoutSpec
    modules: bytes
    """`AdapterImage.modules`."""


class DropAdapter(Order, frozen=True, tag=True):
    """`GpuWorker.drop_adapter`."""

    adapter: int


class Capture(Order, frozen=True, tag=True):
    """Capture the graph of this bucket."""

    rows: int
    tiles: int


class PlanLayout(Order, frozen=True, tag=True):
    """How plans lie in their arrays, before the first of them."""

    sections: dict[str, tuple[int, int]]
    length: int


class Apply(Order, frozen=True, tag=True):
    """`GpuWorker.apply`."""

    plan: bytes
    """The whole array."""


class Run(Order, frozen=True, tag=True):
    """Compute the rows of that plan."""


class LogitsOf(Order, frozen=True, tag=True):
    """`GpuWorker.logits_of`."""

    tokens: bytes
    """i32, places in the step."""


class Enter(Order, frozen=True, tag=True):
    """The slots of the next page-ins, in the order of plans, answer for their adapters from here on. Answered."""

    count: int


class Answer(msgspec.Struct, frozen=True):
    """From another rank."""


class Came(Answer, frozen=True, tag=True):
    """It has begun, and goes to the place where ranks find one another."""


class Built(Answer, frozen=True, tag=True):
    """Its worker is there."""


class Entered(Answer, frozen=True, tag=True):
    """By page-in, why it failed; "": it didn't."""

    errors: list[str]


class Failed(Answer, frozen=True, tag=True):
    """It can't begin."""

    failure: Failure


Orders = Begin | AddAdapter | DropAdapter | Capture | PlanLayout | Apply | Run | LogitsOf | Enter
Answers = Came | Built | Entered | Failed

to_rank: msgspec.msgpack.Decoder[Orders] = msgspec.msgpack.Decoder(Orders)
to_leader: msgspec.msgpack.Decoder[Answers] = msgspec.msgpack.Decoder(Answers)
