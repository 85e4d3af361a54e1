"""Device specs, nested device scopes, and which device of a cluster a spec means."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import backend
from nbdist.graph.device import DeviceSpec, checked_scope, choose_device, device_of

numbers = st.none() | st.integers(0, 999_999_999)
words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
specs = st.builds(DeviceSpec, st.none() | words, numbers, numbers) | st.builds(
    DeviceSpec, st.none() | words, numbers, numbers, words, numbers
)


@dataclass
class Fake:
    """An op, as far as device functions read it."""

    type: str = "add"
    device: str = ""


def placed(*scopes: Any) -> str:
    return device_of(Fake(), scopes)


# --- texts


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("/replica:1/task:0/cpu:0", "/replica:1/task:0/device:CPU:0"),
        ("/device:GPU:0/task:0/replica:0/job:foo", "/job:foo/replica:0/task:0/device:GPU:0"),
        ("/job:ps/task:0/cpu:0", "/job:ps/task:0/device:CPU:0"),
        ("/job:ps/task:0/device:cpu:0", "/job:ps/task:0/device:CPU:0"),
        ("job:ps", "/job:ps"),
        ("/gpu", "/device:GPU:*"),
        ("/device:GPU", "/device:GPU:*"),
        ("/Gpu:*", "/device:GPU:*"),
        ("/tpu:3", "/device:TPU:3"),
        ("/task:007", "/task:7"),
        ("", ""),
        ("/", ""),
    ],
)
def test_a_text_prints_in_full_and_in_order(text: str, printed: str) -> None:
    assert DeviceSpec.from_string(text).to_string() == printed


def test_short_and_full_texts_are_the_same_device() -> None:
    assert DeviceSpec.from_string("/cpu:0/job:ps") == DeviceSpec.from_string("/job:ps/device:CPU:0")


@given(specs)
def test_what_is_printed_reads_back(spec: DeviceSpec) -> None:
    assert DeviceSpec.from_string(spec.to_string()) == spec
    assert DeviceSpec.from_string(spec.to_string()).to_string() == spec.to_string()


@given(specs, st.randoms())
def test_fields_may_come_in_any_order(spec: DeviceSpec, random: Any) -> None:
    parts = spec.to_string().split("/")[1:]
    random.shuffle(parts)
    assert DeviceSpec.from_string("/".join(parts)) == spec


@given(st.text(alphabet="/:*jobtaskcpu09é ", max_size=12))
def test_any_other_text_is_an_argument_error(text: str) -> None:
    try:
        spec = DeviceSpec.from_string(text)
    except InvalidArgumentError:
        return
    assert DeviceSpec.from_string(spec.to_string()) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jobs:ps", r"no device field 'jobs'; choose from job, replica, task, device, cpu, gpu.*'jobs:ps'"),
        ("/barcpugpu:muu/baz:2", "no device field 'barcpugpu'"),
        ("/Job:ps", "no device field 'Job'"),
        ("/job:muu/device:GPU:2/cpu:0", "'/job:muu/device:GPU:2/cpu:0' names more than one device type"),
        ("/cpu:0/cpu:0", "names more than one device type"),
        ("/job:a/job:b", "names more than one job; keep one"),
        ("/task:0/task:0", "names more than one task"),
        ("/job:j/replica:foo", "replica:foo in '/job:j/replica:foo': 'foo' is not a number"),
        ("/job:j/task:bar", "'bar' is not a number; write it like task:0"),
        ("/task:*", "not a number"),
        ("/task:-1", "not a number"),
        ("/task:²", "not a number"),
        ("/task:" + "9" * 5000, "not a number"),
        ("/cpu:one", "'one' is not a number"),
        ("/cpu:", "not a number"),
        ("/task", "'task' in '/task' is not a task; write it like task:0"),
        ("/job:a:b", "'job:a:b' in '/job:a:b' is not a job; write it like job:ps"),
        ("/device:CPU:0:0", "is not a device; write it like device:CPU:0"),
        ("/device", "is not a device"),
        ("/job:", "a job is a word"),
        ("/job:*", "a job is a word"),
        ("/device::0", "a device type is a word"),
    ],
)
def test_an_invalid_device_text_is_explained(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        DeviceSpec.from_string(text)
    assert isinstance(caught.value, InvalidArgumentError)


@pytest.mark.parametrize("wrong", [None, 3, ["/cpu:0"]])
def test_only_texts_are_read(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a device is a text like"):
        DeviceSpec.from_string(wrong)


# --- specs


def test_an_empty_spec_sets_nothing() -> None:
    assert DeviceSpec.from_string("") == DeviceSpec(None, None, None, None, None)


def test_a_spec_never_changes() -> None:
    with pytest.raises(FrozenInstanceError):
        DeviceSpec().job = "ps"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"job": "a/b"}, ValueError, r"a job is a word without spaces and / : \*, not 'a/b'"),
        ({"job": 3}, ValueError, "a job is a word"),
        ({"device_type": ""}, ValueError, "a device type is a word"),
        ({"task": -1}, ValueError, "a task is 0 or more, not -1"),
        ({"task": "1"}, TypeError, "a task is a whole number, not '1'"),
        ({"device_index": 0.5}, TypeError, "a device index is a whole number"),
    ],
)
def test_a_spec_of_wrong_fields_says_why(fields: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DeviceSpec(**fields)


def test_merging_lets_the_other_win() -> None:
    one = DeviceSpec.from_string("/job:worker/replica:0/task:1/cpu:0")
    other = DeviceSpec.from_string("/job:ps/gpu:*")
    assert one.merge(other).to_string() == "/job:ps/replica:0/task:1/device:GPU:0"
    assert one.to_string() == "/job:worker/replica:0/task:1/device:CPU:0"


@given(specs, specs, specs)
def test_merging_is_associative_and_empty_changes_nothing(
    a: DeviceSpec, b: DeviceSpec, c: DeviceSpec
) -> None:
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(DeviceSpec()) == DeviceSpec().merge(a) == a.merge(a) == a


@pytest.mark.parametrize(
    ("wanted", "is_covered"),
    [
        ("", True),
        ("/job:ps", True),
        ("/job:worker", False),
        ("/task:1/gpu:*", True),
        ("/task:0", False),
        ("/cpu:*", False),
        ("/gpu:0", False),
        ("/gpu:2", True),
        ("/replica:0", True),
        ("/replica:1", False),
        ("/job:ps/replica:0/task:1/device:GPU:2", True),
    ],
)
def test_a_partial_spec_covers_its_instances(wanted: str, is_covered: bool) -> None:
    full = DeviceSpec.from_string("/job:ps/replica:0/task:1/device:GPU:2")
    assert DeviceSpec.from_string(wanted).covers(full) is is_covered


def test_a_missing_replica_matches() -> None:
    without = DeviceSpec.from_string("/job:ps/task:0/cpu:0")
    assert DeviceSpec.from_string("/job:ps/replica:0/task:0/cpu:0").covers(without)
    assert without.covers(DeviceSpec.from_string("/job:ps/replica:0/task:0/cpu:0"))


@given(specs, specs)
def test_a_merged_spec_is_covered_by_what_won(weak: DeviceSpec, strong: DeviceSpec) -> None:
    assert strong.covers(weak.merge(strong))


# --- scopes


def test_inner_fields_win_and_outer_ones_fill() -> None:
    assert placed("/device:GPU:0") == "/device:GPU:0"
    assert placed("/device:GPU:0", "/job:worker") == "/job:worker/device:GPU:0"
    assert placed("/device:GPU:0", "/job:worker", "/device:CPU:0") == "/job:worker/device:CPU:0"
    assert placed("/device:GPU:0", "/job:worker", "/device:CPU:0", "/job:ps") == "/job:ps/device:CPU:0"


def test_an_index_of_star_counts_as_unset() -> None:
    assert placed("/gpu:1", "/gpu:*") == "/device:GPU:1"
    assert placed("/gpu:*") == "/device:GPU:*"


def test_none_cuts_off_the_outer_scopes() -> None:
    assert placed("/job:ps/cpu:0", None) == ""
    assert placed("/job:ps", None, "/cpu:0") == "/device:CPU:0"
    assert placed("/job:ps", "/cpu:0", None, "/task:1", "/gpu:0") == "/task:1/device:GPU:0"


def test_an_empty_text_changes_nothing() -> None:
    assert placed("/job:ps", "") == "/job:ps"
    assert placed("") == placed() == ""


def test_a_spec_is_a_scope_like_its_text() -> None:
    assert placed(DeviceSpec(job="ps"), DeviceSpec(device_index=1), "/gpu:*") == "/job:ps/device:GPU:1"


def test_a_function_sees_what_inner_scopes_set_and_nothing_of_outer_ones() -> None:
    seen = []

    def look(op: Fake) -> None:
        seen.append(op.device)

    assert placed("/job:ps", look, "/cpu:0", "/task:1") == "/job:ps/task:1/device:CPU:0"
    assert seen == ["/task:1/device:CPU:0"]


def test_what_a_function_returns_replaces_the_device() -> None:
    assert placed(lambda op: "/job:ps", "/task:1/cpu:0") == "/job:ps"
    assert placed(lambda op: "", "/task:1/cpu:0") == ""
    assert placed("/job:a/task:7", lambda op: DeviceSpec(job="ps"), "/cpu:0") == "/job:ps/task:7"
    assert placed(lambda op: op.device + "/task:2", "/cpu:0") == "/task:2/device:CPU:0"


def test_a_function_that_returns_none_leaves_the_device() -> None:
    assert placed("/job:ps", lambda op: None, "/cpu:0") == "/job:ps/device:CPU:0"


def test_functions_nest_from_the_inside_out() -> None:
    outer = lambda op: op.device + "/task:0"
    inner = lambda op: "/job:ps"
    assert placed(outer, inner) == "/job:ps/task:0"
    assert placed(outer, None, inner) == "/job:ps"


def test_the_op_ends_up_on_the_device_whatever_it_held() -> None:
    op = Fake(device="/job:old")
    assert device_of(op, ["/job:ps", lambda op: None, "/cpu:0"]) == op.device == "/job:ps/device:CPU:0"
    assert device_of(op, []) == op.device == ""


def test_a_scope_is_checked_where_it_is_opened() -> None:
    with pytest.raises(InvalidArgumentError, match="no device field 'jobs'; choose from job, replica"):
        checked_scope("jobs:ps")
    with pytest.raises(TypeError, match="a text like '/job:ps', a DeviceSpec, a function of an op, or None"):
        checked_scope(3)  # type: ignore[arg-type]


def test_a_checked_scope_means_what_it_meant() -> None:
    function = lambda op: None
    spec = DeviceSpec(job="ps")
    assert checked_scope("/job:ps") == spec
    assert checked_scope(spec) is spec
    assert checked_scope(function) is function
    assert checked_scope(None) is None
    assert checked_scope("") == DeviceSpec()


def test_a_function_that_returns_no_device_is_named() -> None:
    def odd(op: Fake) -> str:
        return "jobs:ps"

    with pytest.raises(
        InvalidArgumentError, match=r"the device function .*odd returned 'jobs:ps': no device field"
    ):
        placed(odd)
    with pytest.raises(TypeError, match=r"the device function .*lambda.* returned 3; expected a text"):
        placed(lambda op: 3)


# --- a cluster's devices

PS, WORKER, GPU0, GPU1, OTHER = DEVICES = [
    "/job:ps/replica:0/task:0/device:CPU:0",
    "/job:worker/replica:0/task:0/device:CPU:0",
    "/job:worker/replica:0/task:0/device:GPU:0",
    "/job:worker/replica:0/task:0/device:GPU:1",
    "/job:worker/replica:0/task:1/device:CPU:0",
]


@pytest.mark.parametrize(
    ("wanted", "soft", "found"),
    [
        ("", False, WORKER),
        ("/job:worker", False, WORKER),
        ("/job:ps", False, PS),
        ("/gpu:*", False, GPU0),
        ("/gpu:1", False, GPU1),
        ("/task:1", False, OTHER),
        ("/job:worker/task:0/cpu:0", False, WORKER),
        ("/gpu:1", True, GPU1),
        ("/gpu:7", True, WORKER),
        ("/cpu:7", True, WORKER),
        ("/tpu:0", True, WORKER),
        ("/job:ps/gpu:1", True, PS),
        ("/task:1/gpu:0", True, OTHER),
    ],
)
def test_a_spec_means_the_default_device_or_the_first(wanted: str, soft: bool, found: str) -> None:
    assert choose_device(wanted, DEVICES, WORKER, soft=soft) == found


def test_a_tpu_is_refused_by_a_sentence_that_says_what_trains_on_it() -> None:
    with pytest.raises(InvalidArgumentError, match=r"no device '/tpu:0'.*allow_soft.*--strategy tpu"):
        choose_device("/tpu:0", DEVICES, WORKER, soft=False)
    with pytest.raises(InvalidArgumentError, match=r"expected CPU:<i> or GPU:<i>.*--strategy tpu"):
        backend("TPU:0")
    with pytest.raises(InvalidArgumentError, match=r"expected CPU:<i> or GPU:<i>$"):
        backend("NPU:0")


def test_devices_without_replicas_match() -> None:
    device = "/job:ps/task:0/device:CPU:0"
    assert choose_device("/job:ps/replica:0/cpu:0", [device], device, soft=False) == device


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("wanted", ["/job:evaluator", "/job:ps/task:1", "/job:moon/gpu:0", "/replica:1"])
def test_job_and_task_never_fall_back(wanted: str, soft: bool) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        choose_device(wanted, DEVICES, WORKER, soft=soft)
    assert str(caught.value) == f"no device {wanted!r} here; there are {', '.join(DEVICES)}"


def test_an_error_says_how_the_type_may_fall_back() -> None:
    with pytest.raises(InvalidArgumentError, match=r"no device '/gpu:9' here.*allow_soft_placement=True"):
        choose_device("/gpu:9", DEVICES, WORKER, soft=False)


def test_an_error_lists_a_dozen_devices() -> None:
    many = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(40)]
    with pytest.raises(InvalidArgumentError, match=r"task:11/device:CPU:0 and 28 more$"):
        choose_device("/job:ps", many, many[0], soft=True)


def test_a_wrong_text_is_an_error_whatever_falls_back() -> None:
    with pytest.raises(InvalidArgumentError, match="no device field 'jobs'"):
        choose_device("jobs:ps", DEVICES, WORKER, soft=True)
