"""Messages and calls of gacc from its descriptor set, share/gacc/gacc.protoset: no generated code, no library of ours."""
import os

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class Service:
    """One service of the descriptor set over one channel: service.Attach(job="7", rank=0) returns the response."""

    def __init__(self, protoset, name, endpoint=None):
        files = descriptor_pb2.FileDescriptorSet.FromString(open(protoset, "rb").read())
        self._pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self._pool.Add(file)
        endpoint = endpoint or os.environ.get("GACC_ENDPOINT", "unix:/run/gaccd/gaccd.sock")
        self._channel = grpc.insecure_channel(endpoint, options=[("grpc.max_receive_message_length", 8 << 20)])
        self._methods = {m.name: m for m in self._pool.FindServiceByName(name).methods}
        self._service = name

    def message(self, name):
        """Class of a message: service.message("PushInlineRequest")."""
        return self._class(self._pool.FindMessageTypeByName("gacc.v1." + name))

    def _class(self, descriptor):
        if hasattr(message_factory, "GetMessageClass"):  # protobuf 4.22 and later
            return message_factory.GetMessageClass(descriptor)
        return message_factory.MessageFactory(self._pool).GetPrototype(descriptor)

    def __getattr__(self, method):
        m = self._methods[method]
        kind = {(False, False): "unary_unary", (True, False): "stream_unary", (False, True): "unary_stream"}
        call = getattr(self._channel, kind[m.client_streaming, m.server_streaming])(
            f"/{self._service}/{method}", request_serializer=lambda r: r.SerializeToString(),
            response_deserializer=self._class(m.output_type).FromString)

        def invoke(stream=None, timeout=600, **fields):
            return call(stream if m.client_streaming else self._class(m.input_type)(**fields), timeout=timeout,
                        wait_for_ready=True)
        return invoke
