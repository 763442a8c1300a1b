"""New weights for vLLM engines over NCCL: from the trainer's GPU straight into the engines', no file between.

vLLM's own weight transfer does the work (vllm.distributed.weight_transfer, backend "nccl" of vLLM 0.32): the trainer is
rank 0 of a group of its own, every GPU of every engine is another rank, and the tensors are broadcast packed into
buffers of `BUFFER_BYTES`. Here is what vLLM leaves to its caller: where the tensors come from, how several engines
share one group (each needs its own first rank), and emptying the prefix cache afterwards.

What was not run: the broadcast itself and the group's rendezvous need two GPUs, which this code has not seen. Run
without a GPU: the order of the calls, the ranks, names, formats and shapes, and, against vLLM's own code, that what is
announced is what is sent and how it is cut into buffers. If an engine dies during a broadcast the trainer waits in NCCL
until the run's watchdog ends it.

The engines cannot hash weights in their own layout, so after a broadcast the probe of afm_core.training.rl.sync is the
only proof.
"""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from afm_core.config import EngineConfig, EngineKind

BUFFER_BYTES = 256 * 2**20
"""Size of one packed buffer; two are in flight on each side."""

Control = Callable[[str, Sequence[tuple[Any, ...]]], None]
"""Runs one step of a transfer (a method of VllmEngine, by name) on every engine at once, with each engine's arguments,
and returns when all have finished it."""


class Parameter(NamedTuple):
    """What is announced of a tensor before it is sent (vLLM's ParamMeta)."""

    name: str
    dtype: Any
    shape: tuple[int, ...]


def broadcasts(engine: EngineConfig, trainer_gpus: int) -> bool:
    """Whether weights go over NCCL: only between GPUs on both sides, and only vLLM can."""
    return engine.kind is EngineKind.VLLM and engine.gpus > 0 and trainer_gpus > 0


class StateSource:
    """The tensors of a state in the order of their names, on `device` when they are sent (vLLM's WeightSource)."""

    def __init__(self, device: str) -> None:
        self.state: Mapping[str, Any] = {}
        self._device = device

    def metadata(self) -> list[Parameter]:
        """What iteration will yield."""
        return [Parameter(name, self.state[name].dtype, tuple(self.state[name].shape)) for name in sorted(self.state)]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for name in sorted(self.state):
            yield name, self.state[name].detach().to(self._device)


class EngineClient:
    """What vLLM's trainer side calls to steer the engines (its VLLMWeightSyncClient), over several of them."""

    def __init__(self, control: Control, workers: int, gpus_per_worker: int) -> None:
        self._control = control
        self._workers = workers
        self._gpus = gpus_per_worker
        self.version = ""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Join the group: rank 0 is the trainer, an engine's GPUs follow those of the engine before."""
        first = init_info["rank_offset"]
        ranks = [first + index * self._gpus for index in range(self._workers)]
        self._control("join_transfer", [({**init_info, "rank_offset": rank},) for rank in ranks])

    def start_weight_update(self) -> None:
        """Engines stop at the end of their running turns and get ready."""
        self._everywhere("begin_transfer")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Engines receive; runs beside the trainer's broadcast."""
        self._everywhere("receive_transfer", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Engines put the weights in place, empty their caches and go on."""
        self._everywhere("end_transfer", weight_version or self.version)

    def _everywhere(self, step: str, *arguments: Any) -> None:
        self._control(step, [arguments] * self._workers)


Connect = Callable[[str, int, int, EngineClient, StateSource], Any]


class Broadcast:
    """The trainer's side. The group is joined at the first `send` and is useless once an engine has died."""

    def __init__(
        self,
        control: Control,
        address: str,
        *,
        workers: int,
        gpus_per_worker: int,
        device: str = "cuda",
        connect: Connect | None = None,
    ) -> None:
        self._client = EngineClient(control, workers, gpus_per_worker)
        self._source = StateSource(device)
        self._address = address
        self._world_size = 1 + workers * gpus_per_worker
        self._connect = connect or _connect
        self._trainer: Any = None

    def send(self, state: Mapping[str, Any], version: str) -> None:
        """Give every engine these weights. Raises what NCCL or an engine raises."""
        self._source.state = state
        self._client.version = version
        if self._trainer is None:
            self._trainer = self._connect(
                self._address, _free_port(self._address), self._world_size, self._client, self._source
            )
        self._trainer.send_weights()
        self._source.state = {}


def _connect(address: str, port: int, world_size: int, client: EngineClient, source: StateSource) -> Any:
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    info = NCCLTrainerInitInfo(address, port, world_size, packed_buffer_size_bytes=BUFFER_BYTES, rank=0)
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
