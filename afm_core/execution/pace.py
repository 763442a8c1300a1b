"""How long a stage still takes, from how fast it went: a smoothed rate, unknown until it has been seen to advance.

    seconds a unit = WEIGHT * (latest) + (1 - WEIGHT) * (so far),     left = seconds a unit * (total - done)

The first report of a stage only sets the clock: what it counts may have been there before (a resumed stage). A count
that goes back, or another total, is another phase of the stage: the rate begins anew.
"""

from dataclasses import dataclass, replace

WEIGHT = 0.3
"""Of the latest advance: the last ten or so decide."""


@dataclass(frozen=True)
class Pace:
    """`done` of `total` at `time` (seconds of a monotonic clock); `seconds_each` is None while unknown."""

    done: int
    total: int
    time: float
    seconds_each: float | None = None

    def advanced(self, done: int, total: int, time: float) -> "Pace":
        """The pace after a report. A report without an advance changes nothing: its time counts to the next one."""
        if total != self.total or done < self.done:
            return Pace(done, total, time)
        if done == self.done:
            return self
        latest = max(time - self.time, 0.0) / (done - self.done)
        known = self.seconds_each
        each = latest if known is None else WEIGHT * latest + (1 - WEIGHT) * known
        return replace(self, done=done, time=time, seconds_each=each)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until `total` from the time of the last advance; None while unknown."""
        return None if self.seconds_each is None else self.seconds_each * max(self.total - self.done, 0)


def duration(seconds: float) -> str:
    """Seconds in words for people: 45 s, 12 min, 3 h 05 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
