"""Ray's Jobs API for this house: bounded waiting, our errors, and the log of a job as it grows.

Ray's own client waits for ever on a head that accepts a connection and does not answer, and takes the address of
another cluster if RAY_ADDRESS is set: both are mended here. Its token comes from RAY_AUTH_MODE and RAY_AUTH_TOKEN.
"""

import asyncio
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from afm_core.config import ConfigError

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

REQUEST_SECONDS = 20.0
_RETRY_SECONDS = 1.0
_ADDRESS = "RAY_API_SERVER_ADDRESS"
_construction = threading.Lock()


class JobsUnreachable(OSError):
    """The Jobs API does not answer, or answers with a server error: an infrastructure fault."""


class JobExists(ValueError):
    """A job of that id is known already."""


class RayJobs:
    """The jobs of the cluster whose dashboard is at `dashboard`.

    All methods raise JobsUnreachable, and ConfigError when the cluster refuses the token.
    """

    def __init__(self, dashboard: str) -> None:
        self.dashboard = dashboard.rstrip("/")
        self._client = self._ask(lambda: _client(self.dashboard))

    def submit(self, job: str, entrypoint: str, **options: Any) -> None:
        """Start a job of that id. Raises JobExists."""
        try:
            self._ask(lambda: self._client.submit_job(submission_id=job, entrypoint=entrypoint, **options))
        except JobsUnreachable as error:
            if "already exists" in str(error):
                raise JobExists(job) from error
            raise

    def info(self, job: str) -> "JobDetails | None":
        """What is known of a job; None if there is none of that id."""
        try:
            return self._ask(lambda: self._client.get_job_info(job))
        except JobsUnreachable as error:
            if "status code 404" in str(error):
                return None
            raise

    def stop(self, job: str) -> None:
        """Ask a job to end; nothing happens if it has, or never was."""
        if self.info(job) is not None:
            self._ask(lambda: self._client.stop_job(job))

    def log(self, job: str) -> str:
        """The whole log so far."""
        return self._ask(lambda: self._client.get_job_logs(job))

    def tail(self, job: str) -> Any:
        """Pieces of the log as they come, from its beginning: an asynchronous iterator that ends with the job."""
        return self._client.tail_job_logs(job)

    def _ask(self, request: Callable[[], Any]) -> Any:
        import requests
        from ray.exceptions import AuthenticationError

        try:
            return request()
        except AuthenticationError as error:
            raise ConfigError(
                f"the Ray cluster at {self.dashboard} refuses the token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to "
                "the cluster's own"
            ) from error
        except (requests.RequestException, ConnectionError, RuntimeError) as error:
            raise JobsUnreachable(f"Ray's Jobs API at {self.dashboard}: {_one_line(error)}") from error


class Tail:
    """Follows a job's log in a thread; connects again, from the log's beginning, when the connection breaks.

    `pieces` has (position, text): a piece of the log and the number of characters before it.
    """

    def __init__(self, jobs: RayJobs, job: str) -> None:
        self.pieces: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._jobs = jobs
        self._job = job
        self._stop = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._following: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="afm-job-log", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Leave the log where it is."""
        self._stop.set()
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
            self._loop.call_soon_threadsafe(self._leave)
        self._thread.join()

    def _leave(self) -> None:
        if self._following is not None:
            self._following.cancel()

    def _run(self) -> None:
        import aiohttp

        while not self._stop.is_set():
            try:
                self._following = self._loop.create_task(self._follow())
                self._loop.run_until_complete(self._following)
                break
            except asyncio.CancelledError:
                break
            except (aiohttp.ClientError, RuntimeError, OSError, TimeoutError):
                self._stop.wait(_RETRY_SECONDS)
        self._loop.close()

    async def _follow(self) -> None:
        position = 0
        async for text in self._jobs.tail(self._job):
            self.pieces.put((position, text))
            position += len(text)


def _client(dashboard: str) -> "JobSubmissionClient":
    from ray.job_submission import JobSubmissionClient

    logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)

    class Client(JobSubmissionClient):  # type: ignore[misc,unused-ignore]
        """Ray's, with a limit to every request."""

        def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
            return super()._do_request(method, endpoint, **{"timeout": REQUEST_SECONDS, **options})

    with _construction, _variable(_ADDRESS, dashboard):
        return Client(dashboard)


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """An environment variable for a while: Ray's client lets RAY_ADDRESS win over its argument, unless this is set."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
