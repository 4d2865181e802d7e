"""What is measured, not asserted: `make bench [ONLY=section] [ANCHORS=DIR]`.

A section is a module here with `BARS` and `measure(anchors)`. Results go to results.json, each section replacing its
own keys only, and from there into the README's tables.
"""
