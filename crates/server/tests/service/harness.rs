//! A server in this process, with the built-in model, and a client.

use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::Duration;

use glim_cpu::{CpuBackend, CpuOptions, Math};
use glim_engine::{Engine, EngineOptions};
use glim_model::{Checkpoint, Inventory};
use glim_plan::Backend;
use glim_server::{Lifecycle, Loaded, ModelInfo, ServeError, Server, ServerConfig, Stopper};
use glim_text::TextModel;
use serde_json::{Value, json};

/// The built-in model's file.
pub(crate) const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../assets/tiny-glm5/tiny-glm5-q8_0.gguf"
);

/// What the shared server calls its model.
pub(crate) const NAME: &str = "tiny";

/// A running server. Dropping it ends it at once.
pub(crate) struct Service {
    pub(crate) url: String,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), ServeError<String>>>>,
}

/// Options that the tests' servers start from.
pub(crate) fn config() -> ServerConfig {
    ServerConfig {
        address: ([127, 0, 0, 1], 0).into(),
        model_names: vec![NAME.to_owned(), "other/name".to_owned()],
        ..ServerConfig::default()
    }
}

/// The same of their engines: exact, with room for a few requests.
pub(crate) fn options() -> EngineOptions {
    EngineOptions {
        context: Some(2048),
        block_size: 16,
        max_num_seqs: 8,
        cache_tokens: Some(8192),
        max_queue: Some(64),
        ..EngineOptions::default()
    }
}

/// Loads the built-in model.
pub(crate) fn load(options: EngineOptions, math: Math) -> Loaded {
    load_on(options, math, |backend| backend)
}

/// The same on a backend that the test has put something around.
pub(crate) fn load_on(
    options: EngineOptions,
    math: Math,
    around: impl FnOnce(Box<dyn Backend>) -> Box<dyn Backend>,
) -> Loaded {
    let checkpoint = Checkpoint::open(MODEL.as_ref()).unwrap();
    let gguf = glim_gguf::Gguf::open(MODEL.as_ref()).unwrap();
    let backend = Box::new(CpuBackend::new(CpuOptions {
        math,
        ..CpuOptions::default()
    }));
    let source = glim_text::from_gguf::read(&gguf).unwrap();
    let template = source.chat_template.clone();
    Loaded {
        engine: Engine::new(
            Inventory::of(&checkpoint),
            &checkpoint,
            around(backend),
            options,
        )
        .unwrap(),
        text: TextModel::new(source).unwrap(),
        template,
        info: ModelInfo {
            build: "test".to_owned(),
            ranks: 1,
            ..ModelInfo::default()
        },
    }
}

impl Service {
    /// With these options; waits until it is ready.
    pub(crate) async fn start(config: ServerConfig, options: EngineOptions) -> Self {
        let service = Self::launch(config, move |_| Ok(load(options, Math::Fast)));
        service.wait_ready().await;
        service
    }

    /// With a loader of the test's own; does not wait.
    pub(crate) fn launch(
        config: ServerConfig,
        load: impl FnOnce(&Lifecycle) -> Result<Loaded, String> + Send + 'static,
    ) -> Self {
        let server = Server::bind::<String>(config).unwrap();
        let url = format!("http://{}", server.address());
        let stopper = server.stopper();
        let thread = std::thread::spawn(move || server.run(load));
        Self {
            url,
            stopper,
            thread: Some(thread),
        }
    }

    pub(crate) async fn wait_ready(&self) {
        loop {
            let ready = reqwest::get(format!("{}/ready", self.url)).await;
            if ready.is_ok_and(|ready| ready.status() == 200) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits for its end.
    pub(crate) async fn join(mut self) -> Result<(), ServeError<String>> {
        let thread = self.thread.take().unwrap();
        tokio::task::spawn_blocking(|| thread.join().unwrap())
            .await
            .unwrap()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        client().post(format!("{}{path}", self.url)).json(body)
    }

    /// Status and body of a request.
    pub(crate) async fn ask(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.post(path, body).send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        let json = serde_json::from_str(&text);
        (status, json.unwrap_or_else(|_| Value::from(text)))
    }

    /// A chat that must succeed.
    pub(crate) async fn chat(&self, body: Value) -> Value {
        let (status, answer) = self.ask("/v1/chat/completions", &body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// An error's parameter and message; the status must be 400.
    pub(crate) async fn refused(&self, path: &str, body: Value) -> (String, String) {
        let (status, answer) = self.ask(path, &body).await;
        assert_eq!(status, 400, "{body} → {answer}");
        let error = &answer["error"];
        assert_eq!(error["type"], "invalid_request_error", "{answer}");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&error["param"]), text(&error["message"]))
    }

    /// The events of a stream, `[DONE]` included.
    pub(crate) async fn events(&self, path: &str, mut body: Value) -> Vec<Value> {
        body["stream"] = true.into();
        let response = self.post(path, &body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let kind = response.headers()["content-type"].to_str().unwrap();
        assert_eq!(kind, "text/event-stream; charset=utf-8");
        parse_events(&response.text().await.unwrap())
    }

    /// The value of a metric: the sum over all its labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = reqwest::get(format!("{}/metrics", self.url)).await.unwrap();
        let text = text.text().await.unwrap();
        let line = |line: &str| -> Option<f64> {
            let rest = line.strip_prefix(name)?;
            if !rest.starts_with(['{', ' ']) {
                return None;
            }
            rest.rsplit_once(' ')?.1.parse().ok()
        };
        text.lines().filter_map(line).sum()
    }

    /// Waits until no request is there.
    pub(crate) async fn quiet(&self) {
        loop {
            let running = self.metric("vllm:num_requests_running").await;
            let waiting = self.metric("vllm:num_requests_waiting").await;
            if running + waiting == 0.0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stopper.stop();
        self.stopper.stop();
    }
}

pub(crate) fn client() -> &'static reqwest::Client {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    // Each test has a runtime of its own: a pooled connection would outlive its.
    CLIENT.get_or_init(|| {
        let builder = reqwest::Client::builder().pool_max_idle_per_host(0);
        builder.build().unwrap()
    })
}

/// One server for all tests that do not need their own.
pub(crate) async fn shared() -> &'static Service {
    static SHARED: tokio::sync::OnceCell<Service> = tokio::sync::OnceCell::const_new();
    SHARED
        .get_or_init(|| Service::start(config(), options()))
        .await
}

/// The data of server-sent events; comments are left out.
pub(crate) fn parse_events(text: &str) -> Vec<Value> {
    let mut events = Vec::new();
    for event in text.split("\n\n").filter(|event| !event.is_empty()) {
        if event.starts_with(':') {
            continue;
        }
        let data = event.strip_prefix("data: ").expect(event);
        assert!(!data.contains('\n'), "{data}");
        events.push(match data {
            "[DONE]" => Value::from(data),
            data => serde_json::from_str(data).expect(data),
        });
    }
    events
}

/// A user's question, greedy.
pub(crate) fn question(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 48})
}

/// The tool that the model was trained with.
pub(crate) fn weather_tool() -> Value {
    json!([{"type": "function", "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    }}])
}

/// With other fields.
pub(crate) fn with(mut body: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}
