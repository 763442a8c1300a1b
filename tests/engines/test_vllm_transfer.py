"""What of the weight transfer over NCCL needs no GPU: choice, ranks, the order of the calls, the announcement."""

import pytest
import torch

from afm_core.config import EngineConfig, EngineKind
from afm_core.engines.vllm_transfer import Broadcast, Parameter, StateSource, broadcasts


@pytest.mark.parametrize(
    ("kind", "gpus", "trainer_gpus", "expected"),
    [
        (EngineKind.VLLM, 1, 1, True),
        (EngineKind.VLLM, 0, 1, False),
        (EngineKind.VLLM, 1, 0, False),
        (EngineKind.TRANSFORMERS, 1, 1, False),
    ],
)
def test_nccl_is_chosen_only_for_vllm_between_gpus(kind, gpus, trainer_gpus, expected):
    assert broadcasts(EngineConfig(kind=kind, gpus=gpus), trainer_gpus) is expected


def test_what_is_announced_is_what_is_sent_in_one_order():
    source = StateSource("cpu")
    source.state = {"b": torch.ones(2, 3, dtype=torch.bfloat16), "a": torch.zeros(4, requires_grad=True)}
    assert source.metadata() == [Parameter("a", torch.float32, (4,)), Parameter("b", torch.bfloat16, (2, 3))]
    for _ in range(2):
        sent = list(source)
        assert [Parameter(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in sent] == source.metadata()
        assert not any(tensor.requires_grad for _, tensor in sent)


class VllmTrainerSide:
    """The calls of vLLM's NCCLTrainerWeightTransferEngine, without NCCL."""

    def __init__(self, address, port, world_size, client, source):
        self.world_size, self.client, self.source = world_size, client, source
        self.sent = []
        client.init_weight_transfer_engine({"master_address": address, "master_port": port, "rank_offset": 1})

    def send_weights(self):
        self.client.start_weight_update()
        self.client.update_weights({"names": [one.name for one in self.source.metadata()]})
        self.sent += list(self.source)
        self.client.finish_weight_update()


def test_every_gpu_of_every_engine_has_a_rank_of_its_own_and_engines_learn_the_version():
    calls = []
    made = []

    def connect(*arguments):
        made.append(VllmTrainerSide(*arguments))
        return made[0]

    broadcast = Broadcast(
        lambda step, arguments: calls.append((step, list(arguments))),
        "127.0.0.1",
        workers=3,
        gpus_per_worker=2,
        device="cpu",
        connect=connect,
    )
    broadcast.send({"w": torch.ones(1)}, "v1")
    broadcast.send({"w": torch.ones(1) * 2}, "v2")
    assert [step for step, _ in calls] == ["join_transfer"] + 2 * ["begin_transfer", "receive_transfer", "end_transfer"]
    assert [info["rank_offset"] for (info,) in calls[0][1]] == [1, 3, 5]
    assert made[0].world_size == 7
    assert [float(tensor) for _, tensor in made[0].sent] == [1.0, 2.0]
    assert [calls[at][1] for at in (3, 6)] == [[("v1",)] * 3, [("v2",)] * 3]
