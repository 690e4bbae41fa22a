"""A stand-in for the OpenTelemetry Collector: receives OTLP over HTTP, and refuses what OpenTelemetry's own messages
cannot represent."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

MESSAGES = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}
WAIT_S = 30


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        status = self.server.receive(self.path, self.headers, body)
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        """The tests print failures."""


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def attributes(pairs):
    return {pair.key: value(pair.value) for pair in pairs}


def check_span(span):
    """Raises `ValueError` for a span that the specification does not allow."""
    if len(span.trace_id) != 16 or len(span.span_id) != 8 or len(span.parent_span_id) not in (0, 8):
        raise ValueError("an id has another length")
    if not any(span.trace_id) or not any(span.span_id) or not span.name:
        raise ValueError("an id or the name is missing")
    if not 0 < span.start_time_unix_nano <= span.end_time_unix_nano:
        raise ValueError("the span ends before it starts")


class Span:
    def __init__(self, span, resource):
        self.name, self.kind, self.resource = span.name, span.kind, resource
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.attributes, self.state = attributes(span.attributes), span.trace_state
        self.is_error = span.status.code == Status.STATUS_CODE_ERROR
        self.text = str(span)


class Collector(ThreadingHTTPServer):
    """`with Collector() as collector`; `collector.status` is the answer to valid requests."""

    daemon_threads = True

    def __init__(self, status=200):
        super().__init__(("127.0.0.1", 0), Handler)
        self.changed = threading.Condition()
        self.status, self.requests, self.spans, self.metrics, self.malformed = status, 0, [], {}, []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, *_):
        """Tests kill programs that are connected."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def receive(self, path, headers, body):
        with self.changed:
            self.requests += 1
            self.headers = dict(headers)
            try:
                self.read(path, headers, body)
            except (DecodeError, KeyError, ValueError) as error:
                self.malformed.append(f"{path}: {error!r}")
                return 400
            finally:
                self.changed.notify_all()
            return self.status

    def read(self, path, headers, body):
        if headers["content-type"] != "application/x-protobuf":
            raise ValueError(f"content type {headers['content-type']}")
        message = MESSAGES[path].FromString(body)
        if self.status != 200:
            return
        if path == "/v1/metrics":
            return self.read_metrics(message)
        for by_resource in message.resource_spans:
            resource = attributes(by_resource.resource.attributes)
            for span in (span for scope in by_resource.scope_spans for span in scope.spans):
                check_span(span)
                self.spans.append(Span(span, resource))

    def read_metrics(self, message):
        """Keeps the last values: {name: {labels: number, or (count, sum, bucket counts, bounds)}}."""
        for by_resource in message.resource_metrics:
            self.resource = attributes(by_resource.resource.attributes)
            for metric in (metric for scope in by_resource.scope_metrics for metric in scope.metrics):
                data = getattr(metric, metric.WhichOneof("data"))
                for point in data.data_points:
                    labels = tuple(sorted(attributes(point.attributes).items()))
                    if metric.HasField("histogram"):
                        if len(point.bucket_counts) != len(point.explicit_bounds) + 1:
                            raise ValueError("a histogram has another number of buckets")
                        found = (point.count, point.sum, list(point.bucket_counts), list(point.explicit_bounds))
                    else:
                        found = getattr(point, point.WhichOneof("value"))
                    self.metrics.setdefault(metric.name, {})[labels] = found

    def wait(self, what, is_there):
        """Waits until the condition holds, and fails with what was received."""
        with self.changed:
            if not self.changed.wait_for(is_there, WAIT_S):
                raise AssertionError(f"expected {what}, but found {[span.name for span in self.spans]}, {self.malformed}")

    def wait_for_spans(self, count):
        """All spans, once there are this many server spans; children are sent before their parents' end."""
        self.wait(f"{count} requests", lambda: len(self.servers()) >= count)
        return self.spans

    def servers(self):
        return [span for span in self.spans if span.kind == 2]

    def children(self, parent):
        return sorted((span for span in self.spans if span.parent == parent.id), key=lambda span: span.start)
