"""What a client of the stack needs to know: addresses and credentials, and the private file that holds them."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from afm_core.config.environment import boot_id
from afm_core.services.state import Places, ServiceName, write_private

BUCKET = "artifacts"
Variables = dict[str, str]

RAY_ON_LOOPBACK = MappingProxyType({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"})
"""On Linux Ray takes 127.0.0.1 for the machine's outer address and listens there, unless told that it is no cluster, as
on the systems in this name. Clients need it too, else they look for Ray at the outer address."""


@dataclass(frozen=True)
class Credentials:
    """Of the S3 server and of Ray; made by the first `afm up`."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    ray_token: str = field(repr=False)


def credentials_of(variables: Mapping[str, Mapping[str, str]]) -> tuple[Credentials, set[ServiceName]]:
    """The credentials in the variables of running services, else new ones, and for which services they are new."""
    s3, ray = (variables.get(name, {}) for name in (ServiceName.S3, ServiceName.RAY))
    access_key, secret_key = s3.get("AWS_ACCESS_KEY_ID"), s3.get("AWS_SECRET_ACCESS_KEY")
    ray_token = ray.get("RAY_AUTH_TOKEN")
    new = set()
    if not (access_key and secret_key):
        access_key, secret_key = secrets.token_hex(10), secrets.token_hex(32)
        new.add(ServiceName.S3)
    if not ray_token:
        ray_token = secrets.token_hex(32)
        new.add(ServiceName.RAY)
    return Credentials(access_key, secret_key, ray_token), new


def variables_of(name: ServiceName, ports: Mapping[str, int], credentials: Credentials) -> Variables:
    """Environment variables by which a client finds and may use that service."""
    match name:
        case ServiceName.PREFECT:
            return {"PREFECT_API_URL": f"http://127.0.0.1:{ports['prefect']}/api"}
        case ServiceName.MLFLOW:
            return {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{ports['mlflow']}"}
        case ServiceName.S3:
            return {
                "AFM_STORE": f"s3://{BUCKET}/afm",
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['s3']}",
                "AWS_ACCESS_KEY_ID": credentials.access_key,
                "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
                "AWS_DEFAULT_REGION": "us-east-1",
            }
        case ServiceName.RAY:
            return {
                "RAY_ADDRESS": f"127.0.0.1:{ports['ray']}",
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": credentials.ray_token,
                **RAY_ON_LOOPBACK,
                "AFM_RAY_DASHBOARD": f"http://127.0.0.1:{ports['ray-dashboard']}",
            }
        case ServiceName.WORKER:
            return {}


def write_environment(places: Places, services: Mapping[ServiceName, Variables]) -> None:
    """Write the file that every `afm` command reads (see afm_core.config.environment): whole, mode 0600."""
    document = {"boot_id": boot_id(), "home": str(places.home), "services": services}
    write_private(places.environment, json.dumps(document, indent=2))
