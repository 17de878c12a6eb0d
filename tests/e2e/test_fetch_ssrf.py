"""The hostile table: URLs, names and redirects that try to reach where sources may not.

Every case runs against real listening servers. Two things are looked at afterwards: the servers'
own counts, and every address this process tried to connect to.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from app.loading.errors import MediaUpstreamError, SourceForbiddenError
from processors.errors import InvalidRequestError
from processors.types import Modality
from tests.helpers.loading import FixedResolver, Loading, run_loader
from tests.helpers.origin import Origin, run_origin

BODY = b"secret" * 100
VICTIM = "127.0.0.2"

_dialled: list[tuple[str, int]] = []


def _watch(event: str, args: tuple[object, ...]) -> None:
    if event == "socket.connect" and isinstance(args[1], tuple):
        _dialled.append(args[1][:2])


sys.addaudithook(_watch)


@pytest.fixture
def dialled() -> Iterator[list[tuple[str, int]]]:
    """Every address this process connects to during the test."""
    _dialled.clear()
    yield _dialled
    _dialled.clear()


@pytest.fixture
async def victim() -> AsyncIterator[Origin]:
    """A server on every IPv4 address of this machine that nobody may reach."""
    async with run_origin(host="0.0.0.0") as running:
        running.serve("/x", BODY)
        yield running


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    """A server that the policy of these tests allows: 127.0.0.1 alone."""
    async with run_origin() as running:
        running.serve("/good", BODY)
        yield running


async def load(loading: Loading, url: str) -> bytes:
    with await loading.loader.load(url, modality=Modality.IMAGE, max_bytes=1 << 20) as staged:
        return bytes(staged.view())


LITERALS = [
    # plain loopback, private, shared, link-local, unspecified, multicast, broadcast, reserved
    "http://127.0.0.1:{port}/x",
    "http://127.0.0.2:{port}/x",
    "http://127.255.255.254:{port}/x",
    "http://0.0.0.0:{port}/x",
    "http://0.1.2.3:{port}/x",
    "http://10.0.0.1:{port}/x",
    "http://172.16.0.1:{port}/x",
    "http://172.31.255.255:{port}/x",
    "http://192.168.0.1:{port}/x",
    "http://100.64.0.1:{port}/x",
    "http://169.254.169.254/latest/meta-data/",
    "http://169.254.170.2/v2/credentials",
    "http://168.63.129.16/metadata",
    "http://100.100.100.200/latest/meta-data/",
    "http://192.0.0.192/opc/v2/",
    "http://224.0.0.1:{port}/x",
    "http://255.255.255.255:{port}/x",
    "http://240.0.0.1:{port}/x",
    "http://192.0.2.1:{port}/x",
    "http://198.18.0.1:{port}/x",
    "http://203.0.113.1:{port}/x",
    # decimal, octal, hexadecimal, short, padded and mixed
    "http://2130706433:{port}/x",
    "http://017700000001:{port}/x",
    "http://0x7f000001:{port}/x",
    "http://0X7F000001:{port}/x",
    "http://0177.0.0.1:{port}/x",
    "http://0x7f.0.0.1:{port}/x",
    "http://0x7f.1:{port}/x",
    "http://127.1:{port}/x",
    "http://127.0.1:{port}/x",
    "http://127.0.0.01:{port}/x",
    "http://127.0.0.001:{port}/x",
    "http://0:{port}/x",
    "http://00000000:{port}/x",
    "http://4294967295:{port}/x",
    "http://425.510.425.510:{port}/x",
    "http://2852039166/latest/meta-data/",
    "http://0xa9fea9fe/latest/meta-data/",
    # trailing dots
    "http://127.0.0.1.:{port}/x",
    "http://127.0.0.1..:{port}/x",
    "http://2130706433.:{port}/x",
    # IPv6: loopback, unspecified, unique local, link-local, site-local, multicast, zones
    "http://[::1]:{port}/x",
    "http://[0:0:0:0:0:0:0:1]:{port}/x",
    "http://[0000::1]:{port}/x",
    "http://[::]:{port}/x",
    "http://[fc00::1]:{port}/x",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://[fe80::1]:{port}/x",
    "http://[fe80::1%25lo]:{port}/x",
    "http://[fe80::1%lo]:{port}/x",
    "http://[::1%25lo]:{port}/x",
    "http://[::1%251]:{port}/x",
    "http://[fec0::1]:{port}/x",
    "http://[ff02::1]:{port}/x",
    "http://[2001:db8::1]:{port}/x",
    # IPv4 inside IPv6: mapped, compatible, translated, NAT64, 6to4, Teredo, ISATAP
    "http://[::ffff:127.0.0.1]:{port}/x",
    "http://[::ffff:7f00:1]:{port}/x",
    "http://[0:0:0:0:0:ffff:127.0.0.1]:{port}/x",
    "http://[::ffff:169.254.169.254]/latest/meta-data/",
    "http://[::ffff:0:127.0.0.1]:{port}/x",
    "http://[::127.0.0.1]:{port}/x",
    "http://[64:ff9b::127.0.0.1]:{port}/x",
    "http://[64:ff9b::7f00:1]:{port}/x",
    "http://[64:ff9b:1::127.0.0.1]:{port}/x",
    "http://[2002:7f00:1::]:{port}/x",
    "http://[2002:a9fe:a9fe::1]/",
    "http://[2001:0:7f00:1::]:{port}/x",
    "http://[2001:4860::5efe:127.0.0.1]:{port}/x",
    # Unicode digits, dots and letters
    "http://\uff11\uff12\uff17.0.0.1:{port}/x",
    "http://127\u30020\uff0e0\uff611:{port}/x",
    "http://\u2460\u2461\u2466.\u24ea.\u24ea.\u2460:{port}/x",
    "http://\U0001d7cf\U0001d7d0\U0001d7d5.0.0.1:{port}/x",
    "http://\u216027.0.0.1:{port}/x",
    "http://127.0.0.1\u200b:{port}/x",
    "http://127.0.0.1\u00ad:{port}/x",
    "http://[\uff1a\uff1a1]:{port}/x",
    # userinfo, backslashes, fragments and other ways to look like an allowed host
    "http://example.com@127.0.0.1:{port}/x",
    "http://example.com:80@127.0.0.1:{port}/x",
    "http://example.com%40127.0.0.1:{port}/x",
    "http://a@example.com@127.0.0.1:{port}/x",
    "http://example.com\\@127.0.0.1:{port}/x",
    "http://127.0.0.1:{port}\\@example.com/x",
    "http:\\\\127.0.0.1:{port}\\x",
    "http:/\\127.0.0.1:{port}/x",
    "http:127.0.0.1:{port}/x",
    "http:/127.0.0.1:{port}/x",
    "http:///127.0.0.1:{port}/x",
    "http://127.0.0.1:{port}#@example.com/",
    "http://127.0.0.1:{port}?@example.com/",
    "http://127.0.0.1:{port}:80/x",
    "http://127.0.0.1:+{port}/x",
    "http://127.0.0.1:0{port}0/x",
    "http://127.0.0.1:{port}%00.example.com/",
    "http://127.0.0.1%00.example.com:{port}/x",
    "http://127.0.0.1\x00.example.com:{port}/x",
    "http://127.0.0.1\t:{port}/x",
    "http://127.0.0.1\r\nHost: example.com:{port}/x",
    "http://%31%32%37.0.0.1:{port}/x",
    "http://127.0.0.1%2f:{port}/x",
    "http://127.0.0.1%23.example.com:{port}/x",
    "http://[127.0.0.1]:{port}/x",
    "http://[::1]example.com:{port}/x",
    "http://example.com[::1]:{port}/x",
    "\thttp://127.0.0.1:{port}/x",
    "HTTP://LOCALHOST:{port}/x",
    "http://localhost:{port}/x",
    "http://localhost.:{port}/x",
    "http://LOCALHO\u017fT:{port}/x",
    "http://\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3:{port}/x",
    "https://127.0.0.1:{port}/x",
    # other schemes
    "ftp://127.0.0.1:{port}/x",
    "gopher://127.0.0.1:{port}/_GET%20/x",
    "dict://127.0.0.1:{port}/x",
    "ws://127.0.0.1:{port}/x",
    "http+unix://%2Frun%2Fdocker.sock/info",
    "unix:///run/docker.sock",
    "jar:http://127.0.0.1:{port}/x!/",
    "url:http://127.0.0.1:{port}/x",
    "//127.0.0.1:{port}/x",
    "file:///etc/passwd",
    "file://localhost/etc/passwd",
    "file://127.0.0.1/etc/passwd",
    "file:/etc/passwd",
    "file:///proc/self/environ",
]


@pytest.mark.parametrize("template", LITERALS)
async def test_no_spelling_reaches_a_forbidden_address(
    template: str, victim: Origin, dialled: list[tuple[str, int]]
) -> None:
    """By the default policy nothing of the table connects to anything at all."""
    async with run_loader(allow_private=False) as loading:
        with pytest.raises((SourceForbiddenError, InvalidRequestError)):
            await load(loading, template.replace("{port}", str(victim.port)))
    assert dialled == []
    assert victim.num_connections == 0


FORBIDDEN_ADDRESSES = [
    "127.0.0.1", "127.0.0.2", "0.0.0.0", "10.1.2.3", "172.20.0.1", "192.168.1.1", "100.64.1.1",
    "169.254.169.254", "224.0.0.1", "255.255.255.255", "198.51.100.7", "::1", "::", "fe80::1",
    "fe80::1%lo", "fd00::1", "ff02::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1",
    "2002:7f00:1::1", "2001:0:1::1",
]  # fmt: skip


@pytest.mark.parametrize("answer", FORBIDDEN_ADDRESSES)
@pytest.mark.parametrize("company", [[], ["8.8.8.8"]], ids=["alone", "behind-a-public-one"])
async def test_no_name_leads_to_a_forbidden_address(
    answer: str, company: list[str], victim: Origin, dialled: list[tuple[str, int]]
) -> None:
    """Whatever a name resolves to is judged, each of its addresses."""
    resolver = FixedResolver({"evil.test": [[*company, answer]]})
    async with run_loader(resolver, allow_private=False) as loading:
        with pytest.raises(SourceForbiddenError):
            await load(loading, victim.url("/x", "evil.test"))
    assert dialled == []
    assert victim.num_connections == 0


LOCATIONS = [
    "http://127.0.0.2:{port}/x",
    "//127.0.0.2:{port}/x",
    "http://[::ffff:127.0.0.2]:{port}/x",
    "http://2130706434:{port}/x",
    "http://0x7f000002:{port}/x",
    "http://0177.0.0.2:{port}/x",
    "http://127.2:{port}/x",
    "http://evil.test:{port}/x",
    "http://EVIL.test.:{port}/x",
    "http://good@127.0.0.2:{port}/x",
    "http://127.0.0.1\\@127.0.0.2:{port}/x",
    "http://\uff11\uff12\uff17.0.0.2:{port}/x",
    "https://127.0.0.2:{port}/x",
    "http://[::1]:{port}/x",
    "http://169.254.169.254/",
    "file:///etc/passwd",
    "gopher://127.0.0.2:{port}/x",
    "data:image/png;base64,AAAA",
    "javascript:alert(1)",
    "http://",
    "http:",
]


@pytest.mark.parametrize("template", LOCATIONS)
@pytest.mark.parametrize("hops", [1, 3])
async def test_no_redirect_leads_to_a_forbidden_address(
    template: str, hops: int, origin: Origin, victim: Origin, dialled: list[tuple[str, int]]
) -> None:
    """Every hop is judged like the first URL; the allowed server alone is connected to."""
    location = template.replace("{port}", str(victim.port)).encode().decode("latin-1")
    origin.redirect(f"/{hops}", location)
    for hop in range(1, hops):
        origin.redirect(f"/{hop}", f"/{hop + 1}")
    resolver = FixedResolver({"evil.test": [[VICTIM]]})
    settings = {"allow_private": "127.0.0.1/32"}
    async with run_loader(resolver, **settings) as loading:
        with pytest.raises((SourceForbiddenError, MediaUpstreamError)):
            await load(loading, origin.url("/1"))
    assert set(dialled) == {("127.0.0.1", origin.port)}
    assert victim.num_connections == 0


async def test_a_name_that_changes_its_answer_is_judged_each_time(
    origin: Origin, victim: Origin, dialled: list[tuple[str, int]]
) -> None:
    """What is judged is what is dialled: the second answer of a name never replaces the first."""
    resolver = FixedResolver({"evil.test": [["127.0.0.1"], [VICTIM]]})
    async with run_loader(resolver, allow_private="127.0.0.1/32") as loading:
        assert await load(loading, origin.url("/good", "evil.test")) == BODY
        assert resolver.lookups == ["evil.test"]
        assert await load(loading, origin.url("/good?again", "evil.test")) == BODY
        assert resolver.lookups == ["evil.test"]
        with pytest.raises(SourceForbiddenError):
            await load(loading, victim.url("/x", "evil.test"))
    assert set(dialled) == {("127.0.0.1", origin.port)}
    assert victim.num_connections == 0


async def test_a_name_may_not_change_its_answer_between_hops(
    origin: Origin, victim: Origin, dialled: list[tuple[str, int]]
) -> None:
    """A redirect back to the same name on another port is resolved and judged anew."""
    resolver = FixedResolver({"evil.test": [["127.0.0.1"], [VICTIM]]})
    origin.redirect("/1", f"http://evil.test:{victim.port}/x")
    async with run_loader(resolver, allow_private="127.0.0.1/32") as loading:
        with pytest.raises(SourceForbiddenError):
            await load(loading, origin.url("/1", "evil.test"))
    assert resolver.lookups == ["evil.test", "evil.test"]
    assert set(dialled) == {("127.0.0.1", origin.port)}


async def test_domain_lists_hold_for_every_hop(origin: Origin, victim: Origin) -> None:
    """An allowed domain cannot pass on to another, even to an allowed address."""
    resolver = FixedResolver({"good.test": [["127.0.0.1"]], "other.test": [["127.0.0.1"]]})
    origin.redirect("/1", origin.url("/good", "other.test"))
    async with run_loader(resolver, allow_domains="good.test") as loading:
        with pytest.raises(SourceForbiddenError):
            await load(loading, origin.url("/1", "good.test"))
        assert await load(loading, origin.url("/good", "good.test")) == BODY
    assert "other.test" not in resolver.lookups


async def test_the_victim_could_be_reached(victim: Origin, dialled: list[tuple[str, int]]) -> None:
    """The table proves something: with the policy open, the same server answers."""
    async with run_loader() as loading:
        assert await load(loading, victim.url("/x", VICTIM)) == BODY
    assert dialled == [(VICTIM, victim.port)]
    await asyncio.wait_for(victim.all_closed.wait(), 10)
    assert victim.num_connections == 1
