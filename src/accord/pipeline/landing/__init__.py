"""Landing: journals become closed segments, from which the pipeline learns everything.

`redaction` says what may land, `segments` has the form of what does, and `Landing` is the place: a
folder or an fsspec URL. `exporter` lands what has not landed, each record once; `retention` lets go
of what is old. Both work on open stores and are imported by their own names, so that workers of
Spark need no database.
"""

from accord.pipeline.landing.place import Landing
from accord.pipeline.landing.segments import Footer, Segment

__all__ = ["Footer", "Landing", "Segment"]
