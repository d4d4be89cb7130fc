"""For all tests: the processes that they start get the usual signals, whatever started pytest had ignored."""

from __future__ import annotations

import signal

# A shell's background job ignores SIGINT, nohup ignores SIGHUP, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
