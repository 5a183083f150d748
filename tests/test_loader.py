"""The loader process: the same adapters as in process, refusals as they are, and a death that is only its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from lorad import Engine
from lorad.engine import loader as loader_module
from lorad.engine.loader import Loader
from lorad.engine.loading import Opening
from lorad.errors import LoradError
from lorad.models.open import open_model
from make_adapter import make_adapter
from tiny import make_tiny

PROMPT = list(range(5, 40))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "one"
    return make_adapter(folder, open_model(base).config, rank=8, modules=("q_proj", "down_proj"), seed=1)


@pytest.fixture
def engine(base: Path) -> Iterator[Engine]:
    loader = Loader(Opening(str(base), 64))
    engine = Engine(str(base), kv_cache_memory_bytes=2 << 20, max_lora_rank=64, loader=loader)
    yield engine
    engine.close()
    assert not psutil.pid_exists(loader.pid)


def answer(engine: Engine, model: str) -> list[int]:
    request = engine.add(PROMPT, model, max_tokens=8, stop_token_ids=())
    while engine.step():
        pass
    return request.tokens


def loader_of(engine: Engine) -> Loader:
    assert engine.adapters._loader is not None
    return engine.adapters._loader


def test_pages_are_the_same_bytes_as_in_process(base: Path, adapter: Path, engine: Engine) -> None:
    other = Engine(str(base), kv_cache_memory_bytes=2 << 20, max_lora_rank=64)
    ours, theirs = (one.prepare_adapter("a", str(adapter)) for one in (engine, other))
    assert (ours.info, ours.tag) == (theirs.info, theirs.tag)
    assert ours.image.modules.tolist() == theirs.image.modules.tolist()
    pages = []
    for prepared in (ours, theirs):
        data = np.empty((prepared.info.pages, prepared.image.layout.page_bytes), np.uint8)
        prepared.image.read(0, data)
        pages.append(data)
    assert np.array_equal(*pages)
    for one in (engine, other):
        one.load_adapter("a", str(adapter))
    assert answer(engine, "a") == answer(other, "a") != answer(other, "")
    other.close()


def test_refusals_cross_with_code_and_message(adapter: Path, engine: Engine, tmp_path: Path) -> None:
    tensors = load_file(adapter / "adapter_model.safetensors")
    key = sorted(tensors)[0]
    tensors[key][0, 0] = torch.nan
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text((adapter / "adapter_config.json").read_text())
    with pytest.raises(LoradError) as refusal:
        engine.load_adapter("spoilt", str(tmp_path))
    assert refusal.value.code == "adapter_not_finite" and key in refusal.value.message
    with pytest.raises(LoradError) as refusal:
        engine.load_adapter("none", str(tmp_path / "nowhere"))
    assert refusal.value.status == 400 and "'none'" in refusal.value.message
    engine.load_adapter("a", str(adapter))


def test_a_loader_that_dies_fails_its_load_and_is_followed_by_another(adapter: Path, engine: Engine) -> None:
    loader = loader_of(engine)
    engine.load_adapter("a", str(adapter))
    right = answer(engine, "a")
    first = loader.pid
    os.kill(first, signal.SIGSTOP)
    failures: list[LoradError] = []

    def load() -> None:
        try:
            engine.prepare_adapter("b", str(adapter))
        except LoradError as error:
            failures.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    time.sleep(0.2)  # it waits for an answer now
    assert answer(engine, "a") == right
    os.kill(first, signal.SIGKILL)
    thread.join()
    assert [error.code for error in failures] == ["loader_died"]
    assert "'b'" in failures[0].message and "SIGKILL" in failures[0].message
    engine.load_adapter("b", str(adapter))
    assert loader.pid != first and answer(engine, "b") == right


def test_a_loader_that_hangs_is_followed_by_another(
    adapter: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(engine)
    engine.load_adapter("a", str(adapter))
    first = loader.pid
    os.kill(first, signal.SIGSTOP)
    with monkeypatch.context() as patch, pytest.raises(LoradError) as refusal:
        patch.setattr(loader_module, "ANSWER_SECONDS", 0.2)
        engine.prepare_adapter("b", str(adapter))
    assert refusal.value.code == "loader_died" and "0.2 s" in refusal.value.message
    engine.load_adapter("b", str(adapter))
    assert loader.pid != first and answer(engine, "b") == answer(engine, "a")


def test_a_loader_that_died_between_loads_is_not_noticed(adapter: Path, engine: Engine) -> None:
    engine.load_adapter("a", str(adapter))
    os.kill(loader_of(engine).pid, signal.SIGKILL)
    time.sleep(0.2)
    engine.load_adapter("b", str(adapter))
    assert answer(engine, "a") == answer(engine, "b")


def test_closing_ends_a_load_that_runs(base: Path, adapter: Path) -> None:
    loader = Loader(Opening(str(base), 64))
    failures: list[LoradError] = []

    def load() -> None:
        try:
            loader.prepare("a", str(adapter), digest="", page_bytes=4096)
        except LoradError as error:
            failures.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    time.sleep(0.05)  # its process is still importing
    loader.close()
    thread.join()
    assert [error.code for error in failures] == ["loader_died"]
    with pytest.raises(LoradError) as refusal:
        loader.prepare("a", str(adapter), digest="", page_bytes=4096)
    assert refusal.value.code == "engine_closed"


def test_a_base_that_was_replaced_is_refused(base: Path, adapter: Path, engine: Engine) -> None:
    with pytest.raises(LoradError) as refusal:
        loader_of(engine).prepare("a", str(adapter), digest="another", page_bytes=engine.worker.geometry.page_bytes)
    assert refusal.value.code == "base_changed"


def test_no_open_files_are_left(adapter: Path, engine: Engine) -> None:
    engine.load_adapter("a", str(adapter))
    here, there = psutil.Process(), psutil.Process(loader_of(engine).pid)
    before = here.num_fds(), there.num_fds()
    for _ in range(20):
        engine.load_adapter("b", str(adapter))
        engine.unload_adapter("b")
        while engine.step():
            pass
    assert (here.num_fds(), there.num_fds()) == before
