# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""A page as a program reads it."""

import re
from html.parser import HTMLParser


VOID = {"meta", "img", "br", "path", "use", "rect", "circle", "link", "image", "stop"}


class Page(HTMLParser):
    """Every tag is closed; collects tags, addresses and words, and what a reader who does not see needs."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.headings, self.images, self.links, self.ids, self.words = [], [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found[name] for name in ("href", "xlink:href", "src", "action", "data") if name in found]
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))
        self.images += [found[name] for name in ("aria-label", "alt") if tag in ("svg", "img") and name in found]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)
