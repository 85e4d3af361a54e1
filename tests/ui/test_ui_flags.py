"""Lines of magics: every flag, every mistake."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.distribute.registry import STRATEGIES
from nbdist.errors import InvalidArgumentError
from nbdist.train.options import names
from nbdist.ui.flags import Flag, parse, unknown, usage
from nbdist.ui.magics import DISTRIBUTE_FLAGS, START_FLAGS, DistributedMagics


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("", {}),
        ("--strategy ps", {"strategy": "ps"}),
        ("--strategy=one_device", {"strategy": "one_device"}),
        ("--sync", {"synchronous": True}),
        ("--async", {"synchronous": False}),
        ("--replication between-graph", {"replication": "between-graph"}),
        ("--data workers --replication in-graph", {"data": "workers", "replication": "in-graph"}),
        ("--on worker:0-1", {"on": "worker:0-1"}),
        ("--name 'my first run'", {"name": "my first run"}),
        ('--name "a \\" b"', {"name": 'a " b'}),
        ("--seed 3", {"seed": 3}),
        ("--seed=-3", {"seed": -3}),
        ("--seed -3", {"seed": -3}),
        ("--epochs 10", {"epochs": 10}),
        ("--precision mixed_float16", {"precision": "mixed_float16"}),
        ("--live loss,accuracy", {"live": ("loss", "accuracy")}),
        ("--live loss, --sync", {"live": ("loss",), "synchronous": True}),
        ("--no-live", {"show": False}),
        ("--fetch a,b", {"fetch": ("a", "b")}),
        ("--push x,make_model", {"push": ("x", "make_model")}),
        ("--tensorboard", {"tensorboard": True}),
        ("--checkpoint-every 30s", {"checkpoint_every": "30s"}),
        ("--resume 261123-091512-mnist", {"resume": "261123-091512-mnist"}),
        ("--framework torch", {"framework": "torch"}),
        ("--background", {"background": True}),
        ("--transport socket", {"transport": "socket"}),
        ("--backups 1", {"backups": 1}),
        ("--aggregate 3", {"aggregate": 3}),
        ("--staleness 2", {"staleness": 2}),
        ("--ps-replicas 1", {"ps_replicas": 1}),
        ("--locking", {"locking": True}),
        ("--collective ring", {"collective": "ring"}),
        ("--min-workers 2", {"min_workers": 2}),
        ("--max-restarts 5", {"max_restarts": 5}),
        ("--every 5", {"every": 5}),
        ("--alpha 0.3", {"alpha": 0.3}),
        ("--stage 2", {"stage": 2}),
        ("--host-devices 8", {"host_devices": 8}),
    ],
)
def test_flags_of_distribute(line: str, options: dict[str, Any]) -> None:
    assert parse(line, DISTRIBUTE_FLAGS, "%%distribute") == ([], options)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--epochs 1 --epochs 2", "--epochs is given twice on the line: give it once"),
        ("--epochs=1 --seed 3 --epochs=1", "--epochs is given twice on the line: give it once"),
        ("--background --background", "--background is given twice on the line: give it once"),
        ("--sync --async", "--sync and --async exclude each other: give one of them"),
    ],
)
def test_a_repeated_flag_is_refused(line: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        parse(line, DISTRIBUTE_FLAGS, "%%distribute")


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("--workers 3 --ps 1", {"workers": 3, "ps": 1}),
        ("--data 2", {"data": 2}),
        ("--min-workers 2", {"min_workers": 2}),
        ("--launcher local", {"launcher": "local"}),
        ("--gpus auto", {"gpus": "auto"}),
        ("--gpus none", {"gpus": "none"}),
        ("--gpus 2", {"gpus": 2}),
        ("--gpu-memory 0.4", {"gpu_memory": 0.4}),
        ("--memory 2G", {"memory": "2G"}),
        ("--threads 2", {"threads": 2}),
        ("--id mine", {"cluster_id": "mine"}),
        ("--timeout 2.5", {"timeout": 2.5}),
        ("--orphan-timeout 5", {"orphan_timeout": 5.0}),
        ("--hosts a:2,b:2", {"hosts": "a:2,b:2"}),
        ("--python /opt/venv/bin/python", {"python": "/opt/venv/bin/python"}),
        ("--sync-env", {"sync_env": True}),
        ("--wheels ~/wheels", {"wheels": "~/wheels"}),
        ("--sync-modules", {"sync_modules": True}),
        ("--nodes 2-4", {"nodes": "2-4"}),
        ("--partition gpu", {"partition": "gpu"}),
        ("--account lab", {"account": "lab"}),
        ("--time 1:30:00", {"time": "1:30:00"}),
        ("--gres gpu:2", {"gres": "gpu:2"}),
        ("--cores 8", {"cores": 8}),
        ("--sbatch=--qos=high", {"sbatch": "--qos=high"}),
        ("--template job.sh", {"template": "job.sh"}),
        ("--image lab/nbdist:1", {"image": "lab/nbdist:1"}),
        ("--pods 3", {"pods": 3}),
        ("--pod-cpus 500m", {"pod_cpus": "500m"}),
        ("--pod-memory 16Gi", {"pod_memory": "16Gi"}),
        ("--pod-gpus 2", {"pod_gpus": 2}),
        ("--pod-time 1:30:00", {"pod_time": "1:30:00"}),
        ("--pod-python /opt/venv/bin/python", {"pod_python": "/opt/venv/bin/python"}),
        ("--pod-template pod.yaml", {"pod_template": "pod.yaml"}),
        ("--service-account trainer", {"service_account": "trainer"}),
        ("--namespace lab", {"namespace": "lab"}),
        ("--context here", {"context": "here"}),
        ("--tunnel login1", {"tunnel": "login1"}),
        ("--batch-system pbs", {"batch_system": "pbs"}),
        ("--batch-nodes 2", {"batch_nodes": 2}),
        ("--batch-cores 8", {"batch_cores": 8}),
        ("--queue gpu", {"queue": "gpu"}),
        ("--batch-account lab", {"batch_account": "lab"}),
        ("--batch-time 1:30:00", {"batch_time": "1:30:00"}),
        ("--parallel-environment mpi", {"parallel_environment": "mpi"}),
        ("--batch-options=-l=gpu", {"batch_options": "-l=gpu"}),
        ("--batch-template job.sh", {"batch_template": "job.sh"}),
        ("--scheduler tls://h:8786", {"scheduler": "tls://h:8786"}),
        ("--ray-address auto", {"ray_address": "auto"}),
        ("--reserve CPU=8,GPU=2", {"reserve": "CPU=8,GPU=2"}),
        ("--profile default", {"profile": "default"}),
        ("--idle 30m", {"idle": "30m"}),
        ("--save-before 5m", {"save_before": "5m"}),
        ("--requeue", {"requeue": True}),
    ],
)
def test_flags_of_cluster_start(line: str, options: dict[str, Any]) -> None:
    assert parse(line, START_FLAGS, "%cluster start") == ([], options)


def test_every_flag_of_cluster_start_is_tried_above() -> None:
    tried = {p[0].split(" ")[0].partition("=")[0] for p in test_flags_of_cluster_start.pytestmark[0].args[1]}
    assert tried | {"--ps"} == set(START_FLAGS)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "--strtegy ps",
            r"no flag '--strtegy'; did you mean --strategy\? The valid ones are --strategy, --replication",
        ),
        ("--zzz", r"no flag '--zzz'\. The valid ones are --strategy"),
        ("--", "no flag '--'"),
        ("--seed", "--seed needs a value: --seed N"),
        ("--seed --sync", "--seed needs a value"),
        ("--seed ''", "--seed needs a value"),
        ("--seed=", "--seed '': expected a whole number"),
        ("--seed one", "--seed 'one': expected a whole number"),
        ("--seed 1.5", "--seed '1.5': expected a whole number"),
        ("--sync=yes", "--sync takes no value, got 'yes'"),
        ("--name 'open", 'cannot read "--name \'open": No closing quotation'),
    ],
)
def test_mistakes_are_told_with_what_is_valid(line: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^%%distribute: .*{words}"):
        parse(line, DISTRIBUTE_FLAGS, "%%distribute")


def test_numbers_of_other_kinds() -> None:
    with pytest.raises(InvalidArgumentError, match="--timeout 'soon': expected a number"):
        parse("--timeout soon", START_FLAGS, "%cluster start")

    def reads(text: str) -> str:
        raise InvalidArgumentError("only on Sundays")

    with pytest.raises(InvalidArgumentError, match="%m: --when 'now': only on Sundays"):
        parse("--when now", {"--when": Flag("when", reads, "DAY")}, "%m")


def test_other_words_are_handed_back() -> None:
    assert parse("start --ps 1 now -x", START_FLAGS, "%cluster") == (["start", "now", "-x"], {"ps": 1})


def test_the_nearest_name_is_proposed() -> None:
    assert unknown("no command", "strat", {"start": 1, "stop": 2}).startswith(
        "no command 'strat'; did you mean start? The valid ones are start, stop"
    )


def test_the_help_lists_every_flag() -> None:
    for method, flags in (
        (DistributedMagics.cluster, START_FLAGS),
        (DistributedMagics.distribute, DISTRIBUTE_FLAGS),
    ):
        text = str(method.__doc__)
        lines = text.splitlines()
        assert "{" not in text.partition("Flags")[2]
        for name, flag in flags.items():
            assert flag.help
            (number,) = [i for i, line in enumerate(lines) if line.startswith(f"    {name} ")]
            assert flag.help in "\n".join(lines[number : number + 2])
            assert flag.shows in lines[number]
    assert usage({"--a": Flag("a", int, "N", "one"), "--long": Flag("b", help="two")}) == (
        "    --a N   one\n    --long  two"
    )


def test_the_help_is_grouped_and_fits_a_page() -> None:
    text = str(DistributedMagics.distribute.__doc__)
    assert max(len(line) for line in text.splitlines()) <= 110
    for group in {flag.group for flag in DISTRIBUTE_FLAGS.values()}:
        assert f"\n  {group}\n    --" in text
    for strategy in STRATEGIES:
        assert strategy in text
    flags = {"--long": Flag("l", str, "x" * 30, "far"), "--b": Flag("b", help="near", group="Others")}
    assert usage(flags) == f"    --long {'x' * 30}\n         far\n\n  Others\n    --b  near"


def test_names() -> None:
    assert names("a,b") == ("a", "b")
    assert names(" a , b ,") == ("a", "b")
    assert names("") == ()


@given(st.text())
def test_no_line_surprises(line: str) -> None:
    try:
        parse(line, DISTRIBUTE_FLAGS, "%%distribute")
    except InvalidArgumentError as error:
        said = str(error)
    else:
        said = "%%distribute: "
    assert said.startswith("%%distribute: ")
