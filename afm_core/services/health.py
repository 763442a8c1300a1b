"""Is a server healthy? Each check asks it for something that only works when it does its work.

A check returns None, or in a few words why not. It takes at most `SECONDS` a request, and goes through no proxy.
"""

from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

SECONDS = 5.0


def http(url: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> str | None:
    """Healthy if the address answers with 200."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=SECONDS)
    try:
        connection.request(method, parts.path, headers=dict(headers or {}))
        code = connection.getresponse().status
    except TimeoutError:
        return f"no answer within {SECONDS:g} s from {url}"
    except (OSError, HTTPException) as error:
        return f"no answer from {url}: {error or type(error).__name__}"
    finally:
        connection.close()
    return None if code == 200 else f"{method} {url} answers {code}"


def bucket(endpoint: str, name: str, access_key: str, secret_key: str) -> str | None:
    """Healthy if the bucket exists for these credentials."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest("HEAD", f"{endpoint}/{name}")
    S3SigV4Auth(Credentials(access_key, secret_key), "s3", "us-east-1").add_auth(request)
    return http(request.url, dict(request.headers.items()), "HEAD")
