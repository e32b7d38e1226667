//! Requests over HTTP, under the names and labels of prometheus-fastapi-instrumentator, which vLLM's dashboards read.
//!
//! That package counts a status by its class (`2xx`) and a path without a route as `none`; so do we.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Buckets of a request, in seconds: the instrumentator's 0.1, 0.5 and 1 are among them.
const SECONDS: [f64; 14] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0,
];

/// Methods that have a name of their own; a client may send any word.
const METHODS: [&str; 7] = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"];

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
pub(super) struct Http {
    requests: Family<Labels, Counter>,
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Http {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let http = Self {
            requests: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
        };
        registry.register(
            "http_requests",
            "Requests by route, method and class of status",
            http.requests.clone(),
        );
        registry.register(
            "http_request_duration_seconds",
            "From the head of the request to the head of the answer",
            http.seconds.clone(),
        );
        http
    }

    pub(super) fn answered(&self, handler: &str, method: &str, status: u16, took: Duration) {
        let method = METHODS
            .into_iter()
            .find(|known| *known == method)
            .unwrap_or("other");
        let class = match status {
            100..200 => "1xx",
            200..300 => "2xx",
            300..400 => "3xx",
            400..500 => "4xx",
            _ => "5xx",
        };
        let mut labels = vec![
            ("handler", handler.to_owned()),
            ("method", method.to_owned()),
        ];
        self.seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        labels.push(("status", class.to_owned()));
        self.requests.get_or_create(&labels).inc();
    }
}
