//! The exporter: OTLP in protobuf over plain HTTP, from a thread of its own.

use std::time::{Instant, SystemTime};

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span as _, Tracer, TracerProvider};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value, global};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use super::GenerationTrace;

/// The name of the service and of the tracer.
const SERVICE: &str = "glim";

/// The one span of `tracing` that is exported.
const REQUEST: &str = "request";

/// Where traces go below the endpoint, by the OTLP specification.
const TRACES: &str = "/v1/traces";

/// Sends the spans of requests to a collector. Dropping it sends what is left.
#[derive(Debug)]
pub struct Otel {
    provider: SdkTracerProvider,
}

/// Why no traces can be sent.
#[derive(Debug, thiserror::Error)]
pub enum OtelError {
    /// An address that cannot be sent to.
    #[error(
        "otlp: {endpoint:?} is no address that traces can be sent to; expected http://HOST:PORT (TLS is a collector's work)"
    )]
    Endpoint {
        /// The address as given.
        endpoint: String,
    },
    /// The exporter cannot be made.
    #[error("otlp: {0}")]
    Exporter(#[from] ExporterBuildError),
}

impl Otel {
    /// Starts the exporter's thread. `endpoint` is the collector's base address, such as `http://localhost:4318`. A collector that is
    /// not there is no error: spans are dropped meanwhile.
    ///
    /// # Errors
    /// An endpoint that is not plain HTTP.
    pub fn start(endpoint: &str) -> Result<Self, OtelError> {
        if !endpoint.starts_with("http://") {
            return Err(OtelError::Endpoint {
                endpoint: endpoint.to_owned(),
            });
        }
        let base = endpoint.trim_end_matches('/');
        let base = base.strip_suffix(TRACES).unwrap_or(base);
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(format!("{base}{TRACES}"))
            .build()?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder()
            .with_service_name(SERVICE)
            .with_attribute(version)
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource)
            .build();
        // The phases of a generation are made where no layer is at hand.
        global::set_tracer_provider(provider.clone());
        Ok(Self { provider })
    }

    /// The layer that turns the span of each request into one that is exported. It has a filter of its own: what is logged does not
    /// decide what is traced.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(SERVICE))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_filter(filter_fn(|data| data.is_span() && data.name() == REQUEST))
    }
}

impl Drop for Otel {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}

/// Headers, as the propagator reads them.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|key| key.as_str()).collect()
    }
}

pub(super) fn continue_trace(span: &Span, headers: &HeaderMap) {
    let parent =
        TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
    // Without a layer nothing is traced, and there is nothing to continue.
    let _ = span.set_parent(parent);
}

pub(super) fn generation(span: &Span, trace: &GenerationTrace<'_>) {
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let reasons = vec![StringValue::from(trace.finish_reason.to_owned())];
    span.set_attribute("gen_ai.operation.name", "chat");
    span.set_attribute("gen_ai.provider.name", SERVICE);
    span.set_attribute("gen_ai.response.id", trace.id.to_owned());
    span.set_attribute("gen_ai.request.model", trace.model.to_owned());
    span.set_attribute("gen_ai.response.model", trace.model.to_owned());
    span.set_attribute(
        "gen_ai.response.finish_reasons",
        Value::Array(Array::String(reasons)),
    );
    span.set_attribute("gen_ai.usage.input_tokens", count(trace.prompt_tokens));
    span.set_attribute("gen_ai.usage.output_tokens", count(trace.completion_tokens));
    span.set_attribute(
        "gen_ai.usage.cache_read.input_tokens",
        count(trace.cached_tokens),
    );

    let now = Moment {
        instant: Instant::now(),
        time: SystemTime::now(),
    };
    let parent = span.context();
    let tracer = global::tracer(SERVICE);
    let phases = [
        ("queued", Some(trace.arrived), trace.started),
        ("prefill", trace.started, trace.first_token),
        ("decode", trace.first_token, trace.last_token),
    ];
    for (name, begin, end) in phases {
        // A phase that was cut off ends now.
        let Some(begin) = begin else { break };
        let mut phase = tracer
            .span_builder(name)
            .with_start_time(now.at(begin))
            .start_with_context(&tracer, &parent);
        phase.end_with_timestamp(end.map_or(now.time, |end| now.at(end)));
    }
}

/// One moment on both clocks.
struct Moment {
    instant: Instant,
    time: SystemTime,
}

impl Moment {
    /// An earlier moment on the wall's clock.
    fn at(&self, instant: Instant) -> SystemTime {
        let ago = self.instant.saturating_duration_since(instant);
        self.time.checked_sub(ago).unwrap_or(self.time)
    }
}
