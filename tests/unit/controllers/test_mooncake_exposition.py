"""Reading a master's metrics (spec 10 §6.3)."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.controllers.mooncake.exposition import Scrape, ScrapeError, TenantFigures, parse

NEWER = """\
# HELP mooncake_tenant_quota_requested_bytes Requested tenant quota policy in bytes
# TYPE mooncake_tenant_quota_requested_bytes gauge
mooncake_tenant_quota_requested_bytes{tenant_id="a"} 100
mooncake_tenant_quota_effective_bytes{tenant_id="a"} 50
mooncake_tenant_quota_charged_bytes{tenant_id="a"} 20
mooncake_tenant_quota_admission_closed{tenant_id="a"} 0
mooncake_tenant_quota_over_quota{tenant_id="a"} 0
mooncake_tenant_quota_explicit_policy{tenant_id="a"} 1
mooncake_tenant_evict_bytes_total{tenant_id="a"} 16777216
mooncake_tenant_quota_reject_total{tenant_id="a",reason="leased"} 3
mooncake_tenant_quota_allocatable_capacity_bytes 67108864
mooncake_tenant_quota_requested_bytes_sum 9223372036871553028
mooncake_tenant_quota_effective_bytes_sum 50
master_total_capacity_bytes 67108864
master_allocated_bytes 20
master_total_file_capacity_bytes 0
"""
OLDER = """\
mooncake_tenant_quota_requested_bytes{tenant_id="a"} 100
mooncake_tenant_quota_effective_bytes{tenant_id="a"} 50
mooncake_tenant_quota_used_bytes{tenant_id="a"} 15
mooncake_tenant_quota_reserved_bytes{tenant_id="a"} 5
mooncake_tenant_quota_committed_count{tenant_id="a"} 1
mooncake_tenant_quota_metadata_object_count{tenant_id="a"} 1
mooncake_tenant_quota_over_quota{tenant_id="a"} 1
mooncake_tenant_quota_explicit_policy{tenant_id="a"} 0
mooncake_tenant_quota_allocatable_capacity_bytes 67108864
"""
WITHOUT_TENANTS = """\
master_total_capacity_bytes 67108864
master_allocated_bytes 0
request_latency_bucket{le="+Inf"} 0
"""


def test_the_newer_master_tells_a_charge_that_includes_writes_in_flight() -> None:
    figures = TenantFigures(
        requested=100, effective=50, usage=20, usage_includes_in_flight=True, over_quota=False, explicit_policy=True
    )
    assert parse(NEWER) == Scrape(
        tenants={"a": figures}, allocatable=67108864, total_capacity=67108864, allocated=20, file_capacity=0
    )


def test_the_older_master_tells_what_is_used() -> None:
    figures = TenantFigures(requested=100, effective=50, usage=15, over_quota=True, explicit_policy=False)
    assert parse(OLDER) == Scrape(tenants={"a": figures}, allocatable=67108864)


def test_what_is_used_goes_before_what_is_charged_in_either_order() -> None:
    for text in (NEWER + OLDER, OLDER + NEWER):
        assert (parse(text).tenants["a"].usage, parse(text).tenants["a"].usage_includes_in_flight) == (15, False)


def test_a_master_without_tenants_tells_its_capacity() -> None:
    assert parse(WITHOUT_TENANTS) == Scrape(tenants={}, total_capacity=67108864, allocated=0)
    assert parse("") == Scrape(tenants={})


@pytest.mark.parametrize(
    "line",
    [
        "# anything at all {",
        "#",
        "",
        " \t ",
        "something_new 1",
        "something_new{} 1",
        'something_new{a="b",} -1.5e3 1700000000000',
        "histogram_sum NaN",
        "histogram_sum -nan",
        "gauge +Inf",
        "gauge -inf",
        "gauge .5",
        "gauge 5.",
        'a:b{x="}, y=\\"1\\" "} 2',
        'a { x = "1" , y = "2" } 2',
        'a{x="1"}2',
        "\ta  2\t 5 \r",
        'master_total_capacity_bytes{segment="s"} 1',
        'master_total_capacity_bytes{segment="s"} -1.5',
        'a{x="\u2028\x85\x0b\x0c"} 1',
        "mooncake_tenant_quota_requested_bytes_sum 9223372036854775808",
        "mooncake_tenant_quota_something_new{} 1.5",
    ],
)
def test_what_is_not_known_is_passed_over(line: str) -> None:
    for text in (line + "\n" + NEWER, NEWER + line):
        assert parse(text) == parse(NEWER)


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a ",
        "1a 1",
        "a-b 1",
        "a b",
        "a 1 2 3",
        "a 1 b",
        "a 1 1.5",
        "a 1_000",
        "a 0x10",
        "a １",
        "a infinite",
        "a{ 1",
        "a} 1",
        "a{} ",
        "a{}",
        "a{b} 1",
        "a{b=1} 1",
        "a{b='1'} 1",
        'a{b="1} 1',
        'a{b="1"',
        'a{b="1"} ',
        'a{b="1"c="2"} 1',
        'a{b="1",,c="2"} 1',
        'a{,b="1"} 1',
        'a{b="\\t"} 1',
        'a{b="\\"} 1',
        'a{1b="1"} 1',
        'a{b:c="1"} 1',
        'a{b="1"}} 1',
        "<html>",
        "{} 1",
        "a\u00a01",
        "\ufeffa 1",
    ],
)
def test_one_line_that_is_no_sample_fails_the_whole_scrape(line: str) -> None:
    for text in (line + "\n" + NEWER, NEWER + line):
        with pytest.raises(ScrapeError, match=r"^line (1|17) of the metrics, "):
            parse(text)


@pytest.mark.parametrize(
    ("value", "bytes_"),
    [
        ("0", 0),
        ("007", 7),
        ("9007199254740993", 2**53 + 1),
        ("9223372036854775807", 2**63 - 1),
        ("1e3", 1000),
        ("+5", 5),
        ("1.6777216e+07", 16777216),
        ("9007199254740991.0", 2**53 - 1),
    ],
)
def test_counts_are_exact(value: str, bytes_: int) -> None:
    assert parse(f'mooncake_tenant_quota_effective_bytes{{tenant_id="a"}} {value}').tenants["a"].effective == bytes_
    assert parse(f"mooncake_tenant_quota_allocatable_capacity_bytes {value}").allocatable == bytes_


@pytest.mark.parametrize(
    "value",
    [
        "-1", "1.5", "NaN", "nan", "Inf", "+Inf", "-Inf", "9223372036854775808", "9007199254740992.0", "1e300", "1e999",
        "-0.5", "1" * 5000,
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "series",
    [
        *(
            f'mooncake_tenant_quota_{figure}{{tenant_id="b"}}'
            for figure in (
                "requested_bytes", "effective_bytes", "used_bytes", "charged_bytes", "reserved_bytes",
                "committed_count", "metadata_object_count",
            )
        ),
        "mooncake_tenant_quota_allocatable_capacity_bytes",
        "master_total_capacity_bytes",
        "master_allocated_bytes",
        "master_total_file_capacity_bytes",
    ],
)  # fmt: skip
def test_what_is_no_count_fails_the_whole_scrape(series: str, value: str) -> None:
    with pytest.raises(ScrapeError):
        parse(f"{NEWER}{series} {value}\n")


@pytest.mark.parametrize("value", ["2", "-1", "1.0", "0.0", "1e0", "00", "01", "+1", "NaN"])
@pytest.mark.parametrize("flag", ["over_quota", "explicit_policy", "admission_closed"])
def test_a_flag_is_0_or_1(flag: str, value: str) -> None:
    with pytest.raises(ScrapeError):
        parse(f'{NEWER}mooncake_tenant_quota_{flag}{{tenant_id="b"}} {value}\n')


@pytest.mark.parametrize("labels", ["", "{}", '{tenant_id=""}', '{tenant="a"}', '{reason="x"}'])
@pytest.mark.parametrize("figure", ["requested_bytes", "charged_bytes", "over_quota", "admission_closed"])
def test_a_series_of_a_tenant_names_the_tenant(figure: str, labels: str) -> None:
    with pytest.raises(ScrapeError, match="no tenant_id"):
        parse(f"{NEWER}mooncake_tenant_quota_{figure}{labels} 1\n")


def test_a_tenant_is_there_with_any_of_its_series_and_what_is_missing_is_not_zero() -> None:
    scrape = parse('mooncake_tenant_quota_admission_closed{tenant_id="a"} 1')
    assert scrape.tenants == {"a": TenantFigures()}


def test_of_a_sample_that_is_there_twice_the_last_counts() -> None:
    assert parse(f'{NEWER}mooncake_tenant_quota_charged_bytes{{tenant_id="a"}} 21').tenants["a"].usage == 21


def quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
tenants = st.dictionaries(
    names,
    st.builds(
        TenantFigures,
        requested=st.integers(0, 2**63 - 1),
        effective=st.integers(0, 2**63 - 1),
        usage=st.integers(0, 2**63 - 1),
        usage_includes_in_flight=st.booleans(),
        over_quota=st.booleans(),
        explicit_policy=st.booleans(),
    ),
    max_size=5,
)


def exposed(name: str, figures: TenantFigures) -> list[str]:
    """The samples of one tenant, as a master writes them."""
    usage = "charged" if figures.usage_includes_in_flight else "used"
    return [
        f'mooncake_tenant_quota_{series}{{tenant_id="{quoted(name)}"}} {value:d}'
        for series, value in (
            ("requested_bytes", figures.requested),
            ("effective_bytes", figures.effective),
            (f"{usage}_bytes", figures.usage),
            ("over_quota", figures.over_quota),
            ("explicit_policy", figures.explicit_policy),
        )
        if value is not None
    ]


@given(tenants, st.randoms(use_true_random=False))
def test_whatever_is_written_is_read_back_in_any_order(written: dict[str, TenantFigures], random: object) -> None:
    lines = [line for name, figures in written.items() for line in exposed(name, figures)]
    random.shuffle(lines)  # type: ignore[attr-defined]
    assert parse("\n".join(lines)).tenants == written


@given(
    st.text(st.sampled_from('ab{}="\\n, 1.+-#\te\r\n_')) | st.text() | st.binary().map(lambda b: b.decode("latin-1"))
)
def test_no_text_is_read_but_as_samples(text: str) -> None:
    try:
        scrape = parse(text)
    except ScrapeError:
        return
    assert scrape == Scrape(tenants={})


@given(st.data())
def test_a_scrape_that_was_cut_or_changed_is_refused_or_says_no_more_than_it_did(data: st.DataObject) -> None:
    """Cut anywhere, it never invents a tenant or grants more than was written."""
    cut = data.draw(st.integers(0, len(NEWER)))
    try:
        scrape = parse(NEWER[:cut])
    except ScrapeError:
        return
    whole = parse(NEWER).tenants["a"]
    assert set(scrape.tenants) <= {"a"}
    for figures in scrape.tenants.values():
        assert (figures.effective or 0) <= (whole.effective or 0)
        assert (figures.usage or 0) <= (whole.usage or 0)


@pytest.mark.parametrize(
    "line",
    [
        "a{" + 'b="1",' * 50_000 + "! 1",
        'a{b="' + "\\\\" * 200_000,
        "a" * 500_000,
        "a " + "1" * 500_000 + "x",
        "a{" + " " * 500_000,
        "a" + " " * 500_000,
    ],
)
def test_a_hostile_line_costs_no_more_than_reading_it(line: str) -> None:
    started = time.process_time()
    with pytest.raises(ScrapeError):
        parse(line)
    assert time.process_time() - started < 10, "it took time with the square of the length"


def test_floats_of_unknown_series_may_be_anything_a_float_is() -> None:
    for value in (math.pi, -math.pi, 1e300, 5e-324, math.inf, -math.inf, math.nan):
        assert parse(f"something {value}") == Scrape(tenants={})
