"""The stand-in for CUDA graphs: it does again what was captured, with what is in the tensors now, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lorad.kernels.launch import launch
from lorad.worker.gpu.graphs import ROWS, Graphs, Key
from lorad.worker.gpu.recorded import RecordedCapture


def doubled(out: Tensor, x: Tensor, by: int) -> None:
    """A kernel's definition: what it does inside isn't the capture's affair."""
    out.copy_(torch.tensor([value * by for value in x.tolist()]))


def test_a_replay_sees_what_is_in_the_tensors() -> None:
    torch.manual_seed(0)
    x, weight, y, kernel_out = torch.randn(4, 8), torch.randn(8, 8), torch.zeros(4, 8), torch.zeros(3)
    number = torch.arange(3.0)

    def work() -> None:
        torch.mm(x, weight.t(), out=y)
        between = y[:2] * 2  # memory of the run's own
        y[:2] += between
        y.view(-1)[3:5].zero_()
        launch(doubled, None, kernel_out, number, 2)

    replay = RecordedCapture()(work)
    x.normal_()
    weight.normal_()
    number.add_(10)
    wanted = x @ weight.t()
    wanted[:2] *= 3
    wanted.view(-1)[3:5] = 0
    replay()
    torch.testing.assert_close(y, wanted)
    assert kernel_out.tolist() == [20, 22, 24]


def test_what_isnt_in_a_tensor_is_baked_in() -> None:
    """The fault that the double is for: a number, an address, a length that belonged to one step."""
    out, by = torch.zeros(1), 2

    def work() -> None:
        launch(doubled, None, out, torch.ones(1), by)
        out.add_(by)

    replay = RecordedCapture()(work)
    by = 5
    replay()
    assert out.item() == 4


@pytest.mark.parametrize(
    "read", [lambda x: x.sum().item(), lambda x: x.nonzero(), lambda x: bool(x.any()), lambda x: x[x > 0]]
)
def test_waiting_for_the_device_is_refused(read: Callable[[Tensor], object]) -> None:
    def work() -> None:
        read(torch.ones(3))

    with pytest.raises(RuntimeError, match="captured"):
        RecordedCapture()(work)


def test_launches_go_to_the_device_again_after_a_capture_that_failed() -> None:
    out = torch.zeros(1)

    def work() -> None:
        raise ValueError("injected")

    with pytest.raises(ValueError, match="injected"):
        RecordedCapture()(work)
    launch(doubled, None, out, torch.ones(1), 2)
    assert out.item() == 2


class Counting:
    """A capture that takes memory, and keeps what was captured."""

    def __init__(self, each: int) -> None:
        self.bytes = 0
        self._each = each

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self.bytes += self._each
        run()
        return run


def graphs_of(rows_max: int, *, each: int = 1, bytes_max: int = 1 << 20) -> tuple[Graphs, list[Key], list[None]]:
    made: list[Key] = []
    emptied: list[None] = []
    graphs = Graphs(Counting(each), made.append, lambda: emptied.append(None), rows_max=rows_max, bytes_max=bytes_max)
    return graphs, made, emptied


@pytest.mark.parametrize("rows_max", [1, 3, 64, 100, 1024, 2000])
def test_every_decode_step_has_a_graph_with_room_for_it(rows_max: int) -> None:
    graphs, made, emptied = graphs_of(rows_max)
    while graphs.pending:
        graphs.capture(0)
    assert len(made) == len(set(made)) == len(emptied) == graphs.captures
    most = min(rows_max, ROWS[-1])
    for rows in range(1, most + 1):
        for tiles in {0, 1, 2, rows // 2, rows} & set(range(rows + 1)):
            key = graphs.key(rows, tiles)
            assert key in made
            assert key is not None and key.rows >= rows and key.tiles >= tiles
            assert (key.tiles == 0) == (tiles == 0), "the base's rows alone start no adapter kernel"
            assert not any(
                other.rows == key.rows and other != key and tiles <= other.tiles < key.tiles and other.tiles > 0
                for other in made
                if tiles
            ), "the smallest bucket is taken"
    if rows_max > most:
        assert graphs.key(rows_max, 0) is None


def test_what_isnt_captured_yet_falls_to_a_larger_bucket_or_none() -> None:
    graphs, made, _ = graphs_of(64)
    assert graphs.key(1, 0) is None
    graphs.capture(0)
    (first,) = made
    assert first == Key(1, 0) and graphs.key(1, 0) == first and graphs.key(1, 1) is None
    while Key(2, 2) not in made:
        graphs.capture(0)
    assert graphs.key(1, 1) == Key(1, 1) and graphs.key(2, 1) == Key(2, 2)


def test_memory_that_is_used_up_ends_it() -> None:
    graphs, made, _ = graphs_of(64, each=100, bytes_max=250)
    while graphs.pending:
        graphs.capture(60)
    assert len(made) == 3 and graphs.bytes == 300


def test_a_replay_is_counted_and_captures_nothing() -> None:
    graphs, made, _ = graphs_of(2)
    while graphs.pending:
        graphs.capture(60)
    count = len(made)
    key = graphs.key(2, 1)
    assert key is not None
    graphs.replay(key)
    assert graphs.replays == 1 and graphs.captures == count and made[-1] == key
