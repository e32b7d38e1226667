//! A model or machine that breaks while it serves.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use glim_cpu::Math;
use glim_model::names::TOKENS;
use glim_plan::sample::TOKEN_CORRUPT;
use glim_plan::{
    Backend, BackendError, Caps, Plan, ReadTarget, StateDecl, StepId, StepInputs, StepResults,
    WeightGroup, WeightSource,
};
use glim_server::ServeError;
use serde_json::json;

use crate::harness::{Service, config, load_on, options, question, with};

/// What the backend does next.
#[repr(u8)]
enum Do {
    Right,
    /// Logits that are no numbers, once.
    Corrupt,
    /// A step that fails.
    Fail,
    /// A bug.
    Panic,
}

struct Faulty {
    backend: Box<dyn Backend>,
    next: Arc<AtomicU8>,
}

impl Backend for Faulty {
    fn caps(&self) -> Caps {
        self.backend.caps()
    }

    fn load(
        &mut self,
        groups: &[WeightGroup],
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        self.backend.load(groups, source)
    }

    fn alloc_state(
        &mut self,
        states: &[StateDecl],
        block_size: usize,
        blocks: usize,
        sequence_slots: usize,
    ) -> Result<(), BackendError> {
        self.backend
            .alloc_state(states, block_size, blocks, sequence_slots)
    }

    fn prepare(&mut self, plan: &Plan) -> Result<StepId, BackendError> {
        self.backend.prepare(plan)
    }

    fn run(&mut self, step: StepId, inputs: &StepInputs) -> Result<StepResults, BackendError> {
        let results = self.backend.run(step, inputs)?;
        match self.next.swap(Do::Right as u8, Ordering::SeqCst) {
            what if what == Do::Corrupt as u8 => {
                let tokens = results.words(TOKENS).unwrap().len();
                let words = vec![TOKEN_CORRUPT as u32; tokens];
                Ok(StepResults::new(HashMap::from([(
                    TOKENS.to_owned(),
                    words,
                )])))
            }
            what if what == Do::Fail as u8 => Err(BackendError::Rank {
                plan: "decode-1".into(),
                rank: 0,
                op: "blk.2.experts".into(),
                what: "stalled".into(),
            }),
            what if what == Do::Panic as u8 => panic!("a bug of the test's own making"),
            _ => Ok(results),
        }
    }

    fn read(&self, target: ReadTarget<'_>) -> Result<Vec<u8>, BackendError> {
        self.backend.read(target)
    }
}

/// A server, and what its backend does next.
async fn faulty() -> (Service, Arc<AtomicU8>) {
    let next = Arc::new(AtomicU8::new(Do::Right as u8));
    let own = next.clone();
    let service = Service::launch(config(), move |_| {
        let around = |backend| -> Box<dyn Backend> { Box::new(Faulty { backend, next: own }) };
        Ok(load_on(options(), Math::Fast, around))
    });
    service.wait_ready().await;
    (service, next)
}

#[tokio::test]
async fn logits_that_are_no_numbers_fail_their_request_and_are_counted() {
    let (service, next) = faulty().await;
    next.store(Do::Corrupt as u8, Ordering::SeqCst);
    let (status, body) = service.ask("/v1/chat/completions", &question("x")).await;
    assert_eq!(
        (status, &body["error"]["type"]),
        (500, &json!("server_error"))
    );
    assert_eq!(service.metric("vllm:corrupted_requests_total").await, 1.0);
    service.quiet().await;
    assert_eq!(service.metric("vllm:kv_cache_usage_perc").await, 0.0);
    // The next one is served, and finds nothing of it in the cache.
    let answer = service.chat(question("x")).await;
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn a_step_that_fails_ends_all_requests_with_an_error_and_the_server() {
    let (service, next) = faulty().await;
    let body = with(
        question("Tell me a story."),
        json!({"stream": true, "max_tokens": 500, "ignore_eos": true}),
    );
    let mut stream = service
        .post("/v1/chat/completions", &body)
        .send()
        .await
        .unwrap();
    stream.chunk().await.unwrap();
    next.store(Do::Fail as u8, Ordering::SeqCst);
    let rest = stream.text().await.unwrap();
    assert!(
        rest.contains("\"error\"") && !rest.contains("[DONE]"),
        "{rest}"
    );
    assert!(!rest.contains("blk.2"), "the log says that: {rest}");
    let error = service.join().await.unwrap_err();
    assert!(
        matches!(&error, ServeError::Engine(error) if error.to_string().contains("blk.2.experts")),
        "{error}"
    );
}

#[tokio::test]
async fn a_panic_in_a_step_is_a_step_that_fails() {
    let (service, next) = faulty().await;
    next.store(Do::Panic as u8, Ordering::SeqCst);
    let (status, body) = service.ask("/v1/chat/completions", &question("x")).await;
    assert_eq!(status, 500, "{body}");
    let end = tokio::time::timeout(Duration::from_secs(60), service.join()).await;
    let error = end.unwrap().unwrap_err();
    let told = "rank 0 panicked: a bug of the test's own making";
    assert!(
        matches!(&error, ServeError::Engine(error) if error.to_string().starts_with(told)),
        "{error}"
    );
}

/// Outside of a step, where nobody expects one.
#[tokio::test]
async fn a_panic_of_the_engines_thread_ends_the_server() {
    let service = Service::launch(config(), |_| panic!("a bug of the test's own making"));
    let end = tokio::time::timeout(Duration::from_secs(60), service.join()).await;
    assert!(matches!(end.unwrap(), Err(ServeError::Panic)));
}
