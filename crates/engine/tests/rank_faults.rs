//! What happens when a rank fails: one error that names it, soon; and new ranks that serve the next request.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use glim_cpu::{CpuBackend, CpuOptions, Math, RankGroup};
use glim_engine::{Engine, EngineError, EngineOptions, EnginePlan, GenerateRequest, Rank};
use glim_model::shard::Options;
use glim_model::{Checkpoint, Inventory};
use glim_plan::collective::Group;
use glim_plan::{Backend, CollectiveId, Communicator, RankFailure};
use glim_testkit::assets;
use glim_text::TokenId;

const WORLD_SIZE: usize = 3;

/// Deadline of the tests that let it pass: far longer than a step takes also on a busy machine.
const STALLED: Duration = Duration::from_secs(2);

/// What goes wrong with a rank, and at which operation of its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Panic {
        op: u64,
    },
    Stall {
        op: u64,
    },
    /// A pseudo-random delay of up to so many microseconds before some operations.
    Delays {
        seed: u64,
        most: u64,
    },
}

/// A rank's place in its group, and the fault that it has.
#[derive(Debug)]
struct Faulty {
    own: Arc<dyn Communicator>,
    fault: Fault,
    /// Operations so far.
    begun: AtomicU64,
    /// Ends a stall, so that its thread does not outlive the test.
    over: Arc<AtomicBool>,
}

impl Communicator for Faulty {
    fn rank(&self) -> usize {
        self.own.rank()
    }

    fn world_size(&self) -> usize {
        self.own.world_size()
    }

    fn begin(&self, op: usize) {
        self.own.begin(op);
        let begun = self.begun.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            Fault::None => {}
            Fault::Panic { op } => assert!(begun != op, "on purpose"),
            Fault::Stall { op } => {
                while begun == op && !self.over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Fault::Delays { seed, most } => {
                // SplitMix64 (Steele, Lea, Flood 2014).
                let mut z = (seed + begun).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z ^= z >> 27;
                if z.is_multiple_of(64) {
                    std::thread::sleep(Duration::from_micros((z >> 32) % most));
                }
            }
        }
    }

    fn exchange(
        &self,
        id: CollectiveId,
        mine: &[u32],
        each: &mut dyn FnMut(usize, &[u32]),
    ) -> Result<(), RankFailure> {
        self.own.exchange(id, mine, each)
    }
}

/// Three ranks of the odd model, of which rank `who` has a fault.
fn ranks(
    checkpoint: &Checkpoint,
    deadline: Duration,
    faults: [Fault; WORLD_SIZE],
    over: &Arc<AtomicBool>,
) -> Engine {
    let group = RankGroup::new(WORLD_SIZE, deadline);
    let inventory = Inventory::of(checkpoint)
        .over(WORLD_SIZE, &Options::default())
        .unwrap();
    let shards = inventory.shards().cloned().unwrap();
    let backend = |rank: usize| -> Box<dyn Backend> {
        let place = Faulty {
            own: group.rank(rank),
            fault: faults[rank],
            begun: AtomicU64::new(0),
            over: Arc::clone(over),
        };
        Box::new(CpuBackend::new(CpuOptions {
            math: Math::Exact,
            threads: Some(1),
            ranks: Some(Arc::new(place)),
            ..CpuOptions::default()
        }))
    };
    let options = EngineOptions {
        context: Some(64),
        max_chunk: 16,
        ..EngineOptions::default()
    };
    let weights: Vec<_> = (0..WORLD_SIZE)
        .map(|rank| shards.rank(checkpoint, rank).unwrap())
        .collect();
    let backends: Vec<_> = (0..WORLD_SIZE).map(backend).collect();
    let plan = EnginePlan::new(inventory, &backends[0].caps(), options).unwrap();
    let ranks = backends
        .into_iter()
        .zip(&weights)
        .map(|(backend, weights)| Rank { backend, weights });
    Engine::load_ranks(
        plan,
        ranks.collect(),
        Some(Arc::new(group) as Arc<dyn Group>),
    )
    .unwrap()
}

