//! Decode steps that are handed over before the tokens of the last one are known: when that is done, and that nobody sees a difference.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::serve::{note, serve, tokens};
use glim_cpu::{CpuBackend, CpuOptions, Math, RankGroup};
use glim_engine::{
    Engine, EngineOptions, EnginePlan, FinishReason, GenerateRequest, Rank, SamplingParams,
};
use glim_model::shard::Options;
use glim_model::{Checkpoint, Inventory};
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_plan::{
    Backend, BackendError, Caps, MAX_IN_FLIGHT, Plan, ReadTarget, StateDecl, StepId, StepInputs,
    StepResults, Ticket, WeightGroup, WeightSource,
};
use glim_testkit::assets;
use glim_text::TokenId;

/// What an engine asked of its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Submit(u64),
    Wait(u64),
}
use Call::{Submit, Wait};

type Log = Arc<Mutex<Vec<Call>>>;

/// A backend that runs steps when they are handed over, as a GPU's stream does, but shows what came of them only when it is asked.
struct Recording {
    inner: Box<dyn Backend>,
    log: Log,
    in_flight: VecDeque<(u64, Result<StepResults, BackendError>)>,
    submitted: u64,
    /// The step that fails.
    fails: Option<u64>,
}

impl Recording {
    fn new(inner: Box<dyn Backend>, log: &Log) -> Self {
        Self {
            inner,
            log: Arc::clone(log),
            in_flight: VecDeque::new(),
            submitted: 0,
            fails: None,
        }
    }

    fn say(&self, call: Call) {
        self.log.lock().unwrap().push(call);
    }
}

