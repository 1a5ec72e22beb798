"""The methods of the `InferenceCache` service, read off its descriptor, for clients and servers alike.

A transport needs four things of a method: its path, the message types, and which side streams. Reading them off the
descriptor keeps one definition of the service, the .proto file.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from inferencecache.wire.v1alpha1 import inferencecache_pb2

_SERVICE = inferencecache_pb2.DESCRIPTOR.services_by_name["InferenceCache"]

SERVICE_NAME: str = _SERVICE.full_name


class Method(NamedTuple):
    """One RPC: `path` is what HTTP/2 carries, `/inferencecache.v1alpha1.InferenceCache/<Rpc>`."""

    name: str
    path: str
    request: type[Message]
    response: type[Message]
    client_streams: bool
    server_streams: bool


METHODS: dict[str, Method] = {
    method.name: Method(
        name=method.name,
        path=f"/{SERVICE_NAME}/{method.name}",
        request=GetMessageClass(method.input_type),
        response=GetMessageClass(method.output_type),
        client_streams=method.client_streaming,
        server_streams=method.server_streaming,
    )
    for method in _SERVICE.methods
}
