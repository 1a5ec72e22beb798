"""The gRPC face: HTTP/2 and gRPC on asyncio, and the services that are offered through it.

From the bytes upwards, on `wire.http2` (frames and fields): `connection` (HTTP/2), `messages` and `calls` (gRPC),
`listener` (sockets); beside them `methods` (what is offered), `health` and `reflection` (what every gRPC server
offers) and `service` (what this one is for).
"""
