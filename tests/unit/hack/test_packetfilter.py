"""What is taken away of a packet filter's rules, and what is not."""

from __future__ import annotations

import re

from hack.onenode.packetfilter import removal

LISTED = """\
-P FORWARD DROP
-N DOCKER
-N DOCKER-USER
-N MINE
-A FORWARD -j DOCKER-USER
-A FORWARD -i eth0 -m comment --comment "not docker0's" -j MINE
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A DOCKER -i docker0 -j RETURN
-A MINE -j ACCEPT
"""


def test_rules_of_others_and_their_chains_are_left_alone() -> None:
    assert [" ".join(words) for words in removal(LISTED.splitlines(), re.compile(r"DOCKER(-.*)?|docker0"))] == [
        "-D FORWARD -j DOCKER-USER",
        "-D FORWARD -i docker0 ! -o docker0 -j ACCEPT",
        "-F DOCKER",
        "-F DOCKER-USER",
        "-X DOCKER",
        "-X DOCKER-USER",
    ]


def test_where_nothing_is_nothing_is_removed() -> None:
    assert list(removal(["-P INPUT ACCEPT", "-P FORWARD ACCEPT"], re.compile("KUBE-.*"))) == []
