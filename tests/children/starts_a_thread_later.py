"""A module that starts a thread some time after it was imported, as a library with a timer may."""

import signal
import threading


def _begin(*_: object) -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


signal.signal(signal.SIGALRM, _begin)
signal.setitimer(signal.ITIMER_REAL, 0.2)
