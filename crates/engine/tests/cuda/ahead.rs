//! Decode steps that are handed over before the last one's tokens are known give what they give when each is waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use glim_cuda::CudaBackend;
use glim_engine::{EngineOptions, GenerateRequest};
use glim_model::Checkpoint;
use glim_plan::{
    Backend, BackendError, Caps, MAX_IN_FLIGHT, Plan, ReadTarget, StateDecl, StepId, StepInputs,
    StepResults, Ticket, WeightGroup, WeightSource,
};
use glim_testkit::{assets, device};
use glim_text::TokenId;

use super::common::serve::{serve, tokens};
use super::gpu::{engine_on, options};

/// A GPU that may be given steps ahead or not, and that counts how many it had at a time.
struct Watched {
    inner: CudaBackend,
    ahead: bool,
    in_flight: usize,
    most: Arc<AtomicUsize>,
}

impl Backend for Watched {
    fn caps(&self) -> Caps {
        Caps {
            launch_ahead: self.ahead,
            ..self.inner.caps()
        }
    }

    fn load(
        &mut self,
        groups: &[WeightGroup],
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        self.inner.load(groups, source)
    }

    fn alloc_state(
        &mut self,
        decls: &[StateDecl],
        block_size: usize,
        blocks: usize,
        sequence_slots: usize,
    ) -> Result<(), BackendError> {
        self.inner
            .alloc_state(decls, block_size, blocks, sequence_slots)
    }

    fn prepare(&mut self, plan: &Plan) -> Result<StepId, BackendError> {
        self.inner.prepare(plan)
    }

    fn run(&mut self, step: StepId, inputs: &StepInputs) -> Result<StepResults, BackendError> {
        self.inner.run(step, inputs)
    }

    fn submit(&mut self, step: StepId, inputs: &StepInputs) -> Result<Ticket, BackendError> {
        self.in_flight += 1;
        self.most.fetch_max(self.in_flight, Ordering::Relaxed);
        self.inner.submit(step, inputs)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepResults, BackendError> {
        self.in_flight -= 1;
        self.inner.wait(ticket)
    }

    fn read(&self, target: ReadTarget<'_>) -> Result<Vec<u8>, BackendError> {
        self.inner.read(target)
    }
}

/// Requests that come and go: other lengths, other draws, a stop token in the midst of one.
fn requests() -> Vec<GenerateRequest> {
    let request = |n: usize| {
        let prompt = (0..20 + 7 * n as u32).map(|i| TokenId((i * 37 + n as u32 * 11) % 4000));
        let mut request = GenerateRequest::new(prompt.collect());
        request.max_tokens = Some(4 + device::sized(6, 2) * n);
        request.sampling.temperature = [0.0, 1.0, 0.8, 1.3][n % 4];
        request.sampling.seed = n as u64;
        request.sampling.top_k = [0, 0, 40, 0][n % 4];
        request
    };
    (0..5).map(request).collect()
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn steps_that_are_launched_ahead_draw_the_same_tokens() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let run = |ahead, requests: Vec<GenerateRequest>| {
        let most = Arc::new(AtomicUsize::new(0));
        let backend = Watched {
            inner: CudaBackend::new(options()).unwrap(),
            ahead,
            in_flight: 0,
            most: Arc::clone(&most),
        };
        let options = EngineOptions {
            context: Some(128),
            // Fewer than there are: some wait for a place.
            max_num_seqs: 3,
            ..EngineOptions::default()
        };
        let mut engine = engine_on(&checkpoint, Box::new(backend), options);
        let found = tokens(&serve(&mut engine, requests));
        (found, most.load(Ordering::Relaxed))
    };
    let (plain, most) = run(false, requests());
    assert_eq!(most, 1, "steps were handed over ahead though they may not");
    // What the third request draws in the midst of its answer ends it.
    let mut stopped = requests();
    stopped[2].stop_tokens = vec![plain[2][3]];
    let (plain, _) = run(false, stopped.clone());
    let (ahead, most) = run(true, stopped);
    assert_eq!(most, MAX_IN_FLIGHT, "no step was handed over ahead");
    assert_eq!(ahead, plain);
}
