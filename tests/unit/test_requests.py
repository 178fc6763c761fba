"""Lists page by page: large objects make pages smaller only where they are. And what an error says of the server's."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from group_hygiene.controller.requests import PAGE, call, read_rows
from group_hygiene.errors import ApiError


class _Body(io.BytesIO):
    """As much of a urllib3 response as is used."""

    def read(self, size: int | None = -1, /, decode_content: bool = True) -> bytes:
        return super().read(size)


class _Server:
    """Lists objects of these sizes in bytes."""

    def __init__(self, *sizes: int) -> None:
        self._sizes = sizes
        self.asked: list[int] = []

    def list(self, limit: int, _continue: str = "0", **_: Any) -> _Body:
        self.asked.append(limit)
        begin = int(_continue)
        items = [
            {"metadata": {"namespace": "n", "name": f"p{i}", "uid": str(i), "resourceVersion": "1", "x": "x" * size}}
            for i, size in enumerate(self._sizes[begin : begin + limit], begin)
        ]
        following = str(begin + limit) if begin + limit < len(self._sizes) else ""
        return _Body(json.dumps({"metadata": {"continue": following}, "items": items}).encode())


def test_pages_grow_again_after_large_objects() -> None:
    """20 objects of 1.1 MB before 3,000 small ones take few requests more than the small ones alone."""
    server = _Server(*[1_100_000] * 20, *[100] * 3_000)
    assert [row.key[1] for row in read_rows(server.list)] == [f"p{i}" for i in range(3_020)]
    assert len(server.asked) < 70
    assert server.asked[-1] == PAGE.objects == max(server.asked)


def test_an_object_larger_than_a_page_is_an_error() -> None:
    """Not an endless loop."""
    with pytest.raises(ApiError, match="an object takes more than 4000000 bytes"):
        list(read_rows(_Server(10, PAGE.bytes, 10).list))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(json.dumps({"message": "frozen"}), ": frozen", id="short"),
        pytest.param(json.dumps({"message": "x" * 100_000}), f": {'x' * 300}", id="long"),
        pytest.param(json.dumps({"message": "\u202e\n" * 100_000}), None, id="unprintable"),
        pytest.param(json.dumps({"message": ["x"]}), "", id="no-text"),
        pytest.param("{", "", id="no-json"),
        pytest.param(None, "", id="nothing"),
    ],
)
def test_the_message_of_a_refusal_is_bounded(body: str | None, says: str | None) -> None:
    """It goes into conditions, Events and the log: tenants' webhooks write it."""

    def refuse() -> None:
        error = ApiException(status=422, reason="Unprocessable Entity")
        error.body = body
        raise error

    with pytest.raises(ApiError) as caught:
        call(refuse)
    text = str(caught.value).removeprefix("the API server answers 422 Unprocessable Entity")
    assert len(text) < 2_000
    assert "\n" not in text
    assert says in (None, text)


_DECODE = """
import json, sys, threading
from group_hygiene.controller.requests import read_as_deep_as_the_api_server
read_as_deep_as_the_api_server()
deep = lambda: [json.loads("[" * int(levels) + "]" * int(levels)) for levels in sys.argv[1:]]
endless = lambda: json.loads("[" * 100_000)
def both():
    deep()
    try:
        endless()
    except RecursionError:
        print("refused")
both()
thread = threading.Thread(target=both)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("stack", "levels"),
    [
        pytest.param("1048576:unlimited", 9_990, id="small"),
        pytest.param("unlimited", 9_990, id="unlimited"),
        pytest.param("1048576:1048576", 1_500, id="small for ever"),
    ],
)
def test_deep_json_never_ends_the_process(stack: str, levels: int) -> None:
    """Whatever `ulimit -s` the process was started with."""
    command = ("prlimit", f"--stack={stack}", sys.executable, "-c", _DECODE, str(levels))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n" * 2), done.stderr
