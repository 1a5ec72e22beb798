"""gRPC server reflection: a client without the .proto files asks which services there are and what they look like.

The protocol exists as v1 and as v1alpha, with equal messages under different names. The messages of v1alpha serve
both; the description of v1 is made from the other by renaming.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2 as pb

from inferencecache.server.rpc.messages import Code
from inferencecache.server.rpc.methods import Call, Service, Streaming

_ALPHA: Final = "grpc.reflection.v1alpha"
_STABLE: Final = "grpc.reflection.v1"
SERVICE_NAMES: Final = (f"{_STABLE}.ServerReflection", f"{_ALPHA}.ServerReflection")


def reflection_services(names: Iterable[str]) -> list[Service]:
    """Reflection, in both versions, of the services with these names and of itself."""
    answers = _Reflection(sorted({*names, *SERVICE_NAMES}))
    method = Streaming(pb.ServerReflectionRequest.FromString, answers.info)
    return [Service(name, {"ServerReflectionInfo": method}) for name in SERVICE_NAMES]


class _Reflection:
    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._pool = descriptor_pool.Default()
        _describe_stable(self._pool)

    async def info(
        self, requests: AsyncIterator[pb.ServerReflectionRequest], _call: Call
    ) -> AsyncIterator[pb.ServerReflectionResponse]:
        """ServerReflectionInfo."""
        async for request in requests:
            yield self._answer(request)

    def _answer(self, request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
        response = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
        try:
            self._fill(response, request)
        except KeyError:
            response.error_response.error_code = Code.NOT_FOUND
            response.error_response.error_message = "there is no such file, symbol or extension here"
        return response

    def _fill(self, response: pb.ServerReflectionResponse, request: pb.ServerReflectionRequest) -> None:
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            for name in self._names:
                response.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            _put_files(response, self._pool.FindFileByName(request.file_by_filename))
        elif kind == "file_containing_symbol":
            _put_files(response, self._pool.FindFileContainingSymbol(request.file_containing_symbol))
        elif kind == "file_containing_extension":
            wanted = request.file_containing_extension
            extension = self._pool.FindExtensionByNumber(self._message(wanted.containing_type), wanted.extension_number)
            _put_files(response, self._pool.FindFileContainingSymbol(extension.full_name))
        elif kind == "all_extension_numbers_of_type":
            found = self._pool.FindAllExtensions(self._message(request.all_extension_numbers_of_type))
            response.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
            response.all_extension_numbers_response.extension_number.extend(sorted(each.number for each in found))
        else:
            response.error_response.error_code = Code.INVALID_ARGUMENT
            response.error_response.error_message = "the request asks for nothing"

    def _message(self, name: str) -> Descriptor:
        return self._pool.FindMessageTypeByName(name)


def _put_files(response: pb.ServerReflectionResponse, file: FileDescriptor) -> None:
    """The file and all it is built on, so that one answer is enough."""
    response.file_descriptor_response.file_descriptor_proto.extend(
        each.serialized_pb for each in _with_dependencies(file, set())
    )


def _with_dependencies(file: FileDescriptor, seen: set[str]) -> Iterator[FileDescriptor]:
    if file.name not in seen:
        seen.add(file.name)
        yield file
        for dependency in file.dependencies:
            yield from _with_dependencies(dependency, seen)


def _describe_stable(pool: descriptor_pool.DescriptorPool) -> None:
    file = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    file.name = file.name.replace("v1alpha", "v1")
    file.package = _STABLE
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(_ALPHA, _STABLE)
    for method in file.service[0].method:
        method.input_type = method.input_type.replace(_ALPHA, _STABLE)
        method.output_type = method.output_type.replace(_ALPHA, _STABLE)
    pool.AddSerializedFile(file.SerializeToString())