fn request(max_tokens: usize) -> GenerateRequest {
    let mut request = GenerateRequest::new((5..12).map(TokenId).collect());
    request.max_tokens = Some(max_tokens);
    request
}

fn generate(engine: &mut Engine, max_tokens: usize) -> Result<Vec<TokenId>, EngineError> {
    let out = engine.generate(&request(max_tokens), |_| ControlFlow::Continue(()))?;
    Ok(out.tokens)
}

const SOUND: [Fault; WORLD_SIZE] = [Fault::None; WORLD_SIZE];

/// Operations of one step of the odd model over ranks, from the plan itself.
fn ops_of_a_step(checkpoint: &Checkpoint) -> (u64, Vec<String>) {
    let inventory = Inventory::of(checkpoint)
        .over(WORLD_SIZE, &Options::default())
        .unwrap();
    let geometry = glim_plan::CacheGeometry {
        block_size: 64,
        max_blocks: 1,
    };
    let mut request =
        glim_model::EmitRequest::new(glim_plan::StepKind::Decode { rows: 1 }, geometry);
    request.world_size = WORLD_SIZE;
    request.shortlist = Some(64);
    let mut plan = glim_model::emit(&inventory, &request).unwrap();
    glim_plan::fuse(&mut plan, &[glim_plan::fuse::ADD_RMS_NORM]);
    let labels = plan.ops.iter().map(|node| node.label.clone());
    (plan.ops.len() as u64, labels.collect())
}

#[test]
fn a_panic_in_one_rank_ends_the_step_with_its_name_and_operation() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let (n, labels) = ops_of_a_step(&checkpoint);
    let over = Arc::new(AtomicBool::new(false));
    // In the second decode step, in its middle.
    let op = 2 * n + n / 2;
    let mut faults = SOUND;
    faults[1] = Fault::Panic { op };
    let mut engine = ranks(&checkpoint, Duration::from_secs(60), faults, &over);
    let start = Instant::now();
    let message = generate(&mut engine, 16).unwrap_err().to_string();
    // At once: nobody waits for the deadline.
    assert!(start.elapsed() < Duration::from_secs(30), "{message}");
    let label = &labels[(op % n) as usize];
    assert_eq!(
        message,
        format!("rank 1 panicked: on purpose (plan decode-1, in {label})")
    );
    // The ranks are of no more use, and say so with the same sentence.
    let again = generate(&mut engine, 1).unwrap_err().to_string();
    assert!(again.starts_with("rank 1 panicked: on purpose"), "{again}");
}

/// A rank that is alone is no other: its panic is the step's error, and does not unwind through the engine.
#[test]
fn a_panic_of_a_rank_that_is_alone_names_its_operation_too() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let group = RankGroup::new(1, Duration::from_secs(60));
    let (n, _) = ops_of_a_step(&checkpoint);
    let place = Faulty {
        own: group.rank(0),
        // About the middle of the first step after the prompt's, which has as many operations, but for the ranks' own.
        fault: Fault::Panic { op: n + n / 2 },
        begun: AtomicU64::new(0),
        over: Arc::default(),
    };
    let backend = CpuBackend::new(CpuOptions {
        math: Math::Exact,
        threads: Some(1),
        ranks: Some(Arc::new(place)),
        ..CpuOptions::default()
    });
    let options = EngineOptions {
        context: Some(64),
        max_chunk: 16,
        ..EngineOptions::default()
    };
    let plan = EnginePlan::new(Inventory::of(&checkpoint), &backend.caps(), options).unwrap();
    let rank = Rank {
        backend: Box::new(backend),
        weights: &checkpoint,
    };
    let mut engine = Engine::load_ranks(plan, vec![rank], Some(Arc::new(group))).unwrap();
    let message = generate(&mut engine, 16).unwrap_err().to_string();
    assert!(
        message.starts_with("rank 0 panicked: on purpose (plan decode-1, in blk."),
        "{message}"
    );
    let again = generate(&mut engine, 1).unwrap_err().to_string();
    assert!(again.starts_with("rank 0 panicked: on purpose"), "{again}");
}