impl Backend for Recording {
    fn caps(&self) -> Caps {
        Caps {
            launch_ahead: true,
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
        let number = self.submitted;
        self.submitted += 1;
        self.say(Submit(number));
        let results = match self.fails == Some(number) {
            true => Err(BackendError::Unsupported {
                backend: "of this test".into(),
                plan: "any".into(),
                reason: "on purpose".into(),
            }),
            false => self.inner.run(step, inputs),
        };
        self.in_flight.push_back((number, results));
        assert!(self.in_flight.len() <= MAX_IN_FLIGHT);
        Ok(Ticket::Running(number))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepResults, BackendError> {
        let (number, results) = self.in_flight.pop_front().unwrap();
        assert!(
            matches!(ticket, Ticket::Running(n) if n == number),
            "{ticket:?} is waited for before {number}"
        );
        self.say(Wait(number));
        results
    }

    fn read(&self, target: ReadTarget<'_>) -> Result<Vec<u8>, BackendError> {
        self.inner.read(target)
    }
}

fn options(max_num_seqs: usize, cache_tokens: Option<usize>) -> EngineOptions {
    EngineOptions {
        context: Some(128),
        block_size: 16,
        max_chunk: 32,
        max_num_seqs,
        cache_tokens,
        ..EngineOptions::default()
    }
}

fn engine_on(backend: Box<dyn Backend>, options: EngineOptions) -> Engine {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    Engine::new(Inventory::of(&checkpoint), &checkpoint, backend, options).unwrap()
}

fn reference() -> Box<dyn Backend> {
    Box::new(ReferenceBackend::new(ReferenceOptions::default()))
}

/// An engine that launches ahead, and what it asks.
fn ahead(options: EngineOptions) -> (Engine, Log) {
    let log = Log::default();
    let backend = Recording::new(reference(), &log);
    (engine_on(Box::new(backend), options), log)
}

fn plain(options: EngineOptions) -> Engine {
    engine_on(reference(), options)
}

fn request(n: u32, salt: u32, max_tokens: usize) -> GenerateRequest {
    let prompt = (0..n).map(|i| TokenId((i * 31 + salt * 500 + 1) % 4000));
    GenerateRequest {
        max_tokens: Some(max_tokens),
        ..GenerateRequest::new(prompt.collect())
    }
}

fn seeded(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: 0.9,
        top_k: 40,
        seed,
        ..SamplingParams::GREEDY
    }
}

#[test]
fn a_step_is_handed_over_before_the_one_before_it_is_waited_for() {
    let (mut engine, log) = ahead(options(1, None));
    serve(&mut engine, vec![request(5, 0, 5)]);
    // The prompt; then four decode steps. The last token is drawn by step 4: there is no fifth.
    let expected = [
        Submit(0),
        Wait(0),
        Submit(1),
        Submit(2),
        Wait(1),
        Submit(3),
        Wait(2),
        Submit(4),
        Wait(3),
        Wait(4),
    ];
    assert_eq!(*log.lock().unwrap(), expected);
}

#[test]
fn a_stop_token_costs_a_step_that_nobody_looks_at() {
    let answer = serve(&mut plain(options(1, None)), vec![request(5, 0, 40)]).remove(0);
    // The first token that the answer had not had before.
    let fresh = |i: &usize| *i > 2 && !answer.tokens[..*i].contains(&answer.tokens[*i]);
    let stop = (0..answer.tokens.len()).find(fresh).unwrap();
    let stopping = GenerateRequest {
        stop_tokens: vec![answer.tokens[stop]],
        ..request(5, 0, 40)
    };
    let (mut engine, log) = ahead(options(1, None));
    let found = serve(&mut engine, vec![stopping]).remove(0);
    assert_eq!(found.tokens, answer.tokens[..stop]);
    let reason = (FinishReason::Stop, Some(answer.tokens[stop]));
    assert_eq!(found.finished, Some(reason));
    let calls = log.lock().unwrap().clone();
    let submitted = calls.iter().filter(|c| matches!(c, Submit(_))).count();
    // The prompt draws token 0, each decode step one more; one more is under way when the stop token is seen.
    assert_eq!(submitted, 1 + stop + 1);
    assert_eq!(calls.len(), 2 * submitted - 1, "{calls:?}");
    // It is waited for when there is something to do again; the answer that then comes is what it always was.
    let again = serve(&mut engine, vec![request(5, 0, 40)]).remove(0);
    assert_eq!(again.tokens, answer.tokens);
}

#[test]
fn a_draw_on_the_host_keeps_all_that_are_beside_it_from_being_ahead() {
    let (mut engine, log) = ahead(options(2, None));
    let on_host = GenerateRequest {
        sampling: SamplingParams {
            logprobs: Some(0),
            ..seeded(3)
        },
        ..request(6, 1, 8)
    };
    serve(&mut engine, vec![request(5, 0, 8), on_host]);
    for pair in log.lock().unwrap().chunks(2) {
        let [Submit(a), Wait(b)] = pair else {
            panic!("{pair:?}");
        };
        assert_eq!(a, b);
    }
}

/// Requests of every kind, more than there is memory for.
fn mixed(stops: &[TokenId]) -> Vec<GenerateRequest> {
    let mut requests: Vec<GenerateRequest> = (0..9)
        .map(|i| GenerateRequest {
            stop_tokens: stops.to_vec(),
            priority: [0, 0, 1, -1][i as usize % 4],
            ..request(3 + i * 9, i, 20 + 4 * i as usize)
        })
        .collect();
    for (i, request) in requests.iter_mut().enumerate().skip(2) {
        request.sampling = seeded(i as u64);
    }
    requests[4].sampling.min_tokens = 6;
    requests[6].sampling.presence_penalty = 0.5;
    requests
}

#[test]
fn what_a_request_gets_is_the_same() {
    // Tokens that some of the answers have somewhere in the middle.
    let free = serve(&mut plain(options(4, None)), mixed(&[]));
    let stops: Vec<TokenId> = [0, 3, 4, 7].map(|i| free[i].tokens[10 + i]).into();
    // Memory for one whole context, and four that run.
    let tight = options(4, Some(128));
    let expected = serve(&mut plain(tight.clone()), mixed(&stops));
    let stopped = expected.iter().filter(|o| o.tokens.len() < 20).count();
    assert!(stopped > 2, "{stopped} were stopped");
    let (mut engine, log) = ahead(tight);
    let found = serve(&mut engine, mixed(&stops));
    assert_eq!(tokens(&found), tokens(&expected));
    let ends = |outcomes: &[common::serve::Outcome]| -> Vec<_> {
        outcomes.iter().map(|o| o.finished).collect()
    };
    assert_eq!(ends(&found), ends(&expected));
    let preempted: usize = found.iter().map(|o| o.preempted).sum();
    assert!(preempted > 0, "memory was enough");
    let calls = log.lock().unwrap().clone();
    let is_ahead = |pair: &&[Call]| matches!(pair, [Submit(_), Submit(_)]);
    let launched = calls.windows(2).filter(is_ahead).count();
    assert!(launched > 5, "{launched} steps were ahead");
    // Rows of the cache are what they are without: where there is room for them, conversations go on from them.
    let (mut engine, _) = ahead(options(4, None));
    let found = serve(&mut engine, mixed(&stops));
    assert_eq!(tokens(&found), tokens(&expected));
    let go_on = |outcomes: &[common::serve::Outcome]| -> Vec<GenerateRequest> {
        let first = mixed(&stops).into_iter().zip(outcomes).take(4);
        first
            .map(|(request, outcome)| GenerateRequest {
                prompt: [request.prompt.clone(), outcome.tokens.clone()].concat(),
                max_tokens: Some(12),
                ..request
            })
            .collect()
    };
    let more = serve(&mut engine, go_on(&found));
    let fresh = serve(&mut plain(options(1, None)), go_on(&found));
    assert_eq!(tokens(&more), tokens(&fresh));
    assert!(more.iter().any(|o| o.cached > Some(0)), "{more:?}");
}

#[test]
fn who_leaves_while_a_step_is_ahead_takes_nothing_along() {
    let (mut engine, log) = ahead(options(3, None));
    let now = Instant::now();
    let expiring = GenerateRequest {
        deadline: Some(now + Duration::from_secs(5)),
        ..request(4, 2, 60)
    };
    let all = vec![request(5, 0, 30), request(4, 1, 60), expiring];
    let ids = engine.submit_all(all).unwrap();
    let mut outcomes = BTreeMap::new();
    for tick in 0.. {
        if engine.is_idle() {
            break;
        }
        let at = now + Duration::from_secs(tick);
        note(&mut outcomes, engine.step_at(at).unwrap());
        if tick == 9 {
            let last = log
                .lock()
                .unwrap()
                .iter()
                .rev()
                .take(2)
                .copied()
                .collect::<Vec<_>>();
            assert!(
                matches!(last[..], [Wait(_), Submit(_)]),
                "one is ahead: {last:?}"
            );
            assert!(engine.cancel(ids[1]));
        }
    }
    assert_eq!(engine.stats().blocks_used, 0);
    let (stays, cancelled, expired) = (&outcomes[&ids[0]], &outcomes[&ids[1]], &outcomes[&ids[2]]);
    let alone = |salt, n, max| serve(&mut plain(options(1, None)), vec![request(n, salt, max)]);
    assert_eq!(stays.tokens, alone(0, 5, 30)[0].tokens);
    let whole = alone(1, 4, 60).remove(0).tokens;
    assert!(cancelled.finished.is_none() && whole.starts_with(&cancelled.tokens));
    assert_eq!(expired.finished, Some((FinishReason::Deadline, None)));
    assert_eq!(expired.tokens.len(), 5);
}

#[test]
fn a_step_that_fails_ahead_fails_when_it_is_waited_for() {
    let log = Log::default();
    let backend = Recording {
        fails: Some(3),
        ..Recording::new(reference(), &log)
    };
    let mut engine = engine_on(Box::new(backend), options(1, None));
    engine.submit(request(5, 0, 20)).unwrap();
    // The prompt, and the decode steps 1 and 2, during which step 3 is handed over.
    let mut drawn = 0;
    let error = loop {
        match engine.step() {
            Ok(events) => drawn += events.len(),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("on purpose"), "{error}");
    // A start, and three tokens.
    assert_eq!(drawn, 4);
}

#[test]
fn ranks_are_handed_steps_ahead_too() {
    const WORLD_SIZE: usize = 2;
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let requests = || vec![request(5, 0, 12), request(20, 1, 9)];
    let run = |records: bool| {
        let group = RankGroup::new(WORLD_SIZE, Duration::from_secs(120));
        let inventory = Inventory::of(&checkpoint);
        let inventory = inventory.over(WORLD_SIZE, &Options::default()).unwrap();
        let shards = inventory.shards().cloned().unwrap();
        let logs: Vec<Log> = (0..WORLD_SIZE).map(|_| Log::default()).collect();
        let backend = |rank: usize| -> Box<dyn Backend> {
            let inner = Box::new(CpuBackend::new(CpuOptions {
                math: Math::Exact,
                threads: Some(1),
                ranks: Some(group.rank(rank)),
                ..CpuOptions::default()
            }));
            match records {
                true => Box::new(Recording::new(inner, &logs[rank])),
                false => inner,
            }
        };
        let backends: Vec<_> = (0..WORLD_SIZE).map(backend).collect();
        let plan = EnginePlan::new(inventory, &backends[0].caps(), options(2, None)).unwrap();
        let weights = (0..WORLD_SIZE).map(|rank| shards.rank(&checkpoint, rank).unwrap());
        let weights: Vec<_> = weights.collect();
        let ranks = backends.into_iter().zip(&weights);
        let ranks = ranks.map(|(backend, weights)| Rank { backend, weights });
        let mut engine = Engine::load_ranks(plan, ranks.collect(), Some(Arc::new(group))).unwrap();
        let found = tokens(&serve(&mut engine, requests()));
        let logs: Vec<Vec<Call>> = logs.iter().map(|log| log.lock().unwrap().clone()).collect();
        (found, logs)
    };
    let (expected, _) = run(false);
    let (found, logs) = run(true);
    assert_eq!(found, expected);
    assert_eq!(logs[0], logs[1]);
    assert!(
        logs[0]
            .windows(2)
            .any(|pair| matches!(pair, [Submit(_), Submit(_)]))
    );
}
