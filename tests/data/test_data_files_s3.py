"""Files on S3: a real server (moto's) on this host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from nbdist.data import Dataset, write_tfrecords
from nbdist.errors import DataLossError, NotFoundError


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    import fsspec

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    fs.mkdir("s3://digits")
    fs.pipe("s3://digits/a.csv", b"n,kind\n1,x\n2,y\n")
    yield "s3://digits"
    type(fs).clear_instance_cache()
    server.stop()


@pytest.mark.slow
def test_files_on_s3(bucket: str) -> None:
    for number in range(2):
        write_tfrecords(f"{bucket}/records/{number}.tfrecord.gz", [f"{number}{n}".encode() for n in range(3)])
    assert list(Dataset.csv(f"{bucket}/a.csv")) == [{"n": 1, "kind": "x"}, {"n": 2, "kind": "y"}]
    paths = Dataset.list_files(f"{bucket}/records/*")
    assert list(paths) == [f"{bucket}/records/{number}.tfrecord.gz" for number in range(2)]
    records = paths.interleave(Dataset.tfrecords, cycle_length=2, num_parallel_calls=2)
    assert list(records) == [b"00", b"10", b"01", b"11", b"02", b"12"]
    assert list(Dataset.tfrecords(f"{bucket}/records")) == [b"00", b"01", b"02", b"10", b"11", b"12"]
    with pytest.raises(NotFoundError, match="s3://digits/none"):
        list(Dataset.csv(f"{bucket}/none.csv"))
    with pytest.raises(DataLossError, match="corrupted record at 0 in s3://digits/a"):
        list(Dataset.tfrecords(f"{bucket}/a.csv"))
