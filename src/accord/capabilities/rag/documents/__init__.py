"""Files of five kinds, read into text that knows its pages and headings.

`kinds` tells what a file is by its bytes, one module reads each kind, `worker` does so in a process
of its own under limits, and `parsing` is what others call.
"""
