"""What is no Redis at all, though something answers at its address: a fake, to lie as told."""

import contextlib
import socket
import threading

import pytest
from redis_servers import blob, got, tier, warnings

from geodata.cache import NvmeCache, TieredCache, open_cache
from geodata.cache.redis import PREFIX
from geodata.config import CacheSection


@contextlib.contextmanager
def answering(answer):
    """Serve something that is no Redis: `answer` maps a command's words to bytes, or sends them.

    Yields its URL.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve():
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer, peer.makefile("rb") as lines, contextlib.suppress(OSError, ValueError):
                    while line := lines.readline():
                        words = []
                        for _ in range(int(line[1:])):
                            words.append(lines.read(int(lines.readline()[1:]) + 2)[:-2].decode())
                        given = b"+OK\r\n" if words[0] == "CLIENT" else answer(words)
                        for piece in [given] if isinstance(given, bytes) else given:
                            peer.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b":seven\r\n",
        b"$x\r\n",
        b":7\r\n",
        b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        b"*1\r\n:3\r\n",
        b"*1\r\n" * 5000,
        b"",
    ],
    ids=["http", "number", "length", "kind", "count", "element", "deep", "silence"],
)
def test_what_is_no_redis_is_no_cache(tmp_path, answer, caplog):
    with answering(lambda words: answer) as url:
        cache = tier(url, timeout=0.3)
        front = TieredCache(NvmeCache(tmp_path / "nvme", 1 << 20), cache)
        sha, data = blob(1000)
        assert front.get(sha, 1000, lambda path: path.write_bytes(data)).read_bytes() == data
        assert (cache.stats.errors, len(warnings(caplog))) == (1, 1)
        cache.close()


def test_bytes_that_trickle_in_are_not_waited_for(tmp_path, caplog):
    sha, data = blob(1000)
    sent, over = [], threading.Event()

    def drip(words):
        if words[1] == PREFIX + sha:
            yield b"*1\r\n$6\r\n1 1000\r\n"
            return
        yield b"*1\r\n$1000\r\n"
        for byte in data:
            over.wait(0.02)
            sent.append(byte)
            yield bytes([byte])

    with answering(drip) as url:
        cache = tier(url, timeout=1.0)
        assert got(cache, tmp_path, sha, 1000) is None
        assert 0 < len(sent) < 1000
        over.set()
    assert (cache.stats.errors, len(warnings(caplog))) == (1, 1)
    assert "too long" in warnings(caplog)[0] or "Timeout" in warnings(caplog)[0]


def test_a_password_that_the_server_quotes_is_not_shown(tmp_path, caplog):
    (tmp_path / "secret").write_text("hush-hush")
    with answering(lambda words: f"-ERR unknown command {words}\r\n".encode()) as url:
        redis = {"url": url, "password_file": tmp_path / "secret"}
        section = CacheSection(nvme=tmp_path / "nvme", size="1MiB", redis=redis)
        open_cache(section, tmp_path.joinpath)
    (line,) = warnings(caplog)
    assert "[password]" in line
    assert "hush" not in line
