"""Stage `diagnose`: a model's routing on texts of several domains, its figures, selections of experts, and the page."""

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from afm_core.config import ConfigError, DiagnoseConfig, Dtype
from afm_core.moe import selection
from afm_core.moe.capture import MoeLayer, captured, moe_layers
from afm_core.moe.figures import diagnosis
from afm_core.moe.page import render
from afm_core.moe.recording import DomainRouting, Recorder
from afm_core.moe.selection import Score, selection_name
from afm_core.moe.sequences import transitions
from afm_core.moe.texts import batches, read_texts
from afm_core.store import StageContext, StageInterrupted, StageResult

FIGURES, PAGE = "diagnosis.json", "diagnosis.html"


def diagnose(context: StageContext) -> StageResult:
    """Route the texts of every configured domain and write figures, selections and the page.

    A finished domain is sealed: a stopped diagnosis goes on with the next one.

    Raises:
        ConfigError: no domains, texts that cannot be read, a dense model. StageInterrupted: told to stop.
    """
    config = context.section(DiagnoseConfig)
    if not config.domains:
        raise ConfigError("no domains to diagnose: give `--domains name=FILE`, or set diagnose.domains")
    texts = {name: read_texts(Path(file)) for name, file in sorted(config.domains.items())}
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(config.threads)
    model, tokenizer = load_model(context.inputs["model"].path, config)
    layers = moe_layers(model)
    domains = [
        _recorded(context, model, tokenizer, layers, name, documents, config) for name, documents in texts.items()
    ]
    figures = diagnosis(domains, [layer.layer for layer in layers], config)
    chosen = _selections(domains, layers, model, config)
    (context.output / "selections").mkdir()
    for one in chosen:
        one.save(context.output / selection_name(one.domain, one.score))
    figures["selections"] = [one.model_dump() for one in chosen]
    (context.output / FIGURES).write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (context.output / PAGE).write_text(render(figures), encoding="utf-8")
    return StageResult(metrics=_metrics(figures))


def load_model(directory: Path, config: DiagnoseConfig) -> tuple[Any, Any]:
    """The model, ready to route, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = torch.bfloat16 if config.dtype is Dtype.BF16 else torch.float32
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    return model.to("cuda" if config.gpus else "cpu"), AutoTokenizer.from_pretrained(directory)


def record(
    model: Any,
    tokenizer: Any,
    layers: Sequence[MoeLayer],
    name: str,
    documents: Sequence[str],
    config: DiagnoseConfig,
    context: StageContext | None = None,
) -> DomainRouting:
    """Route one domain's documents through the model's body (the head is not asked)."""
    recorder = Recorder(name, list(layers), config.sample_tokens, config.noise, config.seed)
    body, device = model.get_decoder(), next(model.parameters()).device
    done = 0
    with torch.no_grad(), captured(list(layers), recorder.mask, recorder.sink):
        for batch in batches(documents, tokenizer, config.tokens, config.sequence_tokens, config.batch_tokens):
            recorder.begin(batch.ids.to(device), batch.documents.to(device), batch.mask.to(device))
            body(input_ids=batch.ids.to(device), attention_mask=batch.mask.long().to(device), use_cache=False)
            done += int(batch.mask.sum())
            if context is not None:
                context.progress(done, config.tokens, f"tokens of {name} routed")
                if context.stopping.is_set():
                    raise StageInterrupted(f"stopped while routing {name}")
    return recorder.result()


def _recorded(
    context: StageContext,
    model: Any,
    tokenizer: Any,
    layers: Sequence[MoeLayer],
    name: str,
    documents: Sequence[str],
    config: DiagnoseConfig,
) -> DomainRouting:
    file = f"{name}.safetensors"
    directory = context.output / "routing"
    directory.mkdir(exist_ok=True)
    sealed = context.sealed("routing/").get(f"routing/{file}")
    routing = (
        DomainRouting.load(sealed)
        if sealed is not None
        else record(model, tokenizer, layers, name, documents, config, context)
    )
    routing.save(directory / file)
    if sealed is None:
        context.seal(f"routing/{file}", directory / file)
    return routing


def _selections(
    domains: Sequence[DomainRouting], layers: Sequence[MoeLayer], model: Any, config: DiagnoseConfig
) -> list[selection.ExpertSelection]:
    """For every domain one by each score, and the controls of the contribution's sizes."""
    counts = np.stack([one.counts.sum(0) for one in domains])
    gates = np.stack([one.gates.sum(0) for one in domains])
    names = [one.name for one in domains]
    background = names.index(config.background) if config.background else None
    shape = model_shape(model, layers)
    budget = int(config.maximum_share * shape["parameters"] / shape["expert_parameters"])
    places = [layer.layer for layer in layers]
    found = []
    for place, domain in enumerate(domains):
        sizes: list[int] = []
        for kind in Score:
            score, lift = selection.scores(kind, place, counts, gates, background)
            # ESFT's scores ask for no lift; the others are about what the domain uses more than the background.
            least = 0.0 if kind in (Score.TOKEN, Score.GATE) else config.minimum_lift
            chosen = selection.smallest_sets(score, config.mass, lift, least)
            if kind is Score.PATH:
                chosen = selection.on_paths(chosen, transitions(domain.sample, shape["num_experts"]))
            chosen = selection.within_budget(chosen, score, budget)
            if kind is Score.CONTRIBUTION:
                sizes = [len(some) for some in chosen]
            found.append(selection.to_selection(domain.name, kind, chosen, places, shape))
        load = selection.scores(Score.TOKEN, place, counts, gates, background)[0]
        drawn = selection.random_experts(shape["num_experts"], sizes, config.seed)
        found.append(selection.to_selection(domain.name, "random", drawn, places, shape))
        heaviest = selection.best_experts(load, sizes)
        found.append(selection.to_selection(domain.name, "load", heaviest, places, shape))
    return found


def model_shape(model: Any, layers: Sequence[MoeLayer]) -> dict[str, int]:
    """num_experts, expert_parameters (of one expert of the first mixture) and parameters of the whole model."""
    experts = layers[0].num_experts
    size = sum(math.prod(one.shape[1:]) for one in layers[0].experts.parameters(recurse=False))
    return {
        "num_experts": experts,
        "expert_parameters": size,
        "parameters": sum(one.numel() for one in model.parameters()),
    }


def _metrics(figures: dict[str, Any]) -> dict[str, float | int | str | bool | None]:
    found: dict[str, float | int | str | bool | None] = {
        "layers": len(figures["layers"]),
        "experts": figures["experts"],
        "information": float(np.mean([one["value"] for one in figures["information"]])),
    }
    for name, one in figures["figures"].items():
        found[f"{name}/tokens"] = one["tokens"]
        found |= {f"{name}/{key}": one[key]["value"] for key in ("specialization", "isolation", "load")}
    return found
