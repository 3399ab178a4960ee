"""Tables of a group in notebooks: no text of a stranger is HTML in them."""

from __future__ import annotations

from html.parser import HTMLParser

from pxrs.model import Group, MemberRow, Owner, Partition
from pxrs.runtime.views.group import GroupView, MemberLines, member_lines, partition_line

EVIL = "<script>alert('x')</script>&amp;"


class Read(HTMLParser):
    """The tags, and the text of the cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def evil_view() -> GroupView:
    row = MemberRow(EVIL, "life", info=(("host", EVIL),))
    partition = Partition(0)._replace(owner=Owner(EVIL, "life"))
    group = Group(1, "xxh64-spark", "pmod")
    line = partition_line(partition, 0, 4, 1.0, error=EVIL, parked=EVIL)
    return GroupView("orders", EVIL, group, [line], member_lines(group, [row], [partition]), dead_letters=2)


def test_names_and_errors_are_text_in_a_notebook() -> None:
    view = evil_view()
    for html in (view._repr_html_(), view.members._repr_html_()):
        read = Read(html)
        assert read.tags <= {"table", "thead", "tbody", "tr", "th", "td"}
        assert EVIL in read.text


def test_a_group_is_shown_with_its_summary_and_an_empty_list_is_a_table_too() -> None:
    read = Read(evil_view()._repr_html_())
    assert {"dead letters", "2", "Stable", "lag", "4"} <= set(read.text)
    assert MemberLines([])._repr_html_().startswith("<table>")
