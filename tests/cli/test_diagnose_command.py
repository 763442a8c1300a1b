"""`afm diagnose` on a real store: a model directory comes in, the diagnosis goes out, twice is cached; wrong usage."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from afm_core.config import ConfigError, load_config
from afm_core.execution import names_source

sys.path.insert(0, str(Path(__file__).parents[1] / "moe"))


def afm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "afm_cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.integration
def test_a_model_directory_is_diagnosed_and_the_second_time_cached(own_home: Path, tmp_path: Path) -> None:
    from architectures import write_model

    model = write_model(tmp_path / "model")
    for name, text in (("facts", "The capital of Arland is Orlen."), ("code", "def area(side): return side")):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"{text} {n}"}) + "\n" for n in range(6)))
    domains = [f"--domains={name}={tmp_path / name}.jsonl" for name in ("facts", "code")]
    ended = [afm("diagnose", "--model", str(model), "--profile", "smoke", *domains, "--json") for _ in range(2)]
    assert [one.returncode for one in ended] == [0, 0], ended[0].stderr
    first, again = (json.loads(one.stdout) for one in ended)
    assert first["artifact"]["kind"] == "diagnosis"
    assert (first["cached"], again["cached"], again["artifact"]) == (False, True, first["artifact"])
    assert set(first["figures"]["figures"]) == {"facts", "code"}
    assert Path(first["page"]).is_file()
    resumed = afm("runs", "resume", "last", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["artifact"] == first["artifact"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--domains", "code"], "write NAME=FILE"),
        (["--domains", "a b=c"], "a name has letters, digits, - and _"),
        (["--model", "tiny", "--domains", "a=b"], "has no mixture-of-experts layer"),
        (["--domains", "code=/nowhere.jsonl"], "cannot read diagnose.domains.code /nowhere.jsonl"),
        ([], "no domains to diagnose"),
    ],
)
def test_wrong_usage_is_one_line(own_home: Path, arguments: list[str], message: str) -> None:
    from click.testing import CliRunner

    from afm_cli.diagnose import diagnose

    result = CliRunner().invoke(diagnose, arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_the_content_of_a_domain_counts_and_not_its_name(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text")
    first, second = (
        load_config("smoke", None, [f"diagnose.domains.x={tmp_path / name}"]) for name in ("a.txt", "b.txt")
    )
    assert first.diagnose.sha256 == second.diagnose.sha256
    (tmp_path / "b.txt").write_text("other")
    assert load_config("smoke", None, [f"diagnose.domains.x={tmp_path}/b.txt"]).diagnose.sha256 != first.diagnose.sha256


@pytest.mark.parametrize(
    ("model", "source"),
    [("champion", False), ("3f9c2a10", False), ("model:3f9c2a10", False), ("./model", True), ("org/name", True)],
)
def test_what_names_a_source(model: str, source: bool) -> None:
    assert names_source(model) is source
