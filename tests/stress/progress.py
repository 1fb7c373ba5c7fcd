"""Progress of long runs on standard error: one line that is redrawn on a terminal, a line every ten seconds elsewhere."""
import sys
import time


class Progress:
    def __init__(self):
        self.redraws = sys.stderr.isatty()
        self.last = 0.0

    def show(self, text):
        if self.redraws:
            print(f"\r{text} ", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self.last >= 10:
            self.last = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def end(self, text):
        print(f"\r{text} " if self.redraws else text, file=sys.stderr, flush=True)