#[test]
fn a_stall_in_one_rank_ends_the_step_within_the_deadline() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let (n, labels) = ops_of_a_step(&checkpoint);
    let over = Arc::new(AtomicBool::new(false));
    let op = n + 5;
    let mut faults = SOUND;
    faults[2] = Fault::Stall { op };
    let mut engine = ranks(&checkpoint, STALLED, faults, &over);
    let message = generate(&mut engine, 16).unwrap_err().to_string();
    let label = &labels[(op % n) as usize];
    assert!(
        message.starts_with("rank 2 did not go on within 2 s, while rank")
            && message.ends_with(&format!("(plan decode-1, in {label})"))
            && message.contains("waited in blk.0.attn_reduce"),
        "{message}"
    );
    drop(engine);
    over.store(true, Ordering::Relaxed);
}

/// After the last collective nobody waits for the rank but the engine.
#[test]
fn a_stall_after_the_last_collective_is_noticed_too() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let (n, _) = ops_of_a_step(&checkpoint);
    let over = Arc::new(AtomicBool::new(false));
    let mut faults = SOUND;
    faults[1] = Fault::Stall { op: n - 1 };
    let mut engine = ranks(&checkpoint, STALLED, faults, &over);
    let message = generate(&mut engine, 16).unwrap_err().to_string();
    assert!(
        message.starts_with("rank 1 failed: no sign of life within 2 s")
            && message.ends_with("in sample)"),
        "{message}"
    );
    drop(engine);
    over.store(true, Ordering::Relaxed);
}

/// Resident bytes of this process.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// A hundred times: a rank panics or stalls in mid-step, the ranks are made again, the next request is served. A lost set of ranks
/// would be 12 MB each time, their weights alone.
#[cfg(target_os = "linux")]
#[test]
fn ranks_are_made_again_without_a_leak() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let (n, _) = ops_of_a_step(&checkpoint);
    let sound = Arc::new(AtomicBool::new(false));
    let expected = generate(
        &mut ranks(&checkpoint, Duration::from_secs(60), SOUND, &sound),
        4,
    )
    .unwrap();
    let mut after_ten = 0;
    for round in 0..100u64 {
        let over = Arc::new(AtomicBool::new(false));
        let mut faults = SOUND;
        let op = (round * 7) % (3 * n);
        faults[round as usize % WORLD_SIZE] = match round % 10 {
            0 => Fault::Stall { op },
            _ => Fault::Panic { op },
        };
        let mut engine = ranks(&checkpoint, Duration::from_millis(200), faults, &over);
        generate(&mut engine, 4).unwrap_err();
        drop(engine);
        over.store(true, Ordering::Relaxed);
        if round % 5 == 0 {
            let mut engine = ranks(&checkpoint, Duration::from_secs(60), SOUND, &sound);
            assert_eq!(generate(&mut engine, 4).unwrap(), expected, "round {round}");
        }
        if round == 10 {
            after_ten = resident();
        }
    }
    let grown = resident().saturating_sub(after_ten);
    println!("after 90 more rounds: {} KiB more resident", grown >> 10);
    assert!(grown < 24 << 20, "{grown} bytes more than after ten rounds");
}

/// Ranks that are held up at random end up where they would without.
#[test]
fn random_delays_change_nothing() {
    let steps: usize = std::env::var("GLIM_SOAK_STEPS").map_or(200, |n| n.parse().unwrap());
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let mut sound = ranks(&checkpoint, Duration::from_secs(60), SOUND, &over);
    let delays = |seed| Fault::Delays { seed, most: 300 };
    let faults = [delays(1), delays(1 << 40), delays(1 << 50)];
    let mut held_up = ranks(&checkpoint, Duration::from_secs(60), faults, &over);
    let mut done = 0;
    while done < steps {
        let expected = generate(&mut sound, 50).unwrap();
        assert_eq!(generate(&mut held_up, 50).unwrap(), expected);
        done += expected.len();
    }
    println!("{done} steps");
}
